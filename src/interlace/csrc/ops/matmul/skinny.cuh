// Skinny GEMM: tiles of 8 to 56 weight rows and all of k (kernels/matmul/skinny_cuda.py).
#pragma once

// Whether consumers have two thirds of the ring left to take when stage n is opened, loaded or on its way. Then there
// is no hurry, and what is under way would delay what they wait for.
DEVICE bool has_left(int n) {
  const int taken = n - STAGES * 2 / 3;
  return taken >= 0 && !mbarrier_passed(prefetch_empty(taken % STAGES), taken / STAGES & 1);
}
template <int BM_, int BN_, int BK_, int ROWS_, int GATES_, int ACTIVATION_, bool BIAS, bool RESIDUAL, bool RAGGED,
          int TURNS, int SQUARED = 0, bool LEAVES = false, int NORMALISED = 0, unsigned EPS_BITS = 0, int AS_WORDS = 0,
          int STAGES_OF_TILE = 0>
struct Skinny {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, ROWS = ROWS_, GATES = GATES_, ACTIVATION = ACTIVATION_;
  // What is words: tokens and their squares, results, and what is left for the norm behind.
  static constexpr bool POLLS = AS_WORDS & 1, SAYS = AS_WORDS & 2, LEAVES_WORDS = AS_WORDS & 4;
  // Whether the consumers poll tokens themselves, all of a tile, which are few; else the warp that loads does.
  static constexpr bool HERE = POLLS && STAGES_OF_TILE > 0;
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
  // Whether rows are normalised here; else others left their squares, if they are normalised at all.
  static constexpr bool OWN = NORMALISED > 0 && SQUARED == 0;
  static_assert(!(OWN && POLLS), "gains come with tokens that are loaded");
  // Of one thread, and how many are under way at once: registers for more would be those of weights.
  static constexpr int FOURS = NORMALISED > 0 ? (SQUARES / 4 + TEAM - 1) / TEAM : 0;
  static constexpr int ASKED = FOURS < 2 ? FOURS : 2, OF_SQUARES = POLLS ? 1 : ASKED * 4;
  // Rows of panels of tokens in a stage, and of a tile. Consumers that poll ask for so many pairs each.
  static constexpr int LINES = PANELS * ROWS, ALL_LINES = LINES * STAGES_OF_TILE, LINES_AT_ONCE = THREADS / 16;
  // Where gains lie, a line for each panel, behind tokens.
  static constexpr int GAINS = LINES;
  static constexpr int TOKEN_PAIRS = (ALL_LINES + LINES_AT_ONCE - 1) / LINES_AT_ONCE, TOKEN_BYTES = ALL_LINES * 128;
  // Registers of a stage's weights, of what else there is while they are held, and stages that are. Where warpgroups
  // take stages in turns, each has one. Squares and gains of rows that are normalised here fit beside as many.
  static constexpr int OF_STAGE = PANELS * GATES * TALL * 4;
  static constexpr int OTHERS =
      CHAINS * TILES * 4 + OF_SQUARES + (RESIDUAL ? ROUNDS : 0) + (WIDE - 1) * 8 + TOKEN_PAIRS * 4;
  // No more than the ring has: slots for weights are then never two turns ahead of those for tokens.
  static constexpr int FIT =
      WARPGROUPS == 1 && OF_STAGE + OTHERS < HELD_REGISTERS ? (HELD_REGISTERS - OTHERS) / OF_STAGE : 1;
  // Nor more than a tile has, of `TURNS` stages, or, if they are not few, of any even or odd number.
  static constexpr bool FEW = TURNS < FEW_TURNS;
  static_assert(FEW_TURNS % 2 == 0, "of more stages TURNS tells whether they are even");
  static constexpr int IN_RING = FIT < STAGES ? FIT : STAGES, MOST = FEW ? TURNS : FEW_TURNS;
  static constexpr int HELD = MOST < IN_RING ? MOST : IN_RING;
  // Whether stages may be left when so many have been taken at a time.
  static constexpr bool LEFT = FEW ? TURNS % HELD > 0 : HELD != 2 || TURNS % 2 > 0;

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.j * BN);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      tickets.look(launch);
      open_prefetch(stage, n, AS_WORDS && has_left(n) ? 1 : IN_FLIGHT, GATES * PANELS * BN * 128);
      const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
      const int panel = uniform(k / 64);
      if (first_lane()) {
        if (k == item.k_lo) prefetch_map(op.x);
        if (OWN && k == item.k_lo) prefetch_map(op.x_scale);
        if (GATES == 2) tma_load_3d(slot, op.gate, 0, row, panel, full, evict_first());
        tma_load_3d(slot + (GATES - 1) * PANELS * BN * 128, op.weight, 0, row, panel, full, evict_first());
      }
      stage.advance();
      ++n;
    }
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    if constexpr (POLLS && !HERE) return poll_load(launch, item, op, k_lo, k_hi, stage);
    const int row = uniform(item.i * BM);
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += BK) {
      open_load(stage, HERE ? 0 : (LINES + OWN * PANELS) * 128);
      const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
      const int panel = uniform(k / 64);
      if (!HERE && first_lane()) {
        tma_load_3d(slot, op.x, 0, row, panel, full);
        if (OWN) tma_load_2d(slot + GAINS * 128, op.x_scale, 0, panel, full);
      }
      stage.advance();
    }
  }

  // Tokens that are words, to where a bulk load would bring them: of a row of a panel a lane has two neighbours.
  static constexpr int OF_LANE = LINES + LINES % 2;
  static constexpr int POLLED_STAGES = OF_LANE < POLLED_WORDS ? POLLED_WORDS / OF_LANE : 1;
  DEVICE static void poll_load(const Launch& launch, const Item& item, const Operands& op, int k_lo, int k_hi,
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
        await(load_empty(stage.slot), stage.phase ^ 1);
        const unsigned slot = load_slot(stage.slot);
#pragma unroll
        for (int n = s * OF_LANE; n < (s + 1) * OF_LANE; n += 2) {
          const unsigned at = place(slot, line_of(n), within / 2) + within % 2 * 8;
          if (line_of(n) >= LINES) continue;
          asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"((int)tokens.data(n)),
                       "r"((int)tokens.data(n + 1))
                       : "memory");
        }
        fence_proxy_async();  // the next to come here may be a bulk load
        __syncwarp();
        if (first_lane()) mbarrier_arrive(load_full(stage.slot));
        stage.advance();
      }
    }
  }
  // Where a lane's row of the matrices of a panel begins: `line` counts rows of 128 bytes from a multiple of 1024.
  DEVICE static unsigned place(unsigned slot, int line, int piece) {
    return slot + line * 128 + ((piece ^ line & 7) << 4);
  }
  // The panel behind it for the second half of a warp, if there is one.
  DEVICE static int second_or_last(int panel, int second) {
    return PANELS % 2 ? min(panel + second, PANELS - 1) : panel + second;
  }
  // Tokens of a panel, or, if they are 8, of two: low and high pieces of 8 of k, of each 8 tokens. Those of a stage
  // begin at a line of a slot.
  DEVICE static void load_tokens(unsigned (&to)[4], unsigned slot, int line, int panel) {
    const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2, second = lane / 16;
    const int token = min(WIDE > 1 ? second * 8 + lane % 8 : lane % 8, ROWS - 1);
    const int mine = WIDE > 1 ? panel : second_or_last(panel, second);
    load_matrices(to, place(slot, line + mine * ROWS + token, piece));
  }
  // Of two panels, so that a lane has those of its tokens' elements. They lie in a row, without a swizzle.
  DEVICE static void load_gains(unsigned (&to)[4], unsigned slot, int panel) {
    const int lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
    load_matrices(to, slot + (GAINS + second_or_last(panel, lane / 16)) * 128 + piece * 16);
  }
  // What a warp multiplies of a stage's weights, in registers. Where 8 rows are left over, they are there twice.
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
            load_matrices(pieces[p][g][t], place(slot, (g * PANELS + p) * BN + row, piece));
          }
    }
  };
  struct Sums {
    float of[CHAINS][GATES][TALL][WIDE][4] = {};
    float squares[OWN ? CHAINS : 1][WIDE][4] = {};  // of tokens by themselves: on the diagonal
    // Tokens of a panel that are normalised here: their squares, and what is multiplied in their place.
    DEVICE void scale(unsigned (&tokens)[4], const unsigned (&gains)[4], int panel) {
      const int at = WIDE > 1 ? 0 : panel % 2 * 2;
      unsigned all[4] = {tokens[at], 0, tokens[at + 1], 0};
      if (WIDE > 1) all[1] = tokens[2], all[3] = tokens[3];
#pragma unroll
      for (int w = 0; w < WIDE && OWN; ++w) {
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
        if (OWN && p % 2 == 0) load_gains(gains, slot, p);
        if (WIDE > 1 || p % 2 == 0) load_tokens(tokens, slot, line, p);
        if constexpr (OWN) scale(tokens, gains, p);
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
    // Over the chains, of 8 tokens, in the lanes that have the diagonal's.
    DEVICE float square(int w, int token) const {
      float sum = 0.0f;
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) sum += token % 2 ? squares[c][w][w * 2 + 1] : squares[c][w][w * 2];
      return sum;
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
        if (at < BM && token < op.residual_rows && feature < op.n)
          residual[r] = load_pair_now(op.residual + (long long)token * op.n + feature);
      }
      if (!POLLS) ask(op, first);
    }
    // The next squares, if there are more.
    DEVICE void ask(const Epilogue& op, int first) {
      const int t = thread();
#pragma unroll
      for (int f = 0; f < ASKED; ++f) {
        const int token = first + t / TEAM, at = (asked + f) * TEAM + t % TEAM;
        squares[f] = make_float4(0, 0, 0, 0);
        const bool mine = t / TEAM < BM && token < op.m && at < SQUARES / 4;
        if (mine) squares[f] = load_four_now(op.x_squares + (long long)token * SQUARES + at * 4);
      }
      asked += ASKED;
    }
    DEVICE void add() {
#pragma unroll
      for (int f = 0; f < ASKED; ++f) sum += (squares[f].x + squares[f].y) + (squares[f].z + squares[f].w);
    }
    DEVICE void go_on(const Epilogue& op, int first) {
      if (POLLS || FOURS <= ASKED || asked >= FOURS) return;
      add();
      ask(op, first);
    }
    // The factor of the team's token.
    DEVICE float factor(const Epilogue& op, int first) {
#pragma unroll 1
      while (!POLLS && FOURS > ASKED && asked < FOURS) go_on(op, first);
      if (!POLLS) add();
      return rsqrtf(sum_of<TEAM>(sum) / NORMALISED + __uint_as_float(EPS_BITS));
    }
  };

  // Squares that are words, all of a thread at once.
  struct Squares {
    Words<4> fours[FOURS > 0 ? FOURS : 1];
    const unsigned long long* from[FOURS > 0 ? FOURS : 1];
    DEVICE Squares(const Epilogue& op, const Item& item) {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const int t = thread(), token = item.i * BM + t / TEAM, at = f * TEAM + t % TEAM;
        const bool mine = t / TEAM < BM && token < op.m && at < SQUARES / 4;
        from[f] = op.x_squares_words + (long long)token * SQUARES + at * 4;
        fours[f].wanted = publication(item, op.x_squares_number, op.publications);
        fours[f].forget();
#pragma unroll
        for (int n = 0; n < 4 && !mine; ++n) fours[f].skip(n);
      }
    }
    DEVICE void look() {
#pragma unroll
      for (int f = 0; f < FOURS; ++f) fours[f].ask_two([&](int n) { return from[f] + n; });
    }
    DEVICE float come(const Launch& launch, const Item& item, const Epilogue& op) {
      float sum = 0.0f;
      Patience patience;
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        const auto number = [&](int n) { return fours[f].number(n); };
#pragma unroll 1
        for (; !fours[f].came(); look())
          if (patience.over(launch, item, fours[f].wanted, op.x_squares_number)) break;
        sum += (number(0) + number(1)) + (number(2) + number(3));
      }
      return sum;
    }
  };

  // Whether its tokens, and their factors, are those of the block's item before, which is of the same op.
  DEVICE static bool finds_tokens(const Item& item) { return HERE && item.code & AGAIN; }
  // Tokens that are words and few: the consumers poll all of a tile, and store them as bulk loads would.
  struct Tokens {
    static constexpr int SAMPLED = 4;  // one of so many threads asks for a sample
    const Launch& launch;
    const Item& item;
    const Epilogue& op;
    DEVICE Tokens(const Launch& launch, const Item& item, const Epilogue& op) : launch(launch), item(item), op(op) {}
    DEVICE static int line_of(int w) { return w / 2 * LINES_AT_ONCE + thread() / 16; }
    DEVICE const unsigned long long* at(int line) const {
      return op.x_words + line % ROWS * (op.k / 2) + line / ROWS * 32 + thread() % 16 * 2;
    }
    DEVICE bool over(Patience& patience, unsigned wanted) const {
      return patience.over(launch, item, wanted, op.x_number);
    }
    // Until one of a sample has come that a warp asks for: all SMs wait for the same, and what they ask for delays what
    // is under way elsewhere.
    DEVICE void await_sample(unsigned wanted) const {
      const unsigned long long* const sample = at(min(line_of(0), op.k / 64 * ROWS - 1));
      const bool mine = thread() % SAMPLED == 0;
      unsigned long long word = 0;
      Patience patience;
#pragma unroll 1
      do {
        if (mine) load_word(word, sample);
      } while (!__any_sync(0xffffffff, (mine && is_of(word, wanted)) || over(patience, wanted)));
    }
    // By all threads, before the first product.
    DEVICE void await_all(Extras& extras) const {
      if (finds_tokens(item)) return;
      Words<2 * TOKEN_PAIRS> words(publication(item, op.x_number, op.publications));
#pragma unroll
      for (int w = 0; w < 2 * TOKEN_PAIRS; w += 2)
        if (line_of(w) >= op.k / 64 * ROWS) words.skip(w), words.skip(w + 1);
      await_sample(words.wanted);
      Squares squares(op, item);
      Patience patience;
#pragma unroll 1
      for (;;) {
        words.ask_two([&](int w) { return at(line_of(w)); });
        squares.look();
        if (words.came() || over(patience, words.wanted)) break;
      }
#pragma unroll
      for (int w = 0; w < 2 * TOKEN_PAIRS; w += 2) {
        const unsigned to = place(scratch_of(0), line_of(w), thread() % 16 / 2) + thread() % 2 * 8;
        if (line_of(w) >= ALL_LINES) continue;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"((int)words.data(w)), "r"((int)words.data(w + 1))
                     : "memory");
      }
      extras.sum = squares.come(launch, item, op);
      synchronise_block();
    }
  };

  // `COUNT` stages from `n` on: weights into registers, so that others may have their slots, and products when tokens
  // are there.
  template <int COUNT>
  DEVICE static void take(const Launch& launch, const Item& item, const Epilogue& op, Stage& stage, Sums& sums,
                          Extras& extras, int feature, int n) {
    Weights weights[COUNT];
    take_weights(stage, weights, BN);
    if (n == 0) begin(launch, item, op, stage, extras, feature);
#pragma unroll
    for (int s = 0; s < COUNT; ++s) {
      await(load_full(stage.slot), stage.phase);
      if constexpr (HERE) sums.add(weights[s], scratch_of(0), (n + s) * LINES);
      else sums.add(weights[s], load_slot(stage.slot), 0);
      __syncwarp();
      release_load(stage.slot);
      stage.advance();
    }
    if (n > 0) extras.go_on(op, item.i * BM);
  }
  // Until tokens are there, of the first stage at least, and what the epilogue takes is there or on its way.
  DEVICE static void begin(const Launch& launch, const Item& item, const Epilogue& op, const Stage& stage,
                           Extras& extras, int feature) {
    if constexpr (POLLS && !HERE && NORMALISED > 0) {  // who leaves tokens leaves squares with them
      Squares squares(op, item);
      squares.look();
#pragma unroll 1
      while (!mbarrier_passed(load_full(stage.slot), stage.phase)) squares.look();
      extras.sum = squares.come(launch, item, op);
    }
    await(load_full(stage.slot), stage.phase);
    extras.load(op, item.i * BM, feature);
    if constexpr (HERE) Tokens(launch, item, op).await_all(extras);
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    if (WARPGROUPS > 1) synchronise_block();  // bodies that have tiles for each warpgroup leave the scratch one by one
    Sums sums;
    const int feature = item.j * BN + thread() % PAIRS * 2;
    Extras extras;
    extras.load_early(op, feature);
    const int stages = (item.k_hi - item.k_lo + BK - 1) / BK;
    keep_last(item, stage, stages, HELD);
    int n = 0;
    if constexpr (HELD > 1) {
#pragma unroll 1
      for (; n + HELD <= stages; n += HELD) take<HELD>(launch, item, op, stage, sums, extras, feature, n);
    }
    if constexpr (HELD == 1 || LEFT) {
#pragma unroll 1
      for (; n < stages; ++n) {
        if (WARPGROUPS > 1 && n % WARPGROUPS != warpgroup()) {  // another's; seen before it is handed back
          await_stage(stage);
          if (n == 0) begin(launch, item, op, stage, extras, feature);
          __syncwarp();
          release(stage, stage.slot);
          stage.advance();
        } else {
          take<1>(launch, item, op, stage, sums, extras, feature, n);
        }
      }
    }
    finish(op, item, sums, extras, feature);
    note_words(launch, item);
    if (WARPGROUPS > 1) synchronise_block();
  }

  // Of a token: what stands there, or made of the squares that warps left.
  DEVICE static float factor_of(const float* factors, int token) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < ALL_WARPS && OWN; ++w) sum += factors[w * BM + token];
    return OWN ? rsqrtf(sum / NORMALISED + __uint_as_float(EPS_BITS)) : factors[token];
  }
  DEVICE static void finish(const Epilogue& op, const Item& item, const Sums& sums, Extras& extras, int feature) {
    const unsigned own = publication(item, op.number, op.publications);
    float* const left = scratch<float>() + TOKEN_BYTES / 4;
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
    if constexpr (OWN) {
      const int token = lane / 4;  // of 8; of a warp's k
#pragma unroll
      for (int w = 0; w < WIDE; ++w)
        if (lane % 4 == token / 2) factors[warp * BM + w * 8 + token] = sums.square(w, token);
    } else if constexpr (NORMALISED > 0) {
      if (!finds_tokens(item)) {
        const float factor = extras.factor(op, item.i * BM);
        if (thread() % TEAM == 0 && thread() / TEAM < BM) factors[thread() / TEAM] = factor;
      }
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
          const float2 part =
              *reinterpret_cast<const float2*>(left + ((w * GATES + g) * ROWS + at) * WIDTH + thread() % PAIRS * 2);
          value[g].x += part.x, value[g].y += part.y;
        }
      }
      if constexpr (NORMALISED > 0) {
        const float factor = inside ? factor_of(factors, at) : 0.0f;
#pragma unroll
        for (int g = 0; g < GATES; ++g) value[g].x *= factor, value[g].y *= factor;
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
      } else if (SAYS && inside) {
        store_word(op.out_words + where / 2, pair, own);
      }
      if constexpr (LEAVES) {
        const float low = low_of(pair), high = high_of(pair);
        const unsigned scaled = as_pair(low * low_of(extras.scale), high * high_of(extras.scale));
        if (LEAVES_WORDS && inside) store_word(op.scaled_words + where / 2, scaled, own);
        const float sum = sum_of<SQUARED / 2>(inside ? low * low + high * high : 0.0f);
        if (inside) {
          const long long block = (long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED;
          if constexpr (LEAVES_WORDS) {
            if (feature % SQUARED == 0) store_word(op.squares_words + block, __float_as_uint(sum), own);
          }
          *reinterpret_cast<unsigned*>(op.scaled + where) = scaled;
          if (feature % SQUARED == 0) op.squares[block] = sum;
        }
      }
      // Words first, for which others wait.
      if (!RAGGED && inside && (!LEAVES || op.out)) *reinterpret_cast<unsigned*>(op.out + where) = pair;
    }
  }
};
