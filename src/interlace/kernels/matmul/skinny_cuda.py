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

#: Words of tokens that a lane of the warp that loads asks for at once.
POLLED_WORDS = 32

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
constexpr int POLLED_WORDS = """ + f"{POLLED_WORDS}" + r""";
// Whether consumers have two thirds of the ring left to take when stage n is opened, loaded or on its way. Then there
// is no hurry, and what is under way would delay what they wait for.
DEVICE bool has_left(int n) {
  const int taken = n - STAGES * 2 / 3;
  return taken >= 0 && !mbarrier_passed(independent_empty(taken % STAGES), taken / STAGES & 1);
}
template <int BM_, int BN_, int BK_, int ROWS_, int GATES_, int ACTIVATION_, bool BIAS, bool RESIDUAL,
          bool RAGGED, bool EVEN, int SQUARED = 0, bool LEAVES = false, int NORMALISED = 0, unsigned EPS_BITS = 0,
          int AS_WORDS = 0>
struct Skinny {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, ROWS = ROWS_, GATES = GATES_, ACTIVATION = ACTIVATION_;
  // What is words: tokens and their squares, results, and what is left for the norm behind.
  static constexpr bool POLLS = AS_WORDS & 1, SAYS = AS_WORDS & 2, LEAVES_WORDS = AS_WORDS & 4;
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
  static constexpr int TEAM = ROWS <= THREADS / 32 ? 32 : THREADS / BM;
  static constexpr int SQUARES = SQUARED > 0 ? NORMALISED / SQUARED : 0;
  // Of one thread, and how many are under way at once: registers for more would be those of weights.
  static constexpr int FOURS = NORMALISED > 0 ? (SQUARES / 4 + TEAM - 1) / TEAM : 0, MOST = POLLS ? 1 : 2;
  static constexpr int ASKED = FOURS < MOST ? FOURS : MOST, OF_SQUARES = ASKED * (POLLS ? 16 : 4);
  // Registers of a stage's weights, of what else there is while they are held, and stages that are. Where warpgroups
  // take stages in turns, each has one.
  static constexpr int OF_STAGE = PANELS * GATES * TALL * 4;
  static constexpr int OTHERS = CHAINS * TILES * 4 + OF_SQUARES + (RESIDUAL ? ROUNDS : 0) + (WIDE - 1) * 8;
  static constexpr int HELD =
      WARPGROUPS == 1 && OF_STAGE + OTHERS < HELD_REGISTERS ? (HELD_REGISTERS - OTHERS) / OF_STAGE : 1;

  DEVICE static void load_independent(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.j * BN);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      tickets.look(launch);
      open_independent(stage, n, AS_WORDS && has_left(n) ? 1 : IN_FLIGHT, GATES * PANELS * BN * 128);
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
    if constexpr (POLLS) return poll_dependent(launch, item, op, k_lo, k_hi, stage);
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

  // Tokens that are words, to where a bulk load would bring them: of a row of a panel a lane has two neighbours.
  static constexpr int LINES = PANELS * ROWS, OF_LANE = LINES + LINES % 2;
  static constexpr int POLLED_STAGES = OF_LANE < POLLED_WORDS ? POLLED_WORDS / OF_LANE : 1;
  DEVICE static void poll_dependent(const Launch& launch, const Item& item, const Operands& op, int k_lo, int k_hi,
                                    Stage& stage) {
    const unsigned long long* const words = op.x_words;
    const unsigned number = op.x_number, wanted = publication(item, number, op.publications);
    const int width = op.k / 2, within = threadIdx.x % 16, half = threadIdx.x / 16 % 2;
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += POLLED_STAGES * BK) {
      Words<POLLED_STAGES * OF_LANE> tokens(wanted);
      // Of two words the row of the panel, and that.
      const auto line_of = [&](int n) { return n % OF_LANE + half; };
      const auto panel_of = [&](int n) { return (k + n / OF_LANE * BK) / 64 + line_of(n) / ROWS; };
#pragma unroll
      for (int n = 0; n < POLLED_STAGES * OF_LANE; n += 2)
        if (line_of(n) >= LINES || panel_of(n) * 32 >= width) tokens.skip(n), tokens.skip(n + 1);
      Patience patience;
#pragma unroll 1
      for (;;) {
        tokens.ask_two([&](int n) { return words + line_of(n) % ROWS * width + panel_of(n) * 32 + within * 2; });
        if (tokens.came() || patience.over(launch, item, wanted, number)) break;
      }
#pragma unroll
      for (int s = 0; s < POLLED_STAGES; ++s) {
        if (k + s * BK >= k_hi) break;
        await(dependent_empty(stage.slot), stage.phase ^ 1);
        const unsigned slot = dependent_slot(stage.slot);
#pragma unroll
        for (int n = s * OF_LANE; n < (s + 1) * OF_LANE; n += 2) {
          const unsigned at = place(slot, line_of(n), within / 2) + within % 2 * 8;
          if (line_of(n) >= LINES) continue;
          asm volatile("st.shared.v2.b32 [%0], {%1, %2};"
                       ::"r"(at), "r"((int)tokens.data(n)), "r"((int)tokens.data(n + 1)) : "memory");
        }
        fence_proxy_async();  // the next to come here may be a bulk load
        __syncwarp();
        if (first_lane()) mbarrier_arrive(dependent_full(stage.slot));
        stage.advance();
      }
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
    unsigned long long words[ASKED > 0 ? ASKED * 4 : 4];  // squares that are words, and where they are
    const unsigned long long* from[ASKED > 0 ? ASKED : 1];
    const Launch* launch;
    const Item* item;
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
        const bool mine = t / TEAM < BM && token < op.m && at < SQUARES / 4;
        const long long where = (long long)token * SQUARES + at * 4;
        if constexpr (POLLS) {
          from[f] = mine ? op.x_squares_words + where : nullptr;
          if (mine) look(f);
          continue;
        }
        if (mine) squares[f] = load_four_now(op.x_squares + where);
      }
      asked += ASKED;
    }
    DEVICE void look(int f) {
      load_two_words(words[f * 4], words[f * 4 + 1], from[f]);
      load_two_words(words[f * 4 + 2], words[f * 4 + 3], from[f] + 2);
    }
    DEVICE void poll_squares(const Epilogue& op) {
      const unsigned wanted = publication(*item, op.x_squares_number, op.publications);
      Patience patience;
#pragma unroll
      for (int f = 0; f < ASKED; ++f) {
        if (!from[f]) continue;
#pragma unroll 1
        while (!(is_of(words[f * 4], wanted) && is_of(words[f * 4 + 1], wanted) && is_of(words[f * 4 + 2], wanted) &&
                 is_of(words[f * 4 + 3], wanted))) {
          if (patience.over(*launch, *item, wanted, op.x_squares_number)) break;
          look(f);
        }
        const auto number = [&](int n) { return __uint_as_float(data_of(words[f * 4 + n])); };
        squares[f] = make_float4(number(0), number(1), number(2), number(3));
      }
    }
    DEVICE void add(const Epilogue& op) {
      if constexpr (POLLS && NORMALISED > 0) poll_squares(op);
#pragma unroll
      for (int f = 0; f < ASKED; ++f) sum += (squares[f].x + squares[f].y) + (squares[f].z + squares[f].w);
    }
    DEVICE void go_on(const Epilogue& op, int first) {
      if (FOURS <= ASKED || asked >= FOURS) return;
      add(op);
      ask(op, first);
    }
    // The factor of the team's token.
    DEVICE float factor(const Epilogue& op, int first) {
#pragma unroll 1
      while (FOURS > ASKED && asked < FOURS) go_on(op, first);
      add(op);
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
    extras.launch = &launch, extras.item = &item;
    extras.load_early(op, feature);
    const int stages = (item.k_hi - item.k_lo + BK - 1) / BK;
    keep_last(item, stage, stages, min(HELD, stages));
    int n = 0;
    if constexpr (HELD > 1) {
#pragma unroll 1
      for (; n + HELD <= stages; n += HELD) take<HELD>(op, item, stage, sums, extras, feature, n == 0);
    }
    if constexpr (!EVEN || HELD != 2) {
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
    }
    finish(op, item, sums, extras, feature);
    note_words(launch, item);
    if (WARPGROUPS > 1) synchronise_block();
  }

  DEVICE static void finish(const Epilogue& op, const Item& item, const Sums& sums, Extras& extras,
                            int feature) {
    const unsigned own = publication(item, op.number, op.publications);
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
        if constexpr (SAYS) store_word(op.out_words + where / 2, pair, own);
      }
      if constexpr (LEAVES) {
        const float low = low_of(pair), high = high_of(pair);
        const float sum = sum_of<SQUARED / 2>(inside ? low * low + high * high : 0.0f);
        if (inside) {
          const unsigned scaled = as_pair(low * low_of(extras.scale), high * high_of(extras.scale));
          const long long block = (long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED;
          if constexpr (LEAVES_WORDS) {
            store_word(op.scaled_words + where / 2, scaled, own);
            if (feature % SQUARED == 0) store_word(op.squares_words + block, __float_as_uint(sum), own);
          }
          *reinterpret_cast<unsigned*>(op.scaled + where) = scaled;
          if (feature % SQUARED == 0) op.squares[block] = sum;
        }
      }
    }
  }
};
"""
