// Cooperative split-K fix-up by rows: each part of a tile adds, finishes and stores its share of the tokens.
//
// For tiles whose rows are tokens and whose columns are scaled: 64 columns of a token have a sum of squares together
// (folded_norm.cuh), so parts cannot share columns. Of each 8 tokens a part has ROWS, which are in neighbouring lanes:
//
//   three parts    token of 8   0 1 2   3 4 5   6 7
//                  part           0       1      2
//
// Partials are rows of 64 floats in the workspace, words as in fix_up.cuh. A thread takes 8 columns of a token from
// there, as it will store them; its part's own partials lie in the scratch. They are added in the order of k for all
// tokens, so that a token's result does not depend on its row.
#pragma once
#include "output.cuh"

template <class Config> struct RowShares : Partials<Config> {
  typedef Partials<Config> Base;
  typedef Accumulators<Config> Acc;
  typedef TileOutput<Config> Output;
  static constexpr int BM = Config::BM, BN = Config::BN, SHARES = Config::SHARES, BLOCKS = Acc::BLOCKS;
  static constexpr int ROWS = (8 + SHARES - 1) / SHARES;            // of each 8 tokens, of a share
  static constexpr int TOKENS = 8 * ROWS, CHUNKS = (BN + 63) / 64;  // of each 64 tokens; pieces of 64 columns
  static constexpr int PIECES = (TOKENS * 8 + 127) / 128;           // of a thread, 8 columns each
  static constexpr int OTHERS = SHARES - 1, VECTORS = PIECES * OTHERS * 2;
  static constexpr int ROW_BYTES = 64 * 4 + 16;  // of a token in the scratch, so that rows lie in different banks
  static_assert(TOKENS * ROW_BYTES <= Output::FACTORS, "own partials fit the scratch");

  // A token of a share as a row of its 64; 64 or more, or another share's, if the share has fewer.
  DEVICE static int row_of(int share, int token) { return token / ROWS * 8 + share * ROWS + token % ROWS; }
  // Partials of 64 tokens and 64 columns of a share, from part `other` of those that do not own it.
  DEVICE static float* partials_of(const Launch& launch, const Item& item, int share, int other, int block, int chunk) {
    const long long number = (share * OTHERS + other) * WARPGROUPS + warpgroup();
    return launch.workspace + ((long long)item.slot + ((number * BLOCKS + block) * CHUNKS + chunk) * ROWS) * 512;
  }
  // Calls f(token of its share, column, values) for two columns of each 8 of a chunk of 64 that a thread has.
  template <class F> DEVICE static void each_pair(const float (&accumulators)[BN / 2], int chunk, F f) {
    const int thread = threadIdx.x % 128, lane = thread % 32, token = thread / 32 * 2 * ROWS + lane / 4 % ROWS;
#pragma unroll
    for (int j = chunk * 8; j < BN / 8 && j < chunk * 8 + 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const pair = accumulators + j * 4 + h * 2;
        f(token + h * ROWS, j % 8 * 8 + lane % 4 * 2, make_float2(pair[0], pair[1]));
      }
  }
  // A thread's pieces of 64 tokens and 64 columns.
  struct Pieces {
    const Item& item;
    const int block, chunk;
    float* first;  // of the partials of the first other part
    DEVICE Pieces(const Launch& launch, const Item& item, int block, int chunk)
        : item(item), block(block), chunk(chunk), first(partials_of(launch, item, item.part, 0, block, chunk)) {}
    DEVICE static int token(int piece) { return (piece * 128 + (int)threadIdx.x % 128) / 8; }
    DEVICE static int column() { return threadIdx.x % 8 * 8; }
    // True if the piece is in the tile and in the share.
    DEVICE bool is_in(int piece) const {
      const int at = token(piece);
      return at < TOKENS && item.part * ROWS + at % ROWS < 8 && chunk * 64 + column() < BN;
    }
    DEVICE bool has(int n) const { return is_in(n / (OTHERS * 2)); }
    DEVICE float4* operator()(int n) const {
      const int piece = n / (OTHERS * 2), other = n / 2 % OTHERS;
      float* const rows = first + (long long)other * WARPGROUPS * BLOCKS * CHUNKS * ROWS * 512;
      return reinterpret_cast<float4*>(rows + token(piece) * 64 + column()) + n % 2;
    }
  };
  // 8 values of a row.
  DEVICE static int4 residuals_of(const Epilogue& op, int token, int feature) {
    if (token >= op.residual_rows || feature >= op.n) return make_int4(0, 0, 0, 0);
    const float4 v = load_four_now(reinterpret_cast<const float*>(op.residual + (long long)token * op.n + feature));
    return make_int4(__float_as_int(v.x), __float_as_int(v.y), __float_as_int(v.z), __float_as_int(v.w));
  }
  DEVICE static void add(float4& sum, const float4& value) {
    sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
  }

  DEVICE static void finish(const Launch& launch, const Item& item, const Epilogue& op,
                            const typename Acc::Tile& accumulators, const int4 (&gains)[Output::GAINS]) {
    const int share = threadIdx.x % 32 / 4 / ROWS;  // that has the thread's rows
    random_delay(launch, item, 2);
    if (share != item.part) {
#pragma unroll
      for (int n = 0; n < BLOCKS * CHUNKS; ++n) {
        float* const to = partials_of(launch, item, share, item.part - (item.part > share), n / CHUNKS, n % CHUNKS);
        each_pair(accumulators[0][n / CHUNKS], n % CHUNKS, [&](int token, int column, float2 pair) {
          fill_two_words(reinterpret_cast<float2*>(to + token * 64 + column), pair.x, pair.y);
        });
      }
    }
    const unsigned scratch = scratch_of(warpgroup());
#pragma unroll
    for (int n = 0; n < BLOCKS * CHUNKS; ++n) {
      const int block = n / CHUNKS, chunk = n % CHUNKS;
      if (n) synchronise();
      if (share == item.part)
        each_pair(accumulators[0][block], chunk, [&](int token, int column, float2 pair) {
          store_shared_64(scratch + token * ROW_BYTES + column * 4, pair);
        });
      const Pieces pieces(launch, item, block, chunk);
      const int first = item.i * BM + (warpgroup() * BLOCKS + block) * 64;
      const int feature = item.j * BN + chunk * 64 + pieces.column();
      float4 values[VECTORS];
      Base::load(values, pieces);
      int tokens[PIECES];
      int4 residuals[PIECES], biases = make_int4(0, 0, 0, 0);
      if (Config::BIAS && feature < op.n) biases = load_constant_now(op.bias + feature);
#pragma unroll
      for (int p = 0; p < PIECES; ++p) {
        tokens[p] = pieces.is_in(p) ? first + row_of(item.part, pieces.token(p)) : op.m;
        residuals[p] =
            Config::RESIDUAL && tokens[p] < op.m ? residuals_of(op, tokens[p], feature) : make_int4(0, 0, 0, 0);
      }
      synchronise();
      Base::await(launch, item, values, pieces);
#pragma unroll
      for (int p = 0; p < PIECES; ++p) {
        if (p * 128 + (int)threadIdx.x % 128 / 32 * 32 >= TOKENS * 8) break;  // alike in all lanes
        float4 sums[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned at = scratch + pieces.token(p) * ROW_BYTES + pieces.column() * 4 + half * 16;
          const int4 bits = pieces.is_in(p) ? load_shared_128(at) : make_int4(0, 0, 0, 0);
          const float4 own = make_float4(__int_as_float(bits.x), __int_as_float(bits.y), __int_as_float(bits.z),
                                         __int_as_float(bits.w));
          float4& sum = sums[half] = make_float4(0, 0, 0, 0);
#pragma unroll
          for (int other = 0; other < OTHERS; ++other) {
            if (other == item.part) add(sum, own);
            add(sum, values[(p * OTHERS + other) * 2 + half]);
          }
          if (item.part == OTHERS) add(sum, own);
        }
        const int4 stored = make_int4((int)pair_of(sums[0].x, sums[0].y, biases.x, residuals[p].x),
                                      (int)pair_of(sums[0].z, sums[0].w, biases.y, residuals[p].y),
                                      (int)pair_of(sums[1].x, sums[1].y, biases.z, residuals[p].z),
                                      (int)pair_of(sums[1].z, sums[1].w, biases.w, residuals[p].w));
        if (tokens[p] < op.m && feature < op.n && op.out)
          *reinterpret_cast<int4*>(op.out + (long long)tokens[p] * op.n + feature) = stored;
        store_scaled<Config::SQUARED>(op, tokens[p], feature, stored, gains[chunk]);
      }
    }
  }
  // Two elements of the output; two of the bias and of the residual.
  DEVICE static unsigned pair_of(float low, float high, int bias, int residual) {
    low = Output::value_of(low, low, as_float(bias & 0xffff));
    high = Output::value_of(high, high, as_float(bias >> 16 & 0xffff));
    return as_pair(low + as_float(residual & 0xffff), high + as_float(residual >> 16 & 0xffff));
  }
};
