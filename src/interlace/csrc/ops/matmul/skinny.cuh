// Skinny GEMM: out = epilogue(x @ weight^T) for few tokens, in tiles of 8 to 56 weight rows and all of k.
//
// A step of one to sixteen tokens is over when the last of a chain of short products is. Tiles of 64 weight rows, which
// wgmma takes from shared memory, are then too few for all SMs, and splitting them costs a fix-up. Here the warps of a
// tile share its reduction instead: each multiplies 16 of each 64 elements of k with mma.sync out of registers, and
// their accumulators meet in shared memory.
//
//   k of a panel      0 .. 15    16 .. 31    32 .. 47    48 .. 63
//   warp                 0           1           2           3        of each warpgroup; those take stages in turn
//
// Weight rows are the 16-row operand (mma.cuh), tokens the other one, 8 at a time. Both lie in slots as for other
// tiles, in panels of 64 elements of k with the 128-byte swizzle; a stage is one bulk load of a three-dimensional box:
// elements of a panel, rows, panels. Only existing tokens are loaded; products read whatever lies after them, and no
// thread stores those.
//
// Roles:
//   prefetch   loader: weights of a stage
//   load       loader, after waits: tokens of a stage. Tokens that are LL words it polls (poll_load), or, if they are
//              few, the consumers do (LLTokens):
//                elements of a tile      polled by                         stored to
//                2048 a warpgroup        all consumers, all at once        the scratch, for the block's next item too
//                more                    the loader, stage by stage        the load slots, as a bulk load would
//   compute    consumers: the weights of HELD stages go into registers and their slots are released before the tokens
//              arrive. So while an item waits for its inputs, the ring fills with what comes next.
//   store      consumers: reduction over the warps, folded norm, epilogue, and LL words before plain stores
//
// A tile that normalises its rows (x_scale) scales tokens in registers by a line of gains for each panel, and
// multiplies them by themselves: the diagonal of that product is the sum of squares.
#pragma once
#include "folded_norm.cuh"
#include "../../ll.cuh"

// True if the consumers still have two thirds of the ring to consume when stage n is opened. Then there is no hurry,
// and loads in flight would delay the words that consumers poll.
DEVICE bool is_ahead(int n) {
  const int consumed = n - STAGES * 2 / 3;
  return consumed >= 0 && !mbarrier_passed(prefetch_empty(consumed % STAGES), consumed / STAGES & 1);
}
// Config of a tile (kernels/matmul/megakernel_body.py), as of Matmul and:
//   TURNS                      stages of a tile if below FEW_TURNS, else FEW_TURNS plus 1 if they are odd
//   LL_X, LL_OUT, LL_SCALED    whether x (with its squares), out, scaled (with its squares) are LL tensors
//   STAGES_OF_TILE             stages of a tile whose tokens the consumers poll, else 0
template <class Config> struct Skinny {
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, ROWS = Config::ROWS, GATES = Config::GATES;
  static constexpr bool BIAS = Config::BIAS, RESIDUAL = Config::RESIDUAL, RAGGED = Config::RAGGED;
  static constexpr bool STORES_SCALED = Config::STORES_SCALED;
  static constexpr int SQUARED = Config::SQUARED, NORM_K = Config::NORM_K, TURNS = Config::TURNS;
  static constexpr bool LL_X = Config::LL_X, LL_OUT = Config::LL_OUT, LL_SCALED = Config::LL_SCALED;
  // True if the consumers poll all tokens of a tile, which are few; if not, the loader polls.
  static constexpr bool CONSUMERS_POLL = LL_X && Config::STAGES_OF_TILE > 0;
  static constexpr int PANELS = BK / 64, TALL = (BN + 15) / 16, WIDE = BM / 8;  // 16 weight rows, 8 tokens at a time
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + GATES * BN * BK * 2 - 1) / (GATES * BN * BK * 2);
  // Separate accumulators for CHAINS panels in turn, where one chain of products would not keep the tensor core busy.
  static constexpr int TILES = GATES * TALL * WIDE, CHAINS = TILES < 4 ? 4 / TILES : 1;
  static constexpr int ALL_WARPS = WARPGROUPS * 4;
  // Floats of a token where warps exchange accumulators: banks differ over 8 features and over every other token.
  static constexpr int WIDTH = BN + 4;
  // In each round a thread stores two neighbouring features of a token.
  static constexpr int PAIRS = BN / 2, ROUND_TOKENS = THREADS / PAIRS, ROUNDS = (BM + ROUND_TOKENS - 1) / ROUND_TOKENS;
  // TEAM threads add up the squares of a token, four numbers at a time.
  static constexpr int TEAM = ROWS <= THREADS / 32 ? 32 : THREADS / BM;
  static constexpr int SQUARES = SQUARED > 0 ? NORM_K / SQUARED : 0;
  // True if the tile computes the norm of its rows. If not, but NORM_K is set, a producer stored their squares.
  static constexpr bool NORMALISES = NORM_K > 0 && SQUARED == 0;
  static_assert(!(NORMALISES && LL_X), "gains come with tokens by bulk loads");
  // Loads of four squares of a thread, and those in flight at once; more would take the registers of held weights.
  static constexpr int FOURS = NORM_K > 0 ? (SQUARES / 4 + TEAM - 1) / TEAM : 0;
  static constexpr int FOURS_AT_ONCE = FOURS < 2 ? FOURS : 2, SQUARE_REGISTERS = LL_X ? 1 : FOURS_AT_ONCE * 4;
  // Lines of tokens, 128 bytes each, of a stage and of a tile. A consumer that polls loads TOKEN_PAIRS pairs of words.
  static constexpr int LINES = PANELS * ROWS, TILE_LINES = LINES * Config::STAGES_OF_TILE, LINES_AT_ONCE = THREADS / 16;
  // The line of a slot at which gains begin, one for each panel, after the tokens.
  static constexpr int GAINS = LINES;
  static constexpr int TOKEN_PAIRS = (TILE_LINES + LINES_AT_ONCE - 1) / LINES_AT_ONCE, TOKEN_BYTES = TILE_LINES * 128;
  // Registers of the weights of a stage, of all else that lives while they are held, and stages that fit. Where
  // warpgroups take stages in turn, each holds one. Squares and gains of a tile that normalises fit as well.
  static constexpr int STAGE_REGISTERS = PANELS * GATES * TALL * 4;
  static constexpr int OTHER_REGISTERS =
      CHAINS * TILES * 4 + SQUARE_REGISTERS + (RESIDUAL ? ROUNDS : 0) + (WIDE - 1) * 8 + TOKEN_PAIRS * 4;
  // At most the ring's stages, so that prefetch slots are never two turns ahead of load slots.
  static constexpr int FIT = WARPGROUPS == 1 && STAGE_REGISTERS + OTHER_REGISTERS < HELD_REGISTERS
                                 ? (HELD_REGISTERS - OTHER_REGISTERS) / STAGE_REGISTERS
                                 : 1;
  // At most the tile's stages: TURNS, or if they are not few any even or odd number.
  static constexpr bool FEW = TURNS < FEW_TURNS;
  static_assert(FEW_TURNS % 2 == 0, "of many stages TURNS says only whether they are even");
  static constexpr int IN_RING = FIT < STAGES ? FIT : STAGES, MOST = FEW ? TURNS : FEW_TURNS;
  static constexpr int HELD = MOST < IN_RING ? MOST : IN_RING;
  // True if stages may be left over when they are consumed HELD at a time.
  static constexpr bool LEFT_OVER = FEW ? TURNS % HELD > 0 : HELD != 2 || TURNS % 2 > 0;

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.j * BN);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      tickets.look(launch);
      open_prefetch(stage, n, (LL_X || LL_OUT || LL_SCALED) && is_ahead(n) ? 1 : IN_FLIGHT, GATES * PANELS * BN * 128);
      const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
      const int panel = uniform(k / 64);
      if (first_lane()) {
        if (k == item.k_lo) prefetch_map(op.x);
        if (NORMALISES && k == item.k_lo) prefetch_map(op.x_scale);
        if (GATES == 2) tma_load_3d(slot, op.gate, 0, row, panel, full, evict_first());
        tma_load_3d(slot + (GATES - 1) * PANELS * BN * 128, op.weight, 0, row, panel, full, evict_first());
      }
      stage.advance();
      ++n;
    }
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    if constexpr (LL_X && !CONSUMERS_POLL) return poll_load(launch, item, op, k_lo, k_hi, stage);
    const int row = uniform(item.i * BM);
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += BK) {
      open_load(stage, CONSUMERS_POLL ? 0 : (LINES + NORMALISES * PANELS) * 128);
      const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
      const int panel = uniform(k / 64);
      if (!CONSUMERS_POLL && first_lane()) {
        tma_load_3d(slot, op.x, 0, row, panel, full);
        if (NORMALISES) tma_load_2d(slot + GAINS * 128, op.x_scale, 0, panel, full);
      }
      stage.advance();
    }
  }

  // Polls tokens that are LL words and stores them where a bulk load would: a lane has two neighbours of a line.
  static constexpr int LANE_WORDS = LINES + LINES % 2;
  static constexpr int POLLED_STAGES = LANE_WORDS < POLLED_WORDS ? POLLED_WORDS / LANE_WORDS : 1;
  DEVICE static void poll_load(const Launch& launch, const Item& item, const Operands& op, int k_lo, int k_hi,
                               Stage& stage) {
    const unsigned long long* const words = op.x_words;
    const unsigned number = op.x_number, wanted = publication(item, number, op.publications);
    const int width = op.k / 2, within = threadIdx.x % 16, half = threadIdx.x / 16 % 2;
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += POLLED_STAGES * BK) {
      Words<POLLED_STAGES * LANE_WORDS> tokens(wanted);
      // The line of a stage, and the panel of x, of words n and n + 1.
      const auto line_of = [&](int n) { return n % LANE_WORDS + half; };
      const auto panel_of = [&](int n) { return (k + n / LANE_WORDS * BK) / 64 + line_of(n) / ROWS; };
#pragma unroll
      for (int n = 0; n < POLLED_STAGES * LANE_WORDS; n += 2)
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
        await(load_empty(stage.slot), stage.phase ^ 1);
        const unsigned slot = load_slot(stage.slot);
#pragma unroll
        for (int n = s * LANE_WORDS; n < (s + 1) * LANE_WORDS; n += 2) {
          const unsigned at = address_of(slot, line_of(n), within / 2) + within % 2 * 8;
          if (line_of(n) >= LINES) continue;
          asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"((int)tokens.data(n)),
                       "r"((int)tokens.data(n + 1))
                       : "memory");
        }
        fence_proxy_async();  // the slot's next load may be a bulk load
        __syncwarp();
        if (first_lane()) mbarrier_arrive(load_full(stage.slot));
        stage.advance();
      }
    }
  }
  // Address of a 16-byte piece of a line, swizzled; lines count from an address that is a multiple of 1024.
  DEVICE static unsigned address_of(unsigned slot, int line, int piece) {
    return slot + line * 128 + ((piece ^ line & 7) << 4);
  }
  // The panel after `panel` for the second half of a warp, if there is one.
  DEVICE static int second_or_last(int panel, int second) {
    return PANELS % 2 ? min(panel + second, PANELS - 1) : panel + second;
  }
  // Loads the tokens of a panel, or of two panels if the tile has 8 tokens: of each 8 tokens the low and the high 8
  // elements of the warp's k. `line`: the first line of the stage.
  DEVICE static void load_tokens(unsigned (&to)[4], unsigned slot, int line, int panel) {
    const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2, second = lane / 16;
    const int token = min(WIDE > 1 ? second * 8 + lane % 8 : lane % 8, ROWS - 1);
    const int own_panel = WIDE > 1 ? panel : second_or_last(panel, second);
    load_matrices(to, address_of(slot, line + own_panel * ROWS + token, piece));
  }
  // Loads the gains of two panels, those of a lane's elements of tokens. They lie in lines without a swizzle.
  DEVICE static void load_gains(unsigned (&to)[4], unsigned slot, int panel) {
    const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
    load_matrices(to, slot + (GAINS + second_or_last(panel, lane / 16)) * 128 + piece * 16);
  }
  // A warp's weights of a stage in registers. If 8 rows are left over, the registers have them twice.
  struct Weights {
    unsigned pieces[PANELS][GATES][TALL][4];
    DEVICE void load(unsigned slot, int) {
      const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 16;
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < TALL; ++t) {
            const int row = t * 16 + lane % 8 + (t * 16 + 8 < BN ? lane / 8 % 2 * 8 : 0);
            load_matrices(pieces[p][g][t], address_of(slot, (g * PANELS + p) * BN + row, piece));
          }
    }
  };
  struct WarpAccumulators {
    float values[CHAINS][GATES][TALL][WIDE][4] = {};
    float squares[NORMALISES ? CHAINS : 1][WIDE][4] = {};  // tokens times themselves: squares on the diagonal
    // Adds the squares of a panel's tokens, and multiplies these by their gains.
    DEVICE void scale(unsigned (&tokens)[4], const unsigned (&gains)[4], int panel) {
      const int at = WIDE > 1 ? 0 : panel % 2 * 2;
      unsigned all[4] = {tokens[at], 0, tokens[at + 1], 0};
      if (WIDE > 1) all[1] = tokens[2], all[3] = tokens[3];
#pragma unroll
      for (int w = 0; w < WIDE && NORMALISES; ++w) {
        multiply(squares[panel % CHAINS][w], all, all[w], all[2 + w]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          tokens[at + w * 2 + half] = times(tokens[at + w * 2 + half], gains[panel % 2 * 2 + half]);
      }
    }
    DEVICE void add(const Weights& weights, unsigned slot, int line) {
      unsigned tokens[4], gains[4];
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        if (NORMALISES && p % 2 == 0) load_gains(gains, slot, p);
        if (WIDE > 1 || p % 2 == 0) load_tokens(tokens, slot, line, p);
        if constexpr (NORMALISES) scale(tokens, gains, p);
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < TALL; ++t)
#pragma unroll
            for (int w = 0; w < WIDE; ++w) {
              const int at = WIDE > 1 ? w * 2 : p % 2 * 2;
              multiply(values[p % CHAINS][g][t][w], weights.pieces[p][g][t], tokens[at], tokens[at + 1]);
            }
      }
    }
    // Sum of squares of one of 8 tokens, over the chains; right in the lane that has its diagonal element.
    DEVICE float square(int w, int token) const {
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) sum += token % 2 ? squares[c][w][w * 2 + 1] : squares[c][w][w * 2];
      return sum;
    }
    // A lane's element, over the chains.
    DEVICE float value(int g, int t, int w, int i) const {
      float sum = values[0][g][t][w][i];
#pragma unroll
      for (int c = 1; c < CHAINS; ++c) sum += values[c][g][t][w][i];
      return sum;
    }
  };

  // Inputs of an item's epilogue, which load while its products run.
  struct EpilogueInputs {
    unsigned residual[ROUNDS], bias, scale;
    float4 squares[FOURS_AT_ONCE > 0 ? FOURS_AT_ONCE : 1];
    float sum = 0.0f;
    int loaded = 0;
    // Before the item's waits: bias, and the next norm's weight.
    DEVICE void load_early(const Epilogue& op, int feature) {
      bias = scale = 0;
      if (feature >= op.n) return;
      if (BIAS) bias = load_32_now(op.bias + feature);
      if (STORES_SCALED) scale = load_32_now(op.scale + feature);
    }
    DEVICE void load(const Epilogue& op, int first, int feature) {
      const int t = thread();
#pragma unroll
      for (int r = 0; r < ROUNDS && RESIDUAL; ++r) {
        const int at = r * ROUND_TOKENS + t / PAIRS, token = first + at;
        residual[r] = 0;
        if (at < BM && token < op.residual_rows && feature < op.n)
          residual[r] = load_32_now(op.residual + (long long)token * op.n + feature);
      }
      if (!LL_X) load_squares(op, first);
    }
    // Loads the next squares of a producer, if there are more.
    DEVICE void load_squares(const Epilogue& op, int first) {
      const int t = thread();
#pragma unroll
      for (int f = 0; f < FOURS_AT_ONCE; ++f) {
        const int token = first + t / TEAM, at = (loaded + f) * TEAM + t % TEAM;
        squares[f] = make_float4(0, 0, 0, 0);
        const bool is_own = t / TEAM < BM && token < op.m && at < SQUARES / 4;
        if (is_own) squares[f] = load_four_now(op.x_squares + (long long)token * SQUARES + at * 4);
      }
      loaded += FOURS_AT_ONCE;
    }
    DEVICE void add() {
#pragma unroll
      for (int f = 0; f < FOURS_AT_ONCE; ++f) sum += (squares[f].x + squares[f].y) + (squares[f].z + squares[f].w);
    }
    DEVICE void step(const Epilogue& op, int first) {
      if (LL_X || FOURS <= FOURS_AT_ONCE || loaded >= FOURS) return;
      add();
      load_squares(op, first);
    }
    // The norm's factor of the team's token.
    DEVICE float factor(const Epilogue& op, int first) {
#pragma unroll 1
      while (!LL_X && FOURS > FOURS_AT_ONCE && loaded < FOURS) step(op, first);
      if (!LL_X) add();
      return rsqrtf(sum_of<TEAM>(sum) / NORM_K + Config::EPS);
    }
  };

  // Squares that are LL words, all of a thread at once.
  struct LLSquares {
    Words<4> fours[FOURS > 0 ? FOURS : 1];
    const unsigned long long* from[FOURS > 0 ? FOURS : 1];
    DEVICE LLSquares(const Epilogue& op, const Item& item) {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const int t = thread(), token = item.i * BM + t / TEAM, at = f * TEAM + t % TEAM;
        const bool is_own = t / TEAM < BM && token < op.m && at < SQUARES / 4;
        from[f] = op.x_squares_words + (long long)token * SQUARES + at * 4;
        fours[f].wanted = publication(item, op.x_squares_number, op.publications);
        fours[f].forget();
#pragma unroll
        for (int n = 0; n < 4 && !is_own; ++n) fours[f].skip(n);
      }
    }
    DEVICE void load() {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) fours[f].ask_two([&](int n) { return from[f] + n; });
    }
    DEVICE float await(const Launch& launch, const Item& item, const Epilogue& op) {
      float sum = 0.0f;
      Patience patience;
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const auto number = [&](int n) { return fours[f].number(n); };
#pragma unroll 1
        for (; !fours[f].came(); load())
          if (patience.over(launch, item, fours[f].wanted, op.x_squares_number)) break;
        sum += (number(0) + number(1)) + (number(2) + number(3));
      }
      return sum;
    }
  };

  // True if the scratch has the tokens and factors from the block's previous item, which is of the same op.
  DEVICE static bool reuses_tokens(const Item& item) { return CONSUMERS_POLL && item.code & AGAIN; }
  // Few tokens that are LL words: the consumers poll all of a tile, and store them to the scratch as bulk loads would.
  struct LLTokens {
    static constexpr int SAMPLED = 4;  // one of SAMPLED threads loads a sample
    const Launch& launch;
    const Item& item;
    const Epilogue& op;
    DEVICE LLTokens(const Launch& launch, const Item& item, const Epilogue& op) : launch(launch), item(item), op(op) {}
    DEVICE static int line_of(int w) { return w / 2 * LINES_AT_ONCE + thread() / 16; }
    DEVICE const unsigned long long* at(int line) const {
      return op.x_words + line % ROWS * (op.k / 2) + line / ROWS * 32 + thread() % 16 * 2;
    }
    DEVICE bool over(Patience& patience, unsigned wanted) const {
      return patience.over(launch, item, wanted, op.x_number);
    }
    // Polls a sample of a warp's words until one of them has arrived: all SMs wait for the same words, and their polls
    // delay loads that are in flight.
    DEVICE void await_sample(unsigned wanted) const {
      const unsigned long long* const sample = at(min(line_of(0), op.k / 64 * ROWS - 1));
      const bool is_own = thread() % SAMPLED == 0;
      unsigned long long word = 0;
      Patience patience;
#pragma unroll 1
      do {
        if (is_own) load_word(word, sample);
      } while (!__any_sync(0xffffffff, (is_own && is_of(word, wanted)) || over(patience, wanted)));
    }
    // Called by all threads before the first product.
    DEVICE void await_all(EpilogueInputs& inputs) const {
      if (reuses_tokens(item)) return;
      Words<2 * TOKEN_PAIRS> words(publication(item, op.x_number, op.publications));
#pragma unroll
      for (int w = 0; w < 2 * TOKEN_PAIRS; w += 2)
        if (line_of(w) >= op.k / 64 * ROWS) words.skip(w), words.skip(w + 1);
      await_sample(words.wanted);
      LLSquares squares(op, item);
      Patience patience;
#pragma unroll 1
      for (;;) {
        words.ask_two([&](int w) { return at(line_of(w)); });
        squares.load();
        if (words.came() || over(patience, words.wanted)) break;
      }
#pragma unroll
      for (int w = 0; w < 2 * TOKEN_PAIRS; w += 2) {
        const unsigned to = address_of(scratch_of(0), line_of(w), thread() % 16 / 2) + thread() % 2 * 8;
        if (line_of(w) >= TILE_LINES) continue;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"((int)words.data(w)), "r"((int)words.data(w + 1))
                     : "memory");
      }
      inputs.sum = squares.await(launch, item, op);
      synchronise_block();
    }
  };

  // Consumes COUNT stages from stage n on: holds their weights in registers, and multiplies when their tokens arrive.
  template <int COUNT>
  DEVICE static void multiply_stages(const Launch& launch, const Item& item, const Epilogue& op, Stage& stage,
                                     WarpAccumulators& accumulators, EpilogueInputs& inputs, int feature, int n) {
    Weights weights[COUNT];
    hold_weights(stage, weights, BN);
    if (n == 0) begin(launch, item, op, stage, inputs, feature);
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      await(load_full(stage.slot), stage.phase);
      if constexpr (CONSUMERS_POLL) accumulators.add(weights[s], scratch_of(0), (n + s) * LINES);
      else accumulators.add(weights[s], load_slot(stage.slot), 0);
      __syncwarp();
      release_load(stage.slot);
      stage.advance();
    }
    if (n > 0) inputs.step(op, item.i * BM);
  }
  // Waits for the tokens of the first stage, then starts the loads of the epilogue's inputs.
  DEVICE static void begin(const Launch& launch, const Item& item, const Epilogue& op, const Stage& stage,
                           EpilogueInputs& inputs, int feature) {
    if constexpr (LL_X && !CONSUMERS_POLL && NORM_K > 0) {  // a producer stores squares with its tokens
      LLSquares squares(op, item);
      squares.load();
#pragma unroll 1
      while (!mbarrier_passed(load_full(stage.slot), stage.phase)) squares.load();
      inputs.sum = squares.await(launch, item, op);
    }
    await(load_full(stage.slot), stage.phase);
    inputs.load(op, item.i * BM, feature);
    if constexpr (CONSUMERS_POLL) LLTokens(launch, item, op).await_all(inputs);
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    if (WARPGROUPS > 1) synchronise_block();  // warpgroups with tiles of their own leave the scratch one by one
    WarpAccumulators accumulators;
    const int feature = item.j * BN + thread() % PAIRS * 2;
    EpilogueInputs inputs;
    inputs.load_early(op, feature);
    const int stages = (item.k_hi - item.k_lo + BK - 1) / BK;
    keep_last(item, stage, stages, HELD);
    int n = 0;
    if constexpr (HELD > 1) {
#pragma unroll 1
      for (; n + HELD <= stages; n += HELD)
        multiply_stages<HELD>(launch, item, op, stage, accumulators, inputs, feature, n);
    }
    if constexpr (HELD == 1 || LEFT_OVER) {
#pragma unroll 1
      for (; n < stages; ++n) {
        if (WARPGROUPS > 1 && n % WARPGROUPS != warpgroup()) {  // another warpgroup's; seen before it is released
          await_stage(stage);
          if (n == 0) begin(launch, item, op, stage, inputs, feature);
          __syncwarp();
          release(stage, stage.slot);
          stage.advance();
        } else {
          multiply_stages<1>(launch, item, op, stage, accumulators, inputs, feature, n);
        }
      }
    }
    store(op, item, accumulators, inputs, feature);
    note_words(launch, item);
    if (WARPGROUPS > 1) synchronise_block();
  }

  // The norm's factor of a token: as stored, or from the squares that the warps stored.
  DEVICE static float factor_of(const float* factors, int token) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < ALL_WARPS && NORMALISES; ++w) sum += factors[w * BM + token];
    return NORMALISES ? rsqrtf(sum / NORM_K + Config::EPS) : factors[token];
  }
  DEVICE static void store(const Epilogue& op, const Item& item, const WarpAccumulators& accumulators,
                           EpilogueInputs& inputs, int feature) {
    const unsigned epoch = publication(item, op.number, op.publications);
    float* const partials = scratch<float>() + TOKEN_BYTES / 4;
    float* const factors = partials + ALL_WARPS * GATES * ROWS * WIDTH;
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
              partials[((warp * GATES + g) * ROWS + token) * WIDTH + row + lane / 4] = accumulators.value(g, t, w, i);
          }
    if constexpr (NORMALISES) {
      const int token = lane / 4;  // of 8; over the warp's share of k
#pragma unroll
      for (int w = 0; w < WIDE; ++w)
        if (lane % 4 == token / 2) factors[warp * BM + w * 8 + token] = accumulators.square(w, token);
    } else if constexpr (NORM_K > 0) {
      if (!reuses_tokens(item)) {
        const float factor = inputs.factor(op, item.i * BM);
        if (thread() % TEAM == 0 && thread() / TEAM < BM) factors[thread() / TEAM] = factor;
      }
    }
    if (WARPGROUPS > 1) synchronise_block();
    else synchronise();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int at = r * ROUND_TOKENS + thread() / PAIRS, token = item.i * BM + at;
      const bool is_own = thread() < ROUND_TOKENS * PAIRS;  // further threads have tokens of the next round
      const bool inside = is_own && at < ROWS && token < op.m && feature < op.n;
      float2 value[GATES];
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        value[g] = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < ALL_WARPS && inside; ++w) {
          const float2 part =
              *reinterpret_cast<const float2*>(partials + ((w * GATES + g) * ROWS + at) * WIDTH + thread() % PAIRS * 2);
          value[g].x += part.x, value[g].y += part.y;
        }
      }
      if constexpr (NORM_K > 0) {
        const float factor = inside ? factor_of(factors, at) : 0.0f;
#pragma unroll
        for (int g = 0; g < GATES; ++g) value[g].x *= factor, value[g].y *= factor;
      }
      float2 out = value[GATES - 1];
      if (BIAS) out.x += low_of(inputs.bias), out.y += high_of(inputs.bias);
      out.x = activate<GATES, Config::ACTIVATION>(out.x, value[0].x);
      out.y = activate<GATES, Config::ACTIVATION>(out.y, value[0].y);
      if (RESIDUAL) out.x += low_of(inputs.residual[r]), out.y += high_of(inputs.residual[r]);
      const unsigned pair = as_pair(out.x, out.y);
      const long long where = (long long)token * op.n + feature;
      if constexpr (RAGGED) {
        if (inside) store_ragged(op, token, feature, pair);
      } else if (LL_OUT && inside) {
        store_word(op.out_words + where / 2, pair, epoch);
      }
      if constexpr (STORES_SCALED) {
        const float low = low_of(pair), high = high_of(pair);
        const unsigned scaled = as_pair(low * low_of(inputs.scale), high * high_of(inputs.scale));
        if (LL_SCALED && inside) store_word(op.scaled_words + where / 2, scaled, epoch);
        const float sum = sum_of<SQUARED / 2>(inside ? low * low + high * high : 0.0f);
        if (inside) {
          const long long block = (long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED;
          if constexpr (LL_SCALED) {
            if (feature % SQUARED == 0) store_word(op.squares_words + block, __float_as_uint(sum), epoch);
          }
          *reinterpret_cast<unsigned*>(op.scaled + where) = scaled;
          if (feature % SQUARED == 0) op.squares[block] = sum;
        }
      }
      // After the LL words, which consumers poll.
      if (!RAGGED && inside && (!STORES_SCALED || op.out)) *reinterpret_cast<unsigned*>(op.out + where) = pair;
    }
  }
};
