"""Tiles of few weight rows in CUDA C++, for few tokens: 8 to 56 rows and all of k, without parts.

A step of one to sixteen tokens is over when the last of a chain of products is, and each is short. Tiles of 64 rows,
what the tensor core takes at a time from shared memory, are then too few for all SMs, and their parts have to meet.
So here the warps share the reduction: each multiplies 16 of each 64 elements of k, by ``mma`` out of registers, and
their sums meet in shared memory. Weights are the operand of 16 rows, tokens the other, 8 at a time:

    k of a panel      0 .. 15    16 .. 31    32 .. 47    48 .. 63
    warp                 0           1           2           3        (of each warpgroup; those take stages in turn)

A stage is one bulk load of a box of three dimensions: elements of a panel, rows, panels. So both operands lie as they
do for the other tiles, in panels of 64 elements with the 128-byte swizzle. Of the tokens only those are loaded that
there are; products of others are of whatever lies there, and nobody stores them.

Weights of a stage or two are taken into registers, and their slots handed back, before the tokens are there: a block's
registers hold as much as two stages, and while an item waits for what it depends on the ring fills with what comes
behind it.
"""

from __future__ import annotations

from interlace.kernels.bodies import HELD_REGISTERS
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

#ifndef REGISTERS_TO_HOLD
#define REGISTERS_TO_HOLD """ + f"{HELD_REGISTERS[0]}" + r"""
#endif
constexpr int HELD_REGISTERS = REGISTERS_TO_HOLD;  // of a thread, for weights and what else an item has
template <int BM_, int BN_, int BK_, int ROWS_, int GATES_, int ACTIVATION_, bool BIAS, bool RESIDUAL,
          bool RAGGED, int SQUARED = 0, bool LEAVES = false, int NORMALISED = 0, unsigned EPS_BITS = 0>
struct Skinny {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, ROWS = ROWS_, GATES = GATES_, ACTIVATION = ACTIVATION_;
  static constexpr int PANELS = BK / 64, TALL = (BN + 15) / 16, WIDE = BM / 8;  // of 16 weight rows, of 8 tokens
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + GATES * BN * BK * 2 - 1) / (GATES * BN * BK * 2);
  // Sums of some panels apart, where there are too few to keep the tensor core busy.
  static constexpr int TILES = GATES * TALL * WIDE, CHAINS = TILES < 4 ? 4 / TILES : 1;
  static constexpr int ALL_WARPS = WARPGROUPS * 4;
  // Of what warps leave for each other, floats of a token: banks differ over 8 features and over every other token.
  static constexpr int WIDTH = BN + 4;
  // A thread has two neighbouring features of a token, in each round of tokens.
  static constexpr int PAIRS = BN / 2, AT_ONCE = THREADS / PAIRS, ROUNDS = (BM + AT_ONCE - 1) / AT_ONCE;
  // So many threads add up the squares of a token, four numbers at a time.
  static constexpr int TEAM = THREADS / BM < 32 ? THREADS / BM : 32, SQUARES = SQUARED > 0 ? NORMALISED / SQUARED : 0;
  // Of one thread, and how many are under way at once: registers for more would be those of weights.
  static constexpr int FOURS = NORMALISED > 0 ? (SQUARES / 4 + TEAM - 1) / TEAM : 0, ASKED = FOURS < 2 ? FOURS : 2;
  // Registers of a stage's weights, of what else there is while they are held, and stages that are. Where warpgroups
  // take stages in turns, each has one.
  static constexpr int OF_STAGE = PANELS * GATES * TALL * 4;
  static constexpr int OTHERS = CHAINS * TILES * 4 + ASKED * 4 + (RESIDUAL ? ROUNDS : 0) + (WIDE - 1) * 8;
  static constexpr int HELD =
      WARPGROUPS == 1 && OF_STAGE + OTHERS < HELD_REGISTERS ? (HELD_REGISTERS - OTHERS) / OF_STAGE : 1;

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
  // Tokens of a panel, or, if they are 8, of two: low and high pieces of 8 of k, of each 8 tokens.
  DEVICE static void load_tokens(unsigned (&to)[4], unsigned slot, int panel) {
    const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2, second = lane / 16;
    const int token = min(WIDE > 1 ? second * 8 + lane % 8 : lane % 8, ROWS - 1);
    const int mine = WIDE > 1 ? panel : min(panel + second, PANELS - 1);
    load_matrices(to, place(slot, mine * ROWS + token, piece));
  }
  // What a warp multiplies of a stage's weights, in registers. Where 8 rows are left over, they are there twice.
  struct Weights {
    unsigned pieces[PANELS][GATES][TALL][4];
    DEVICE void load(unsigned slot) {
      const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 16;
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < TALL; ++t) {
            const int row = t * 16 + lane % 8 + (t * 16 + 8 < BN ? lane / 8 % 2 * 8 : 0);
            load_matrices(pieces[p][g][t], place(slot, (g * PANELS + p) * BN + row, piece));
          }
    }
  };
  struct Sums {
    float of[CHAINS][GATES][TALL][WIDE][4] = {};
    DEVICE void add(const Weights& weights, unsigned slot) {
      unsigned tokens[4];
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        if (WIDE > 1 || p % 2 == 0) load_tokens(tokens, slot, p);
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < TALL; ++t)
#pragma unroll
            for (int w = 0; w < WIDE; ++w) {
              const int at = WIDE > 1 ? w * 2 : p % 2 * 2;
              multiply(of[p % CHAINS][g][t][w], weights.pieces[p][g][t], tokens[at], tokens[at + 1]);
            }
      }
    }
    // Of a lane's element, over the chains.
    DEVICE float whole(int g, int t, int w, int i) const {
      float sum = of[0][g][t][w][i];
#pragma unroll
      for (int c = 1; c < CHAINS; ++c) sum += of[c][g][t][w][i];
      return sum;
    }
  };

  // What an item's epilogue takes beside the sums, on its way while the products are.
  struct Extras {
    unsigned residual[ROUNDS], bias, scale;
    float4 squares[ASKED > 0 ? ASKED : 1];
    float sum = 0.0f;
    int asked = 0;
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
      ask(op, first);
    }
    // The next squares, if there are more.
    DEVICE void ask(const Epilogue& op, int first) {
      const int t = thread();
#pragma unroll
      for (int f = 0; f < ASKED; ++f) {
        const int token = first + t / TEAM, at = (asked + f) * TEAM + t % TEAM;
        squares[f] = make_float4(0, 0, 0, 0);
        if (t / TEAM < BM && token < op.m && at < SQUARES / 4)
          squares[f] = load_four_now(op.x_squares + (long long)token * SQUARES + at * 4);
      }
      asked += ASKED;
    }
    DEVICE void add() {
#pragma unroll
      for (int f = 0; f < ASKED; ++f) sum += (squares[f].x + squares[f].y) + (squares[f].z + squares[f].w);
    }
    DEVICE void go_on(const Epilogue& op, int first) {
      if (FOURS <= ASKED || asked >= FOURS) return;
      add();
      ask(op, first);
    }
    // The factor of the team's token.
    DEVICE float factor(const Epilogue& op, int first) {
#pragma unroll 1
      while (FOURS > ASKED && asked < FOURS) go_on(op, first);
      add();
      return rsqrtf(sum_of<TEAM>(sum) / NORMALISED + __uint_as_float(EPS_BITS));
    }
  };

  // `COUNT` stages: weights into registers, so that others may have their slots, and products when tokens are there.
  template <int COUNT>
  DEVICE static void take(const Epilogue& op, const Item& item, Stage& stage, Sums& sums, Extras& extras, int feature,
                          bool first) {
    Weights weights[COUNT];
    Stage ahead = {stage.slot, stage.phase};
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      await(independent_full(ahead.slot), ahead.phase);
      weights[s].load(independent_slot(ahead.slot));
      __syncwarp();
      release_independent(stage, ahead.slot);
      ahead.advance();
    }
    if (first) {
      await(dependent_full(stage.slot), stage.phase);
      extras.load(op, item.i * BM, feature);
    }
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      await(dependent_full(stage.slot), stage.phase);
      sums.add(weights[s], dependent_slot(stage.slot));
      __syncwarp();
      release_dependent(stage.slot);
      stage.advance();
    }
    if (!first) extras.go_on(op, item.i * BM);
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    Sums sums;
    const int feature = item.j * BN + thread() % PAIRS * 2;
    Extras extras;
    extras.load_early(op, feature);
    const int stages = (item.k_hi - item.k_lo + BK - 1) / BK;
    keep_last(item, stage, stages, min(HELD, stages));
    int n = 0;
    if constexpr (HELD > 1) {
#pragma unroll 1
      for (; n + HELD <= stages; n += HELD) take<HELD>(op, item, stage, sums, extras, feature, n == 0);
    }
#pragma unroll 1
    for (; n < stages; ++n) {
      if (WARPGROUPS > 1 && n % WARPGROUPS != warpgroup()) {  // another's; seen before it is handed back
        await_stage(stage);
        if (n == 0) extras.load(op, item.i * BM, feature);
        release(stage, stage.slot);
        stage.advance();
      } else {
        take<1>(op, item, stage, sums, extras, feature, n == 0);
      }
    }
    finish(op, item, sums, extras, feature);
    if (WARPGROUPS > 1) synchronise_block();
  }

  DEVICE static void finish(const Epilogue& op, const Item& item, const Sums& sums, Extras& extras,
                            int feature) {
    float* const left = scratch<float>();
    float* const factors = left + ALL_WARPS * GATES * ROWS * WIDTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int w = 0; w < WIDE; ++w)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = t * 16 + i / 2 * 8, token = w * 8 + lane % 4 * 2 + i % 2;
            if (row < BN && token < ROWS)
              left[((warp * GATES + g) * ROWS + token) * WIDTH + row + lane / 4] = sums.whole(g, t, w, i);
          }
    if constexpr (NORMALISED > 0) {
      const float factor = extras.factor(op, item.i * BM);
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
      if constexpr (RAGGED) {
        if (inside) store_ragged(op, token, feature, pair);
      } else if (inside && (!LEAVES || op.out)) {
        *reinterpret_cast<unsigned*>(op.out + where) = pair;
      }
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

_STORED = "        *reinterpret_cast<unsigned*>(op.out + where) = pair;\n"
#: The same, with results as words too (``primitives/tagged_cuda``), a pair each.
PUBLISHING = SKINNY.replace(
    _STORED,
    _STORED + "        store_word(op.words + where / 2, pair, publication(item, op.number, op.publications));\n",
).replace(
    "    finish(op, item, sums, extras, feature);\n",
    "    finish(op, item, sums, extras, feature);\n    note_words(launch, item);\n",
)
