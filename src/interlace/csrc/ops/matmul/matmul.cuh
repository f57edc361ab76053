// Matmul with wgmma (kernels/matmul/cuda.py).
#pragma once

// Bytes from one row to the next of what an epilogue turns round: 64 elements, and 16 bytes against bank conflicts.
constexpr int PITCH = 64 * 2 + 16;
// Of a thread, for sums and for the parts that are added to them, 16 bytes a load.
constexpr int SUM_REGISTERS = WARPGROUPS == 1 ? 144 : WARPGROUPS == 2 ? 136 : 104;
constexpr int MOST_EARLY = WARPGROUPS > 2 ? 16 : HELD_REGISTERS > 100 ? 48 : 32;  // the latter alone, with products

template <int BM_, int BN_, int BK_, int ROWS_, int GATES_, bool TRANSPOSED_, int ACTIVATION_, bool BIAS, bool RESIDUAL,
          bool RAGGED, int TOGETHER, int SQUARED = 0, bool LEAVES = false, int NORMALISED = 0, unsigned EPS_BITS = 0,
          int SHARES = 1>
struct Matmul {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, GATES = GATES_, ACTIVATION = ACTIVATION_;
  // Rows of tokens that are loaded, at most. With fewer than a tile has, products take what lies behind them, whatever
  // it is, for further tokens: a row of sums depends on no other.
  static constexpr int ROWS = ROWS_;
  static constexpr bool TRANSPOSED = TRANSPOSED_;
  static constexpr int PANELS = BK / 64;
  // Stages of independent loads under way: what saturates memory, of which a block has its shares.
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES * CLUSTER_ROWS + GATES * BN * BK * 2 - 1) / (GATES * BN * BK * 2);
  static constexpr int TALL = TRANSPOSED ? BN : BM, WIDTH = TRANSPOSED ? BM : BN;
  static constexpr int BLOCKS = TALL / WARPGROUPS / 64;  // of 64 rows, in a warpgroup
  static constexpr int SUMS = WIDTH / 2;                 // registers of a block of rows
  static constexpr int COUNT = GATES * BLOCKS * SUMS;    // registers of all sums
  // Registers of a stage's weights, and stages that may be held in registers: half of the ring at most.
  static constexpr int OF_STAGE = GATES * BLOCKS * PANELS * 16;
  static constexpr int ROOM = TRANSPOSED && WARPGROUPS * CLUSTER == 1 ? HELD_REGISTERS - COUNT : 0;
  static constexpr int FIT = ROOM < 0 ? 0 : ROOM / OF_STAGE, MOST_HELD = FIT < STAGES / 2 ? FIT : STAGES / 2;
  // Whether rows are normalised here; else others left their squares, if they are normalised at all.
  static constexpr bool OWN = NORMALISED > 0 && SQUARED == 0, FACTORED = NORMALISED > 0 && !OWN;
  static_assert(!OWN || (!TRANSPOSED && BLOCKS <= 2), "such rows are the 64-row operand, and fit the registers");
  // Sums of so many other parts are loaded at once; if these are few, while the last products are under way.
  static constexpr int OTHERS = TOGETHER - 1;
  static constexpr bool EARLY = OTHERS > 0 && OTHERS* COUNT <= MOST_EARLY && !OWN;
  // Where parts share sums: groups of 8 columns of a share, one more in the first MORE, and 16 bytes of a thread.
  static constexpr int MORE = WIDTH / 8 % SHARES, GROUPS = WIDTH / 8 / SHARES + (MORE > 0);
  static constexpr int SHARE = GROUPS * 8, PIECES = GATES * BLOCKS * GROUPS;
  // Of a share that is small the residual is under way while others' sums are awaited.
  static constexpr bool RESIDUAL_AHEAD = RESIDUAL && TRANSPOSED && SHARES > 1 && SHARE <= 64 && BLOCKS* GROUPS <= 4;
  // Of rows of x that are normalised (NORMALISED: their elements) the factors lie behind the scratch of a warpgroup
  // that multiplies them.
  typedef Factors<TRANSPOSED ? BM : BLOCKS * 64, NORMALISED, SQUARED, EPS_BITS> RowFactors;
  // What is multiplied of rows that are normalised here, at a time. Their squares are one more piece of a thread, where
  // tiles are split.
  static constexpr int AT_ONCE = PANELS % 2 ? 1 : 2, STEPS = PANELS / AT_ONCE;
  typedef Scaled<AT_ONCE, BLOCKS, ROWS> Tokens;
  typedef float Squares[BLOCKS][2];
  static constexpr int GAINS_AT = PANELS * ROWS * 128;
  // Of a thread of a part, and of a share, pieces in the workspace.
  static constexpr int OF_PART = COUNT / 4 + OWN, OF_SHARE = PIECES + OWN;
  // Where rows are tokens the residuals of 64 columns at a time are: of a share's first while others' sums are awaited,
  // of others while those before are stored.
  typedef unsigned Residuals[RESIDUAL && !TRANSPOSED ? 8 : 1][2];
  static constexpr int FACTORS = (TRANSPOSED && WIDTH < 64 ? WIDTH : 64) * PITCH;
  // Of a thread: its 8 of each 64 features of the scale.
  static constexpr int GAINS = TRANSPOSED ? BLOCKS : (WIDTH + 63) / 64;
  static constexpr bool GAINS_EARLY = GAINS <= 2;

  // Of the rows of a box those that a tensor has where so many are left, in steps of 8 of each share. A bulk load is
  // slow at rows beyond its tensor, so the last box is a smaller one; what lies behind its rows in a slot is anything.
  template <int OF> DEVICE static int inside(int left, int rows) {
    return left >= rows ? rows : max(0, (left + 8 * OF - 1) / (8 * OF) * (8 * OF));
  }
  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.j * BN), rows = uniform(inside<CLUSTER_ROWS>(op.n - row, BN));
    const TensorMap &weight = rows == BN ? op.weight : op.weight_last, &gate = rows == BN ? op.gate : op.gate_last;
    const int before = rows_before<false>(rows);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      tickets.look(launch);
      open_prefetch(stage, n, IN_FLIGHT, GATES * PANELS * rows * 128);
      const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
      const int column = uniform(k);
      if (first_lane()) {
        const int left = op.x_rows - item.i * BM;
        if (k == item.k_lo) prefetch_map(inside<CLUSTER_COLUMNS>(left, ROWS) == ROWS ? op.x : op.x_last);
        if (OWN && k == item.k_lo) prefetch_map(op.x_scale);
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          const unsigned target = slot + (p * BN + before) * 128;
          if (GATES == 2) load_share<false>(target, gate, column + p * 64, row + before, full);
          load_share<false>(target + (GATES - 1) * PANELS * BN * 128, weight, column + p * 64, row + before, full);
        }
      }
      stage.advance();
      ++n;
    }
  }
  DEVICE static void look_ahead(const Launch& launch, Item& item) {
    item.given.count = operands_of<Operands>(launch, item).x_rows;
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.i * BM), rows = uniform(inside<CLUSTER_COLUMNS>(item.given.count - row, ROWS));
    const TensorMap& x = rows == ROWS ? op.x : op.x_last;
    const int before = rows_before<true>(rows);
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += BK) {
      open_load(stage, PANELS * (rows + OWN) * 128);
      const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
      const int column = uniform(k);
      if (OWN && first_lane()) tma_load_2d(slot + GAINS_AT, op.x_scale, 0, column / 64, full);
      if (first_lane() && rows > 0)
#pragma unroll
        for (int p = 0; p < PANELS; ++p)
          load_share<true>(slot + (p * ROWS + before) * 128, x, column + p * 64, row + before, full);
      stage.advance();
    }
  }

  typedef float AllSums[GATES][BLOCKS][SUMS];
  DEVICE static void settle_all(AllSums& sums) {
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) settle(sums[g][b]);
  }
  // The first stages of an item: products of weights in registers, when tokens are there.
  template <int HELD>
  DEVICE static void take_ahead(const Item& item, const Epilogue& op, Stage& stage, AllSums& sums,
                                RowFactors& factors) {
    Tall<PANELS, GATES, BLOCKS, BN> weights[HELD];
    take_weights(stage, weights, inside<1>(op.n - item.j * BN, BN));
    load_factors(item, op, stage, factors);
    settle_all(sums);  // or ptxas lets no products be under way, of any tile (C7520)
    int before = -1;
#pragma unroll
    for (int s = 0; s < HELD; ++s) {
      await(load_full(stage.slot), stage.phase);
      const unsigned tokens = operand(load_slot(stage.slot));
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<WIDTH>::add(sums[g][b], weights[s].pieces[p][g][b][i], descriptor(tokens + p * ROWS * 8 + i * 2));
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) release_load(before);
      before = stage.slot;
      stage.advance();
    }
    wgmma_wait<0>();
    release_load(before);
  }
  // Of rows that are not there nothing is multiplied: sums and squares stay zero.
  DEVICE static void take_none(const Item& item, Stage& stage) {
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      await_stage(stage);
      __syncwarp();
      release(stage, stage.slot);
      stage.advance();
    }
  }
  // Rows that are normalised here: tokens are scaled, a panel or two at a time, while products of what came before are
  // under way. Steps go by pairs, since registers have no index; of an odd number the first goes alone.
  DEVICE static void multiply_scaled(const Launch& launch, const Item& item, Stage& stage, AllSums& sums,
                                     Squares& squares) {
    const int count = inside<1>(operands_of<Operands>(launch, item).x_rows - item.i * BM, ROWS);
    if (count == 0) return take_none(item, stage);
    typename Tokens::Rows rows(count);
    int left = (item.k_hi - item.k_lo + BK - 1) / BK * STEPS;
    // Of the stage ahead, of that which is multiplied and of the oldest: how many of its pieces are done with.
    int scaled = 0, begun = 0, ended = 0, oldest = stage.slot;
    Stage ahead = {stage.slot, stage.phase};
    Tokens even, odd;
    const auto scale = [&](Tokens& tokens) {
      if (scaled == 0) await(load_full(ahead.slot), ahead.phase);
      const unsigned slot = load_slot(ahead.slot), first = scaled * AT_ONCE * 128;
      tokens.load(slot + first * ROWS, slot + GAINS_AT + first, rows);
      if (++scaled < STEPS) return;
      __syncwarp();
      release_load(ahead.slot);
      ahead.advance();
      scaled = 0;
    };
    const auto multiply = [&](const Tokens& tokens) {
      if (begun == 0) await(prefetch_full(stage.slot), stage.phase);
      const unsigned weights = operand(prefetch_slot(stage.slot)) + begun * AT_ONCE * BN * 8;
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < AT_ONCE; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<WIDTH>::add(sums[g][b], tokens.pieces[p][0][b][i],
                                  descriptor(weights + (g * PANELS + p) * BN * 8 + i * 2));
      wgmma_commit();
      if (++begun < STEPS) return;
      stage.advance();
      begun = 0;
    };
    const auto hand_back = [&] {
      if (++ended < STEPS) return;
      release_prefetch(stage, oldest);
      oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
      ended = 0;
    };
    settle_all(sums);  // or ptxas lets no products be under way (C7520)
    if (left % 2) {
      scale(odd);
      multiply(odd);
      wgmma_wait<0>();
      hand_back();
    }
    if (left > 1) {
      scale(even);
      multiply(even);
      scale(odd);
#pragma unroll 1
      for (left -= left % 2 + 2; left > 0; left -= 2) {
        multiply(odd);
        wgmma_wait<1>();
        hand_back();
        scale(even);
        multiply(even);
        wgmma_wait<1>();
        hand_back();
        scale(odd);
      }
      multiply(odd);
      wgmma_wait<0>();
      hand_back();
      hand_back();
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) squares[b][r] = rows.squares[b][r];
  }
  // Behind the item's waits: factors are of the launch's.
  DEVICE static void load_factors(const Item& item, const Epilogue& op, const Stage& stage, RowFactors& factors) {
    if constexpr (FACTORED && RowFactors::EARLY) {
      await(load_full(stage.slot), stage.phase);
      factors.load(op, first_factor(item));
    }
  }
  DEVICE static int first_factor(const Item& item) {
    return item.i * BM + (TRANSPOSED ? 0 : warpgroup() * BLOCKS * 64);
  }

  // Of items whose first HELD stages are taken ahead.
  template <int HELD> DEVICE static void compute_with(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);  // under way while the first stage is
    AllSums sums;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[g][b][i] = 0.0f;
    int4 gains[GAINS];
    const int feature = item.j * BN + (TRANSPOSED ? warpgroup() * BLOCKS * 64 : 0);
    if constexpr (LEAVES && GAINS_EARLY) load_gains(op, feature, gains);
    RowFactors factors;
    Squares squares = {};
    const unsigned to = scratch_of(warpgroup()) + FACTORS;
    const int own = uniform(warpgroup());
    int before = -1;
    keep_last(item, stage, (item.k_hi - item.k_lo + BK - 1) / BK, HELD);
    if constexpr (OWN) multiply_scaled(launch, item, stage, sums, squares);
    else if constexpr (HELD > 0) take_ahead<HELD>(item, op, stage, sums, factors);
    else load_factors(item, op, stage, factors);
#pragma unroll 1
    for (int k = OWN ? item.k_hi : item.k_lo + HELD * BK; k < item.k_hi; k += BK) {
      await_stage(stage);
      const unsigned weights = operand(prefetch_slot(stage.slot)), tokens = operand(load_slot(stage.slot));
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g) {
          const unsigned weight = weights + (g * PANELS + p) * BN * 8, token = tokens + p * ROWS * 8;
          const unsigned tall = (TRANSPOSED ? weight : token) + own * BLOCKS * 64 * 8;
          const unsigned wide = TRANSPOSED ? token : weight;
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<WIDTH>::add(sums[g][b], descriptor(tall + b * 64 * 8 + i * 2), descriptor(wide + i * 2));
        }
      wgmma_commit();
      // The products of a stage stay under way while those of the next are issued; then its slots are handed back.
      wgmma_wait<1>();
      if (before >= 0) release(stage, before);
      before = stage.slot;
      stage.advance();
      if constexpr (FACTORED && !RowFactors::EARLY)
        if (k >= item.k_hi - RowFactors::STEPS * BK) factors.go_on(op, first_factor(item), to);
    }
    if constexpr (FACTORED && RowFactors::EARLY) factors.leave(to);
    float4 early[EARLY ? OTHERS * COUNT / 4 : 1];
    if constexpr (EARLY)
      if (closes(item)) look(early, Others<COUNT / 4>(launch, item, 0, 0));
    wgmma_wait<0>();
    if (before >= 0) release(stage, before);
    settle_all(sums);
    // What is left of them; a loop ahead of the last products would let none be under way (C7515).
    if constexpr (FACTORED && !RowFactors::EARLY) factors.go_on_to_end(op, first_factor(item), to);
    if constexpr (SHARES > 1) {
      float own[GATES][BLOCKS][SHARE / 2];
      leave_shares(launch, item, sums, own, squares);
      Residuals first;
      look_at_residuals<SHARE>(op, item, 0, 0, first);
      unsigned short residual[RESIDUAL_AHEAD ? BLOCKS : 1][GROUPS][4];
      if constexpr (RESIDUAL_AHEAD)
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
          load_residual(op, feature + b * 64, item.i * BM + first_column<SHARE>(item), residual[b]);
      add_shares(launch, item, own, squares);
      if constexpr (FACTORED) normalise<SHARE>(item, own);
      if constexpr (OWN) normalise_rows<NORMALISED, EPS_BITS>(own, squares);
      if constexpr (LEAVES && !GAINS_EARLY) load_gains(op, feature, gains);
      return finish<SHARE>(op, item, own, gains, residual, first);
    }
    if (OTHERS > 0 && item.parts > 1) {
      if (!closes(item)) return leave(launch, item, sums, squares);
      add_others(launch, item, sums, early, squares);
    }
    if constexpr (FACTORED) normalise<WIDTH>(item, sums);
    if constexpr (OWN) normalise_rows<NORMALISED, EPS_BITS>(sums, squares);
    if constexpr (LEAVES && !GAINS_EARLY) load_gains(op, feature, gains);
    finish<WIDTH>(op, item, sums, gains);
  }

  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    compute_with<0>(launch, item, stage);
  }
  // Where every item has LEAST stages or more. With a branch for others ptxas lets none be under way either (C7514).
  template <int LEAST, class TILE = Matmul> struct Ahead : TILE {
    DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
      TILE::template compute_with<(LEAST < TILE::MOST_HELD ? LEAST : TILE::MOST_HELD)>(launch, item, stage);
    }
  };

  DEVICE static int groups_of(int share) { return MORE ? GROUPS - (share >= MORE) : GROUPS; }
  DEVICE static int first_group(int share) { return MORE ? share * GROUPS - max(share - MORE, 0) : share * GROUPS; }
  // The first column of a tile, or of a part's share of it.
  template <int COLUMNS> DEVICE static int first_column(const Item& item) {
    if constexpr (COLUMNS == WIDTH) return 0;
    return first_group(item.part) * 8;
  }
  // Whether a column of a part's share, from its first on, is one of it: those of a narrower share end before.
  DEVICE static bool is_own(const Item& item, int column) { return MORE == 0 || column < groups_of(item.part) * 8; }
  // Sums times the factors of their tokens, of a tile or a share.
  template <int COLUMNS> DEVICE static void normalise(const Item& item, float (&sums)[GATES][BLOCKS][COLUMNS / 2]) {
    const int from = first_column<COLUMNS>(item);
    synchronise();
    const unsigned factors = scratch_of(warpgroup()) + FACTORS;
    const int thread = threadIdx.x % 128, column = thread % 4 * 2;
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int b = 0; b < (TRANSPOSED ? 1 : BLOCKS); ++b)
#pragma unroll
      for (int j = 0; j < (TRANSPOSED ? COLUMNS / 8 : 1); ++j) {
        if constexpr (TRANSPOSED && COLUMNS < WIDTH)
          if (!is_own(item, j * 8)) continue;
        const unsigned at = factors + (TRANSPOSED ? from + j * 8 + column : b * 64 + row) * 4;
        const float first = load_shared_float(at), second = load_shared_float(at + (TRANSPOSED ? 4 : 32));
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int t = 0; t < (TRANSPOSED ? BLOCKS * 4 : COLUMNS / 2); ++t) {
            float& sum = TRANSPOSED ? sums[g][t / 4][j * 4 + t % 4] : sums[g][b][t];
            sum *= (TRANSPOSED ? t % 2 : t / 2 % 2) ? second : first;
          }
      }
  }

#include "fix_up.inc"

  // Bias, activation and gate of one element.
  DEVICE static float value_of(float up, float gate, float bias) {
    return activated<GATES, ACTIVATION>(BIAS ? up + bias : up, gate);
  }
  DEVICE static float bias_of(const Epilogue& op, int feature) {
    return feature < op.n ? as_float(__ldg(op.bias + feature)) : 0.0f;
  }
  // Of two features, the first an even one.
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
  // An element of the residual; where it stands it is loaded, not where it is needed first.
  DEVICE static unsigned short residual_of(const Epilogue& op, int token, int feature) {
    unsigned short bits = 0;
    if (token < op.residual_rows && feature < op.n) {
      const ELEMENT* const at = op.residual + (long long)token * op.n + feature;
      asm volatile("ld.global.cg.b16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
    }
    return bits;
  }

  // Of 64 features from the first on and some tokens, 8 at a time, those of which a thread has sums.
  template <int N>
  DEVICE static void load_residual(const Epilogue& op, int feature, int token, unsigned short (&residual)[N][4]) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N * 4; ++n)
      residual[n / 4][n % 4] = residual_of(op, token + n / 4 * 8 + column + n % 2, feature + row + n / 2 % 2 * 8);
  }

  // Of 64 columns of a block of rows, from one on, of a tile or a share.
  template <int COLUMNS>
  DEVICE static void look_at_residuals(const Epilogue& op, const Item& item, int block, int from,
                                       Residuals& residuals) {
    if constexpr (RESIDUAL && !TRANSPOSED) {
      const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
      const int token = item.i * BM + warpgroup() * BLOCKS * 64 + block * 64 + row;
      const int feature = item.j * BN + (COLUMNS < WIDTH ? first_column<COLUMNS>(item) : 0) + from + column;
#pragma unroll
      for (int n = 0; n < 16 && from + n / 2 * 8 < COLUMNS; ++n)
        residuals[n / 2][n % 2] = residuals_of(op, token + n % 2 * 8, feature + n / 2 * 8);
    }
  }
  template <int COLUMNS>
  DEVICE static void finish(const Epilogue& op, const Item& item, const float (&sums)[GATES][BLOCKS][COLUMNS / 2],
                            const int4 (&gains)[GAINS]) {
    const unsigned short none[1][COLUMNS / 8][4] = {};
    Residuals first;
    look_at_residuals<COLUMNS>(op, item, 0, 0, first);
    finish<COLUMNS>(op, item, sums, gains, none, first);
  }
  // A scratch of shared memory turns 64 features of up to 64 tokens at a time into rows of 16-byte pieces, of a tile or
  // a share.
  template <int COLUMNS, int N>
  DEVICE static void finish(const Epilogue& op, const Item& item, const float (&sums)[GATES][BLOCKS][COLUMNS / 2],
                            const int4 (&gains)[GAINS], const unsigned short (&residual_ahead)[N][COLUMNS / 8][4],
                            Residuals& ahead) {
    const int from = first_column<COLUMNS>(item);
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    const unsigned scratch = scratch_of(warpgroup());
    const int first_tall = (TRANSPOSED ? item.j * BN : item.i * BM) + warpgroup() * BLOCKS * 64;
    int first_wide = TRANSPOSED ? item.i * BM : item.j * BN;
    if constexpr (COLUMNS < WIDTH) first_wide += from;
    constexpr int CHUNK = COLUMNS < 64 ? COLUMNS : 64, PIECE = RAGGED ? 2 : 8;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c += CHUNK) {
        constexpr int LAST = COLUMNS % CHUNK ? COLUMNS % CHUNK : CHUNK;
        const int wide = c + CHUNK <= COLUMNS ? CHUNK : LAST;
        unsigned short residual[RESIDUAL && TRANSPOSED ? CHUNK / 8 : 1][4];
        if constexpr (RESIDUAL_AHEAD && COLUMNS == SHARE) {
#pragma unroll
          for (int n = 0; n < wide / 8 * 4; ++n) residual[n / 4][n % 4] = residual_ahead[N > 1 ? b : 0][n / 4][n % 4];
        } else if constexpr (RESIDUAL && TRANSPOSED) {
#pragma unroll
          for (int n = 0; n < wide / 8 * 4; ++n) {
            const int tall = first_tall + b * 64 + row + n / 2 % 2 * 8;
            const int across = first_wide + c + n / 4 * 8 + column + n % 2;
            residual[n / 4][n % 4] = residual_of(op, across, tall);
          }
        }
#pragma unroll
        for (int j = 0; j < wide / 8; ++j) {
          const unsigned biases = BIAS && !TRANSPOSED ? biases_of(op, first_wide + c + j * 8 + column) : 0;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int at = (c / 8 + j) * 4 + h * 2;
            const int tall_at = row + h * 8, wide_at = j * 8 + column;
            const int tall = first_tall + b * 64 + tall_at;
            const float* const gate = GATES == 2 ? &sums[0][b][at] : &sums[GATES - 1][b][at];
            const float* const up = &sums[GATES - 1][b][at];
            const float bias = BIAS && TRANSPOSED ? bias_of(op, tall) : as_float(biases & 0xffff);
            float low = value_of(up[0], gate[0], bias);
            float high = value_of(up[1], gate[1], TRANSPOSED ? bias : as_float(biases >> 16));
            if constexpr (RESIDUAL && TRANSPOSED)
              low += as_float(residual[j][h * 2]), high += as_float(residual[j][h * 2 + 1]);
            if constexpr (RESIDUAL && !TRANSPOSED)
              low += as_float(ahead[j][h] & 0xffff), high += as_float(ahead[j][h] >> 16);
            const unsigned pair = as_pair(low, high);
            if (TRANSPOSED) {
              store_shared_16(scratch + wide_at * PITCH + tall_at * 2, pair & 0xffff);
              store_shared_16(scratch + (wide_at + 1) * PITCH + tall_at * 2, pair >> 16);
            } else {
              store_shared_32(scratch + tall_at * PITCH + wide_at * 2, pair);
            }
          }
        }
        synchronise();
        const int tokens = TRANSPOSED ? wide : 64;
        // Where rows are scaled a thread has the same columns of each, if there are so many.
        const int pieces = (TRANSPOSED || LEAVES ? 64 : wide) / PIECE;
        const int first_token = TRANSPOSED ? first_wide + c : first_tall + b * 64;
        const int first_feature = TRANSPOSED ? first_tall + b * 64 : first_wide + c;
        if (c + CHUNK < COLUMNS) look_at_residuals<COLUMNS>(op, item, b, c + CHUNK, ahead);
        else if (b + 1 < BLOCKS) look_at_residuals<COLUMNS>(op, item, b + 1, 0, ahead);
        for (int piece = thread; piece < tokens * pieces; piece += 128) {
          int token = first_token + piece / pieces;
          const int feature = first_feature + piece % pieces * PIECE;
          if constexpr (COLUMNS < WIDTH && MORE > 0)
            if (!is_own(item, c + (TRANSPOSED ? piece / pieces : piece % pieces * PIECE))) token = op.m;
          if constexpr (RAGGED) {
            const unsigned pair = load_shared_pair(scratch + piece / pieces * PITCH + piece % pieces * 4);
            if (token < op.m && feature < op.n) store_ragged(op, token, feature, pair);
            continue;
          }
          int4 values = make_int4(0, 0, 0, 0);
          if (LEAVES && !TRANSPOSED && piece % pieces * PIECE >= wide) token = op.m;
          else values = load_shared_128(scratch + piece / pieces * PITCH + piece % pieces * 16);
          if (token < op.m && feature < op.n && (!LEAVES || op.out))
            *reinterpret_cast<int4*>(op.out + (long long)token * op.n + feature) = values;
          if constexpr (LEAVES) leave_scaled<SQUARED>(op, token, feature, values, gains[TRANSPOSED ? b : c / 64]);
        }
        if (b + 1 < BLOCKS || c + CHUNK < COLUMNS) synchronise();
      }
    }
  }
};
