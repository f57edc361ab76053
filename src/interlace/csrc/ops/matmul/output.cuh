// Epilogue of a matmul tile: folded norm, bias, gate, activation and residual, then stores of whole 16-byte pieces.
//
// Accumulators lie in a thread's registers by the tensor core's layout (accumulators.cuh). A scratch of shared memory
// transposes them, 64 features of up to 64 tokens at a time, so that threads next to each other store neighbours:
//
//   scratch row   a token, PITCH bytes: 64 features of 2 bytes, and 16 bytes against bank conflicts
//   thread t      piece t % 8 of token t / 8, 8 features of 16 bytes; with ragged rows (RAGGED) single pairs instead
//
// With STORES_SCALED it also stores rows for a folded norm: times the norm's weight, with their sums of squares.
#pragma once
#include "epilogue.cuh"
#include "fix_up.cuh"
#include "folded_norm.cuh"

constexpr int PITCH = 64 * 2 + 16;

// COLUMNS below: WIDTH of a whole tile, or the columns of a part's share (fix_up.cuh).
template <class Config> struct TileOutput {
  typedef Accumulators<Config> Acc;
  typedef CooperativeFixup<Config> Cooperative;
  static constexpr int BM = Config::BM, BN = Config::BN, GATES = Config::GATES, SQUARED = Config::SQUARED;
  static constexpr bool SWAP_AB = Config::SWAP_AB, BIAS = Config::BIAS, RESIDUAL = Config::RESIDUAL;
  static constexpr bool RAGGED = Config::RAGGED, STORES_SCALED = Config::STORES_SCALED;
  static constexpr int WIDTH = Acc::WIDTH, BLOCKS = Acc::BLOCKS;
  static constexpr int SHARE = Cooperative::COLUMNS, SHARE_GROUPS = Cooperative::GROUPS;
  template <int COLUMNS> using Columns = typename Acc::template Columns<COLUMNS>;
  // With swap-AB a small share loads its residual while it awaits the partials of other parts.
  static constexpr bool RESIDUAL_EARLY =
      RESIDUAL && SWAP_AB && Config::SHARES > 1 && SHARE <= 64 && BLOCKS* SHARE_GROUPS <= 4;
  typedef unsigned short EarlyResidual[RESIDUAL_EARLY ? BLOCKS : 1][SHARE_GROUPS][4];
  // With tokens as rows residuals are loaded by 64 columns: those of a share's first columns before its partials are
  // awaited, any others while the columns before them are stored.
  typedef unsigned Residuals[RESIDUAL && !SWAP_AB ? 8 : 1][2];
  // The factors of a folded norm lie after the rows that are transposed.
  static constexpr int FACTORS = (SWAP_AB && WIDTH < 64 ? WIDTH : 64) * PITCH;
  // The next norm's weight, of a thread: its 8 of each 64 features.
  static constexpr int GAINS = SWAP_AB ? BLOCKS : (WIDTH + 63) / 64;
  static constexpr bool GAINS_EARLY = GAINS <= 2;  // loaded before the products

  // The first column of a part's share in its tile; 0 for a whole tile.
  template <int COLUMNS> DEVICE static int first_column(const Item& item) {
    if constexpr (COLUMNS == WIDTH) return 0;
    return Cooperative::first_group(item.part) * 8;
  }
  // Scales accumulators by the norm's factors of their tokens, which all threads stored at FACTORS.
  template <int COLUMNS> DEVICE static void normalise(const Item& item, Columns<COLUMNS>& accumulators) {
    const int from = first_column<COLUMNS>(item);
    synchronise();
    const unsigned factors = scratch_of(warpgroup()) + FACTORS;
    const int thread = threadIdx.x % 128, column = thread % 4 * 2;
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int b = 0; b < (SWAP_AB ? 1 : BLOCKS); ++b)
#pragma unroll
      for (int j = 0; j < (SWAP_AB ? COLUMNS / 8 : 1); ++j) {
        if constexpr (SWAP_AB && COLUMNS < WIDTH)
          if (!Cooperative::has_column(item, j * 8)) continue;
        const unsigned at = factors + (SWAP_AB ? from + j * 8 + column : b * 64 + row) * 4;
        const float first = load_shared_float(at), second = load_shared_float(at + (SWAP_AB ? 4 : 32));
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < (SWAP_AB ? BLOCKS * 4 : COLUMNS / 2); ++t) {
            float& value = SWAP_AB ? accumulators[g][t / 4][j * 4 + t % 4] : accumulators[g][b][t];
            value *= (SWAP_AB ? t % 2 : t / 2 % 2) ? second : first;
          }
      }
  }

  // Bias, activation and gate of one element.
  DEVICE static float value_of(float up, float gate, float bias) {
    return activate<GATES, Config::ACTIVATION>(BIAS ? up + bias : up, gate);
  }
  DEVICE static float bias_of(const Epilogue& op, int feature) {
    return feature < op.n ? as_float(__ldg(op.bias + feature)) : 0.0f;
  }
  // Biases of two neighbouring features, the first of which is even.
  DEVICE static unsigned biases_of(const Epilogue& op, int feature) {
    return feature < op.n ? __ldg(reinterpret_cast<const unsigned*>(op.bias + feature)) : 0;
  }
  DEVICE static unsigned residuals_of(const Epilogue& op, int token, int feature) {
    unsigned bits = 0;
    if (token < op.residual_rows && feature < op.n) {
      const ELEMENT* const at = op.residual + (long long)token * op.n + feature;
      asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
    }
    return bits;
  }
  // One element of the residual; volatile, or the compiler would move the load to where the value is used first.
  DEVICE static unsigned short residual_of(const Epilogue& op, int token, int feature) {
    unsigned short bits = 0;
    if (token < op.residual_rows && feature < op.n) {
      const ELEMENT* const at = op.residual + (long long)token * op.n + feature;
      asm volatile("ld.global.cg.b16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
    }
    return bits;
  }

  // Residual of up to 64 columns of a block of rows, from column `from` on.
  template <int COLUMNS>
  DEVICE static void load_residuals(const Epilogue& op, const Item& item, int block, int from, Residuals& residuals) {
    if constexpr (RESIDUAL && !SWAP_AB) {
      const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
      const int token = item.i * BM + warpgroup() * BLOCKS * 64 + block * 64 + row;
      const int feature = item.j * BN + (COLUMNS < WIDTH ? first_column<COLUMNS>(item) : 0) + from + column;
#pragma unroll
      for (int n = 0; n < 16 && from + n / 2 * 8 < COLUMNS; ++n)
        residuals[n / 2][n % 2] = residuals_of(op, token + n % 2 * 8, feature + n / 2 * 8);
    }
  }
  // A small share's whole residual, from the warpgroup's first feature on, before its partials arrive.
  DEVICE static void load_early_residual(const Epilogue& op, const Item& item, int feature, EarlyResidual& early) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
      load_residual(op, feature + b * 64, item.i * BM + first_column<SHARE>(item), early[b]);
  }
  template <int N>
  DEVICE static void load_residual(const Epilogue& op, int feature, int token, unsigned short (&residual)[N][4]) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N * 4; ++n)
      residual[n / 4][n % 4] = residual_of(op, token + n / 4 * 8 + column + n % 2, feature + row + n / 2 % 2 * 8);
  }
  template <int COLUMNS>
  DEVICE static void store(const Epilogue& op, const Item& item, const Columns<COLUMNS>& accumulators,
                           const int4 (&gains)[GAINS]) {
    const unsigned short none[1][COLUMNS / 8][4] = {};
    Residuals first;
    load_residuals<COLUMNS>(op, item, 0, 0, first);
    store<COLUMNS>(op, item, accumulators, gains, none, first);
  }
  template <int COLUMNS, int N>
  DEVICE static void store(const Epilogue& op, const Item& item, const Columns<COLUMNS>& accumulators,
                           const int4 (&gains)[GAINS], const unsigned short (&early_residual)[N][COLUMNS / 8][4],
                           Residuals& residuals) {
    const int from = first_column<COLUMNS>(item);
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    const unsigned scratch = scratch_of(warpgroup());
    const int first_tall = (SWAP_AB ? item.j * BN : item.i * BM) + warpgroup() * BLOCKS * 64;
    int first_wide = SWAP_AB ? item.i * BM : item.j * BN;
    if constexpr (COLUMNS < WIDTH) first_wide += from;
    constexpr int CHUNK = COLUMNS < 64 ? COLUMNS : 64, PIECE = RAGGED ? 2 : 8;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c += CHUNK) {
        constexpr int LAST = COLUMNS % CHUNK ? COLUMNS % CHUNK : CHUNK;
        const int wide = c + CHUNK <= COLUMNS ? CHUNK : LAST;
        unsigned short residual[RESIDUAL && SWAP_AB ? CHUNK / 8 : 1][4];
        if constexpr (RESIDUAL_EARLY && COLUMNS == SHARE) {
#pragma unroll
          for (int n = 0; n < wide / 8 * 4; ++n) residual[n / 4][n % 4] = early_residual[N > 1 ? b : 0][n / 4][n % 4];
        } else if constexpr (RESIDUAL && SWAP_AB) {
#pragma unroll
          for (int n = 0; n < wide / 8 * 4; ++n) {
            const int tall = first_tall + b * 64 + row + n / 2 % 2 * 8;
            const int across = first_wide + c + n / 4 * 8 + column + n % 2;
            residual[n / 4][n % 4] = residual_of(op, across, tall);
          }
        }
#pragma unroll
        for (int j = 0; j < wide / 8; ++j) {
          const unsigned biases = BIAS && !SWAP_AB ? biases_of(op, first_wide + c + j * 8 + column) : 0;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int at = (c / 8 + j) * 4 + h * 2;
            const int tall_at = row + h * 8, wide_at = j * 8 + column;
            const int tall = first_tall + b * 64 + tall_at;
            const float* const gate = GATES == 2 ? &accumulators[0][b][at] : &accumulators[GATES - 1][b][at];
            const float* const up = &accumulators[GATES - 1][b][at];
            const float bias = BIAS && SWAP_AB ? bias_of(op, tall) : as_float(biases & 0xffff);
            float low = value_of(up[0], gate[0], bias);
            float high = value_of(up[1], gate[1], SWAP_AB ? bias : as_float(biases >> 16));
            if constexpr (RESIDUAL && SWAP_AB)
              low += as_float(residual[j][h * 2]), high += as_float(residual[j][h * 2 + 1]);
            if constexpr (RESIDUAL && !SWAP_AB)
              low += as_float(residuals[j][h] & 0xffff), high += as_float(residuals[j][h] >> 16);
            if constexpr (Config::RELU_LAST) low = fmaxf(low, 0.0f), high = fmaxf(high, 0.0f);
            const unsigned pair = as_pair(low, high);
            if (SWAP_AB) {
              store_shared_16(scratch + wide_at * PITCH + tall_at * 2, pair & 0xffff);
              store_shared_16(scratch + (wide_at + 1) * PITCH + tall_at * 2, pair >> 16);
            } else {
              store_shared_32(scratch + tall_at * PITCH + wide_at * 2, pair);
            }
          }
        }
        synchronise();
        const int tokens = SWAP_AB ? wide : 64;
        // Scaled rows have 8 pieces however wide they are, so that a thread has the same columns of each row.
        const int pieces = (SWAP_AB || STORES_SCALED ? 64 : wide) / PIECE;
        const int first_token = SWAP_AB ? first_wide + c : first_tall + b * 64;
        const int first_feature = SWAP_AB ? first_tall + b * 64 : first_wide + c;
        if (c + CHUNK < COLUMNS) load_residuals<COLUMNS>(op, item, b, c + CHUNK, residuals);
        else if (b + 1 < BLOCKS) load_residuals<COLUMNS>(op, item, b + 1, 0, residuals);
        for (int piece = thread; piece < tokens * pieces; piece += 128) {
          int token = first_token + piece / pieces;
          const int feature = first_feature + piece % pieces * PIECE;
          if constexpr (COLUMNS < WIDTH && Cooperative::MORE > 0)
            if (!Cooperative::has_column(item, c + (SWAP_AB ? piece / pieces : piece % pieces * PIECE))) token = op.m;
          if constexpr (RAGGED) {
            const unsigned pair = load_shared_pair(scratch + piece / pieces * PITCH + piece % pieces * 4);
            if (token < op.m && feature < op.n) store_ragged(op, token, feature, pair);
            continue;
          }
          int4 values = make_int4(0, 0, 0, 0);
          if (STORES_SCALED && !SWAP_AB && piece % pieces * PIECE >= wide) token = op.m;
          else values = load_shared_128(scratch + piece / pieces * PITCH + piece % pieces * 16);
          if (token < op.m && feature < op.n && (!STORES_SCALED || op.out))
            *reinterpret_cast<int4*>(op.out + (long long)token * op.n + feature) = values;
          if constexpr (STORES_SCALED) store_scaled<SQUARED>(op, token, feature, values, gains[SWAP_AB ? b : c / 64]);
        }
        if (b + 1 < BLOCKS || c + CHUNK < COLUMNS) synchronise();
      }
    }
  }
};
