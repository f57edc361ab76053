"""Tiles of few weight rows in CUDA C++, for few tokens: 8 to 56 rows and all of k, without parts.

A step of one to sixteen tokens is over when the last of a chain of products is, and each is short. Tiles of 64 rows,
what the tensor core takes at a time from shared memory, are then too few for all SMs, and their parts have to meet.
So here the warps share the reduction: each multiplies 16 of each 64 elements of k, by ``mma`` out of registers, and
their sums meet in shared memory. Tokens are the 16-row operand, weights the other, 8 rows of them at a time:

    k of a panel      0 .. 15    16 .. 31    32 .. 47    48 .. 63
    warp                 0           1           2           3        (of each warpgroup; those take stages in turn)

A stage is one bulk load of a box of three dimensions: elements of a panel, rows, panels. So both operands lie as they
do for the other tiles, in panels of 64 elements with the 128-byte swizzle. Of the tokens only those are loaded that
there are; products of others are of whatever lies there, and nobody stores them.
"""

from __future__ import annotations

from interlace.kernels.cuda.matrices import MATRICES

SKINNY = MATRICES + r"""
DEVICE unsigned load_pair_now(const ELEMENT* at) {
  unsigned pair;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(pair) : "l"(at) : "memory");
  return pair;
}
DEVICE float4 load_four_now(const float* at) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
  return v;
}
DEVICE float low_of(unsigned pair) { return as_float(pair & 0xffff); }
DEVICE float high_of(unsigned pair) { return as_float(pair >> 16); }

template <int BM_, int BN_, int BK_, int ROWS_, int GATES_, int ACTIVATION_, bool BIAS, bool RESIDUAL,
          int SQUARED = 0, bool LEAVES = false, int NORMALISED = 0, unsigned EPS_BITS = 0>
struct Skinny {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, ROWS = ROWS_, GATES = GATES_, ACTIVATION = ACTIVATION_;
  static constexpr int PANELS = BK / 64, BLOCKS = BN / 8, HALVES = BM / 8;  // of 8 weight rows, of 8 tokens
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + GATES * BN * BK * 2 - 1) / (GATES * BN * BK * 2);
  // Sums of odd and of even panels apart, where there are too few to keep the tensor core busy.
  static constexpr int CHAINS = GATES * BLOCKS < 4 ? 2 : 1;
  static constexpr int ALL_WARPS = WARPGROUPS * 4;
  // Panels whose operands are loaded at once.
  static constexpr int AHEAD = BLOCKS * GATES <= 4 ? 4 : 2;
  // Of what warps leave for each other, floats of a token: banks differ from one token to the next three.
  static constexpr int WIDTH = BLOCKS % 2 ? BN : BN + 8;
  // A thread has two neighbouring features of a token, in each round of tokens.
  static constexpr int PAIRS = BN / 2, AT_ONCE = THREADS / PAIRS, ROUNDS = (BM + AT_ONCE - 1) / AT_ONCE;
  // So many threads add up the squares of a token, four numbers at a time.
  static constexpr int TEAM = THREADS / BM < 32 ? THREADS / BM : 32, SQUARES = SQUARED > 0 ? NORMALISED / SQUARED : 0;
  static constexpr int FOURS = NORMALISED > 0 ? (SQUARES / 4 + TEAM - 1) / TEAM : 1;

  DEVICE static void load_independent(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.j * BN);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      tickets.look(launch);
      open_independent(stage, n, IN_FLIGHT, GATES * PANELS * BN * 128);
      const unsigned slot = uniform(independent_slot(stage.slot)), full = uniform(independent_full(stage.slot));
      const int panel = uniform(k / 64);
      if (first_lane()) {
        if (k == item.k_lo) prefetch_map(op.x);
        if (GATES == 2) tma_load_3d(slot, op.gate, 0, row, panel, full);
        tma_load_3d(slot + (GATES - 1) * PANELS * BN * 128, op.weight, 0, row, panel, full);
      }
      stage.advance();
      ++n;
    }
  }
  DEVICE static void load_dependent(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.i * BM);
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += BK) {
      open_dependent(stage, PANELS * ROWS * 128);
      const unsigned slot = uniform(dependent_slot(stage.slot)), full = uniform(dependent_full(stage.slot));
      const int panel = uniform(k / 64);
      if (first_lane()) tma_load_3d(slot, op.x, 0, row, panel, full);
      stage.advance();
    }
  }

  // Where a lane's row of the matrices of a panel begins: `line` counts rows of 128 bytes from a multiple of 1024.
  DEVICE static unsigned place(unsigned slot, int line, int piece) {
    return slot + line * 128 + ((piece ^ line & 7) << 4);
  }
  // The tokens of two panels, 16 rows of each: low pieces of 8 of k, then high ones.
  DEVICE static void load_tokens(unsigned (&first)[4], unsigned (&second)[4], unsigned slot, int panel, int next) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 2;
    if constexpr (HALVES > 1) {
      const int token = min(lane % 16, ROWS - 1);
      load_matrices(first, place(slot, panel * ROWS + token, column + lane / 16));
      load_matrices(second, place(slot, next * ROWS + token, column + lane / 16));
    } else {  // 8 rows; the others are none
      unsigned both[4];
      const int token = min(lane % 8, ROWS - 1), mine = lane < 16 ? panel : next;
      load_matrices(both, place(slot, mine * ROWS + token, column + lane / 8 % 2));
      first[0] = both[0], first[2] = both[1], second[0] = both[2], second[2] = both[3];
      first[1] = first[3] = second[1] = second[3] = 0;
    }
  }
  // The weights of a panel, 8 rows: low and high; and of the 8 rows behind them, or else of the same again.
  DEVICE static void load_weights(unsigned (&weights)[4], unsigned slot, int panel, int block) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 2;
    const int second = block + 1 < BLOCKS ? lane / 16 : 0;
    const int line = panel * BN + (block + second) * 8 + lane % 8;
    load_matrices(weights, place(slot, line, column + lane / 8 % 2));
  }

  // What an item's epilogue takes beside the sums, on its way while the products are.
  struct Extras {
    unsigned residual[ROUNDS], bias, scale;
    float4 squares[FOURS];
    // Before the item's waits: weights.
    DEVICE void load_early(const Epilogue& op, int feature) {
      bias = scale = 0;
      if (feature >= op.n) return;
      if (BIAS) bias = load_pair_now(op.bias + feature);
      if (LEAVES) scale = load_pair_now(op.scale + feature);
    }
    DEVICE void load(const Epilogue& op, int first, int feature) {
      const int t = thread();
#pragma unroll
      for (int r = 0; r < ROUNDS && RESIDUAL; ++r) {
        const int at = r * AT_ONCE + t / PAIRS, token = first + at;
        residual[r] = 0;
        if (at < BM && token < op.m && feature < op.n)
          residual[r] = load_pair_now(op.residual + (long long)token * op.n + feature);
      }
#pragma unroll
      for (int f = 0; f < FOURS && NORMALISED > 0; ++f) {
        const int token = first + t / TEAM, at = f * TEAM + t % TEAM;
        squares[f] = make_float4(0, 0, 0, 0);
        if (t / TEAM < BM && token < op.m && at < SQUARES / 4)
          squares[f] = load_four_now(op.x_squares + (long long)token * SQUARES + at * 4);
      }
    }
    // The factor of the team's token.
    DEVICE float factor() const {
      float sum = 0.0f;
#pragma unroll
      for (int f = 0; f < FOURS; ++f) sum += (squares[f].x + squares[f].y) + (squares[f].z + squares[f].w);
      return rsqrtf(sum_of<TEAM>(sum) / NORMALISED + __uint_as_float(EPS_BITS));
    }
  };

  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    float sums[CHAINS][GATES][BLOCKS][4];
#pragma unroll
    for (int i = 0; i < CHAINS * GATES * BLOCKS * 4; ++i) (&sums[0][0][0][0])[i] = 0.0f;
    const int feature = item.j * BN + thread() % PAIRS * 2;
    Extras extras;
    extras.load_early(op, feature);
    keep_last(item, stage, (item.k_hi - item.k_lo + BK - 1) / BK);
    await(dependent_full(stage.slot), stage.phase);
    extras.load(op, item.i * BM, feature);
#pragma unroll 1
    for (int k = item.k_lo, turn = 0; k < item.k_hi; k += BK, ++turn) {
      await_stage(stage);
      if (WARPGROUPS > 1 && turn % WARPGROUPS != warpgroup()) {  // another's; seen before it is handed back
        release(stage, stage.slot);
        stage.advance();
        continue;
      }
      const unsigned weights = independent_slot(stage.slot), tokens = dependent_slot(stage.slot);
#pragma unroll
      for (int p = 0; p < PANELS; p += AHEAD) {
        // All loads of some panels before the first product.
        unsigned of_tokens[AHEAD][4], of_weights[AHEAD][GATES][(BLOCKS + 1) / 2][4];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
          const int panel = p + a;
          if (panel >= PANELS) break;
          if (a % 2 == 0) load_tokens(of_tokens[a], of_tokens[a + 1], tokens, panel, min(panel + 1, PANELS - 1));
#pragma unroll
          for (int g = 0; g < GATES; ++g)
#pragma unroll
            for (int b = 0; b < BLOCKS; b += 2) load_weights(of_weights[a][g][b / 2], weights, g * PANELS + panel, b);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
          if (p + a >= PANELS) break;
#pragma unroll
          for (int g = 0; g < GATES; ++g)
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b)
              multiply(sums[a % CHAINS][g][b], of_tokens[a], of_weights[a][g][b / 2][b % 2 * 2],
                       of_weights[a][g][b / 2][b % 2 * 2 + 1]);
        }
      }
      __syncwarp();
      release(stage, stage.slot);
      stage.advance();
    }
    finish(op, item, sums, extras, feature);
    if (WARPGROUPS > 1) synchronise_block();
  }

  DEVICE static void finish(const Epilogue& op, const Item& item, const float (&sums)[CHAINS][GATES][BLOCKS][4],
                            const Extras& extras, int feature) {
    float* const left = scratch<float>();
    float* const factors = left + ALL_WARPS * GATES * ROWS * WIDTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
          const int token = h * 8 + lane / 4;
          const float* const first = &sums[0][g][b][h * 2];
          const float* const other = &sums[CHAINS - 1][g][b][h * 2];
          float2 value = make_float2(first[0], first[1]);
          if (CHAINS > 1) value.x += other[0], value.y += other[1];
          float* const at = left + ((warp * GATES + g) * ROWS + token) * WIDTH + b * 8 + lane % 4 * 2;
          if (token < ROWS) *reinterpret_cast<float2*>(at) = value;
        }
    if constexpr (NORMALISED > 0) {
      const float factor = extras.factor();
      if (thread() % TEAM == 0 && thread() / TEAM < BM) factors[thread() / TEAM] = factor;
    }
    if (WARPGROUPS > 1) synchronise_block();
    else synchronise();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int at = r * AT_ONCE + thread() / PAIRS, token = item.i * BM + at;
      const bool mine = thread() < AT_ONCE * PAIRS;  // the threads behind have what the next round has
      const bool inside = mine && at < ROWS && token < op.m && feature < op.n;
      float2 value[GATES];
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        value[g] = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < ALL_WARPS && inside; ++w) {
          const float2 part = *reinterpret_cast<const float2*>(left + ((w * GATES + g) * ROWS + at) * WIDTH +
                                                               thread() % PAIRS * 2);
          value[g].x += part.x, value[g].y += part.y;
        }
        if (NORMALISED > 0 && inside) value[g].x *= factors[at], value[g].y *= factors[at];
      }
      float2 out = value[GATES - 1];
      if (BIAS) out.x += low_of(extras.bias), out.y += high_of(extras.bias);
      out.x = activated<GATES, ACTIVATION>(out.x, value[0].x);
      out.y = activated<GATES, ACTIVATION>(out.y, value[0].y);
      if (RESIDUAL) out.x += low_of(extras.residual[r]), out.y += high_of(extras.residual[r]);
      const unsigned pair = as_pair(out.x, out.y);
      const long long where = (long long)token * op.n + feature;
      if (inside && (!LEAVES || op.out)) *reinterpret_cast<unsigned*>(op.out + where) = pair;
      if constexpr (LEAVES) {
        const float low = low_of(pair), high = high_of(pair);
        const float sum = sum_of<SQUARED / 2>(inside ? low * low + high * high : 0.0f);
        if (inside) {
          *reinterpret_cast<unsigned*>(op.scaled + where) =
              as_pair(low * low_of(extras.scale), high * high_of(extras.scale));
          if (feature % SQUARED == 0)
            op.squares[(long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED] = sum;
        }
      }
    }
  }
};
"""
