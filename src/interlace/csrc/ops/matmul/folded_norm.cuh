// RMS normalisation folded into matmuls: no op of its own reads and writes the rows.
//
//   out[t, n] = factor[t] * sum_k (x * gain)[t, k] * weight[n, k],    factor[t] = rsqrt(mean_k(x[t, k]^2) + EPS)
//
// The producer of x stores x * gain (`scaled`) and, for each SQUARED columns, the sum of squares of a row (`squares`);
// the consumer multiplies its accumulators by the factors of their rows. Or the consumer does all of it itself
// (NORMALISES): it loads x and the gains (`x_scale`). kernels/folded_norm.py has the meaning.
//
//   Factors        the factors of a tile's rows from a producer's squares, for threads of a warpgroup
//   Scaled         tokens of a stage as the 64-row operand: scaled, and squared, in registers
//   store_scaled   what a producer stores
#pragma once
#include "epilogue.cuh"

DEVICE float load_shared_float(unsigned at) {
  unsigned bits;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits) : "r"(at) : "memory");
  return __uint_as_float(bits);
}
// Sum over LANES neighbouring lanes, equal in all of them.
template <int LANES> DEVICE float sum_of(float value) {
#pragma unroll
  for (int distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

// Factors of ROWS rows of NORM_K elements. 8 threads of a warpgroup add up the sums of squares of a row, 16 rows at a
// time. If a thread has few of them (EARLY) it loads all at once, and adds them after the last stage. Otherwise it
// loads a piece in each of the last stages and adds it two stages later; in the first stages a block catches up with
// its ring.
template <int ROWS, class Config> struct Factors {
  static constexpr int K = Config::NORM_K, SQUARED = Config::SQUARED;
  static constexpr int ROUNDS = (ROWS + 15) / 16, ROW_SQUARES = SQUARED > 0 ? (K + SQUARED - 1) / SQUARED : 1;
  static constexpr int THREAD_SQUARES = K > 0 ? (ROW_SQUARES + 7) / 8 : 1;
  static constexpr bool EARLY = ROUNDS * THREAD_SQUARES <= 16;
  static constexpr int MOST = WARPGROUPS > 2 ? 8 : 16, PIECES = (THREAD_SQUARES + MOST - 1) / MOST;
  static constexpr int PIECE_SQUARES = ((THREAD_SQUARES + PIECES - 1) / PIECES + 3) / 4 * 4;  // loaded four at a time
  static constexpr int IN_FLIGHT_PIECES = 2, STEPS = ROUNDS * PIECES + IN_FLIGHT_PIECES;
  float squares[EARLY ? ROUNDS : IN_FLIGHT_PIECES][EARLY ? THREAD_SQUARES : PIECE_SQUARES];
  float sum = 0.0f;
  int next = 0;  // piece to load

  DEVICE static int row_of(int round) { return round * 16 + threadIdx.x % 128 / 8; }
  // Loads all; `first` is the tile's first row.
  DEVICE void load(const Epilogue& op, int first) {
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
      for (int e = 0; e < THREAD_SQUARES; ++e) {
        const int row = first + row_of(r), at = e * 8 + threadIdx.x % 8;
        squares[r][e] = 0.0f;
        if (row_of(r) < ROWS && row < op.m && at < ROW_SQUARES)
          squares[r][e] = load_now(op.x_squares + (long long)row * ROW_SQUARES + at);
      }
  }
  // Stores the factors of all rows to shared memory, a float each.
  DEVICE void store(unsigned factors) {
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      sum = 0.0f;
#pragma unroll
      for (int e = 0; e < THREAD_SQUARES; ++e) sum += squares[r][e];
      store_factor(r, factors);
    }
  }
  // Adds the oldest piece in flight and loads the next; stores the factor of a row that is complete.
  DEVICE void step(const Epilogue& op, int first, unsigned factors) {
#pragma unroll
    for (int n = 0; n < IN_FLIGHT_PIECES; ++n)  // unrolled: registers have no index
      if (next % IN_FLIGHT_PIECES == n) {
        if (next >= IN_FLIGHT_PIECES) add_piece(squares[n], factors);
        load_piece(op, first, squares[n]);
      }
    ++next;
  }
  DEVICE void finish(const Epilogue& op, int first, unsigned factors) {
#pragma unroll 1
    while (next < STEPS) step(op, first, factors);
  }
  DEVICE void load_piece(const Epilogue& op, int first, float (&values)[PIECE_SQUARES]) const {
    const int round = next / PIECES, row = row_of(round);
    const float* const row_squares = op.x_squares + (long long)(first + row) * ROW_SQUARES;
    const bool inside = round < ROUNDS && row < ROWS && first + row < op.m;
#pragma unroll
    for (int e = 0; e < PIECE_SQUARES; e += 4) {
      const int at = (next % PIECES * PIECE_SQUARES + e) * 8 + threadIdx.x % 8 * 4;
      float4 four = make_float4(0, 0, 0, 0);
      if constexpr (ROW_SQUARES % 4 == 0) {
        if (inside && at < ROW_SQUARES) four = load_four_now(row_squares + at);
      } else {
        if (inside && at < ROW_SQUARES) four.x = load_now(row_squares + at);
        if (inside && at + 1 < ROW_SQUARES) four.y = load_now(row_squares + at + 1);
        if (inside && at + 2 < ROW_SQUARES) four.z = load_now(row_squares + at + 2);
        if (inside && at + 3 < ROW_SQUARES) four.w = load_now(row_squares + at + 3);
      }
      values[e] = four.x, values[e + 1] = four.y, values[e + 2] = four.z, values[e + 3] = four.w;
    }
  }
  DEVICE void add_piece(const float (&values)[PIECE_SQUARES], unsigned factors) {
    const int piece = next - IN_FLIGHT_PIECES;
#pragma unroll
    for (int e = 0; e < PIECE_SQUARES; ++e) sum += values[e];
    if (piece % PIECES < PIECES - 1) return;
    store_factor(piece / PIECES, factors);
    sum = 0.0f;
  }
  DEVICE void store_factor(int round, unsigned factors) const {
    const float factor = rsqrtf(sum_of<8>(sum) / K + Config::EPS);
    const int row = row_of(round);
    if (threadIdx.x % 8 == 0 && row < ROWS) store_shared_32(factors + row * 4, __float_as_uint(factor));
  }
};

// Tokens of a stage in registers, multiplied by their gains; the sums of their squares go to Rows.
template <int PANELS, int BLOCKS, int PITCH> struct Scaled : Tall<PANELS, 1, BLOCKS, PITCH> {
  // Offsets in a slot of what a lane reads of `count` rows of an item and of the gains, which have a line for each
  // panel and no swizzle; and sums of squares of the two rows that its quad has of each 64.
  struct Rows {
    unsigned offsets[BLOCKS], gains = threadIdx.x % 32 / 8 * 16;
    float squares[BLOCKS][2] = {};

    DEVICE explicit Rows(int count) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        offsets[b] = Scaled::offset_of(b, count);
        pin(offsets[b]);
      }
      pin(gains);
    }
    // Keeps a value in a register; with three warpgroups there is none, and it is computed anew for each panel.
    DEVICE static void pin(unsigned& value) {
      if (WARPGROUPS < 3) asm volatile("" : "+r"(value));
    }
  };
  // A thread adds 8 pairs of squares of a row of a panel in bf16: four, the other four, then both sums. That takes 26
  // instructions for 64 squares. Each sum has been rounded five times: the error is at most 5 / 256, 2e-4 to 8e-4 for
  // rows of thousands, and at most 5.3e-3 for rows whose elements have one magnitude (benchmarks/notes).
  DEVICE void load(unsigned slot, unsigned gains, Rows& rows) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) this->load_block(b, slot + rows.offsets[b]);
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
      unsigned gain[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) load_matrices(gain[half], gains + rows.gains + p * 128 + half * 64);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        unsigned squares[2][2] = {};
#pragma unroll
        for (int n = 0; n < 16; ++n) {
          unsigned& pair = this->pieces[p][0][b][n / 4][n % 4];
          squares[n % 2][n / 8] = plus_squares(squares[n % 2][n / 8], pair);
          pair = times(pair, gain[n / 8][n / 2 % 4]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned sum = plus(squares[r][0], squares[r][1]);
          rows.squares[b][r] += low_of(sum) + high_of(sum);
        }
      }
    }
  }
};
// Multiplies accumulators by the factors of their rows, from a thread's sums of squares.
template <class Config, int GATES, int BLOCKS, int COUNT>
DEVICE void normalise_rows(float (&accumulators)[GATES][BLOCKS][COUNT], const float (&squares)[BLOCKS][2]) {
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factors[r] = rsqrtf(sum_of<4>(squares[b][r]) / Config::NORM_K + Config::EPS);
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int t = 0; t < COUNT; ++t) accumulators[g][b][t] *= factors[t / 2 % 2];
  }
}

// Loads the next norm's weight for the 8 of each 64 features that a thread stores, from feature `first` on.
template <int COUNT> DEVICE void load_gains(const Epilogue& op, int first, int4 (&gains)[COUNT]) {
  const int feature = first + threadIdx.x % 8 * 8;
#pragma unroll
  for (int g = 0; g < COUNT; ++g) {
    gains[g] = make_int4(0, 0, 0, 0);
    if (feature + g * 64 < op.n) gains[g] = load_constant_now(op.scale + feature + g * 64);
  }
}
// Stores 8 scaled features of a token, and the sums of squares. 8 neighbouring threads have 64 features of it; `piece`:
// the values in out.
template <int SQUARED> DEVICE void store_scaled(const Epilogue& op, int token, int feature, int4 piece, int4 gain) {
  const unsigned values[4] = {(unsigned)piece.x, (unsigned)piece.y, (unsigned)piece.z, (unsigned)piece.w};
  const unsigned scales[4] = {(unsigned)gain.x, (unsigned)gain.y, (unsigned)gain.z, (unsigned)gain.w};
  const bool inside = token < op.m && feature < op.n;
  int scaled[4];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = as_float(values[i] & 0xffff), high = as_float(values[i] >> 16);
    sum += low * low + high * high;
    scaled[i] = (int)as_pair(low * as_float(scales[i] & 0xffff), high * as_float(scales[i] >> 16));
  }
  sum = sum_of<SQUARED / 8>(inside ? sum : 0.0f);
  if (!inside) return;
  *reinterpret_cast<int4*>(op.scaled + (long long)token * op.n + feature) =
      make_int4(scaled[0], scaled[1], scaled[2], scaled[3]);
  if (feature % SQUARED == 0) op.squares[(long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED] = sum;
}
