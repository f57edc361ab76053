// Matmul of the megakernel with wgmma: out = epilogue(x @ weight^T), and gated: epilogue(x @ gate^T, x @ weight^T).
//
//   x        (m, k)   tokens, row by row                  loaded after the item's waits, by the dependent loader
//   weight   (n, k)   one row for each output feature     prefetched before them; the same for `gate`
//   out      (m, n)
//
// A tile is BM tokens by BN weight rows, its reduction [k_lo, k_hi) of the item, a stage of the ring BK of k. Rows of
// the tensor core's product are tokens; with swap-AB they are weight rows, which keeps the 64-row operand full where
// there are few tokens. accumulators.cuh says which thread has which element.
//
// Operands lie in a slot as panels of 64 elements of k: BN (or ROWS) rows of 128 bytes with the 128-byte swizzle, one
// panel after another; panels of the gate come first, then those of the other weights. The last boxes along m and n are
// as small as their tensors leave them, bulk loads fill what lies beyond k with zeros, and stores are masked. So any m
// is right, any n (RAGGED if no multiple of 8), and any k that is a multiple of 8.
//
// Roles:
//   prefetch   loader: weights of a stage into its prefetch slot, at most IN_FLIGHT stages ahead of their arrival
//   load       loader, after waits: tokens of a stage into its load slot
//   compute    consumer warpgroups: products; each stage is released when the products of the next are issued. Then
//              the split-K fix-up (fix_up.cuh) and the folded norm (folded_norm.cuh)
//   store      the same: epilogue and stores (output.cuh)
//
// A folded norm costs no pass of its own: threads that store neighbouring columns of a row have the sum of their
// squares, and factors of rows are computed while the last products run. A tile that normalises its own rows (x_scale)
// has tokens as the 64-row operand in registers: a thread scales what it has of a stage and adds up its squares before
// it awaits the stage's weights, while products of earlier stages run.
#pragma once
#include "row_shares.cuh"

// Config of a tile (kernels/matmul/megakernel_body.py generates it):
//   BM, BN, BK       tokens, weight rows, elements of k of a stage
//   ROWS             rows of tokens that are loaded: BM, or fewer if the op has fewer tokens. Products read whatever
//                    lies after them as further tokens; a row of accumulators depends on no other.
//   GATES            sets of weights: 2 with a gate
//   SWAP_AB          rows of the product are weight rows
//   ACTIVATION       0 none, 1 ReLU, 2 GELU (tanh form), 3 SiLU; BIAS, RESIDUAL: whether the op has them
//   RELU_LAST        ReLU of the result, after the residual
//   RAGGED           rows of out begin at no multiples of 16 bytes
//   PARTS_AT_ONCE    parts of a split tile whose partials are loaded at once, plus one; 1 if no tile is split
//   SHARES           parts of a tile that reduce a share each (cooperative fix-up); 1 without. Shares are rows if rows
//                    are tokens and columns are scaled
//   SQUARED          columns of one sum of squares; STORES_SCALED: also stores rows for the norm of the next op
//   NORM_K, EPS      elements of a row and epsilon of the norm of x, 0 without; its squares are this op's own if
//                    SQUARED is 0
template <class Config> struct Matmul : TileOutput<Config> {
  typedef Accumulators<Config> Acc;
  typedef TileOutput<Config> Output;
  typedef SerialFixup<Config> Serial;
  typedef CooperativeFixup<Config> Cooperative;
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, ROWS = Config::ROWS, GATES = Config::GATES;
  static constexpr bool SWAP_AB = Config::SWAP_AB;
  static constexpr bool SHARES_ROWS = Config::SHARES > 1 && !SWAP_AB && Config::STORES_SCALED;
  static constexpr int PANELS = BK / 64, WIDTH = Acc::WIDTH, BLOCKS = Acc::BLOCKS;
  static constexpr bool NORMALISES = Acc::NORMALISES, SCALES = Acc::SCALES;
  static_assert(!NORMALISES || (!SWAP_AB && BLOCKS <= 2), "normalised rows are the 64-row operand, in registers");
  // Prefetched stages in flight: as many as saturate memory, of which a block of a cluster loads its share.
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES * CLUSTER_ROWS + GATES * BN * BK * 2 - 1) / (GATES * BN * BK * 2);
  // Registers of the weights of one stage, and stages that may be held in registers: at most half of the ring.
  static constexpr int STAGE_REGISTERS = GATES * BLOCKS * PANELS * 16;
  static constexpr int FREE = SWAP_AB && WARPGROUPS * CLUSTER == 1 ? HELD_REGISTERS - Acc::COUNT : 0;
  static constexpr int FIT = FREE < 0 ? 0 : FREE / STAGE_REGISTERS, MOST_HELD = FIT < STAGES / 2 ? FIT : STAGES / 2;
  typedef Factors<SWAP_AB ? BM : BLOCKS * 64, Config> RowFactors;
  // A tile that normalises its rows multiplies one or two panels at a time.
  static constexpr int PANELS_AT_ONCE = PANELS % 2 ? 1 : 2, STEPS = PANELS / PANELS_AT_ONCE;
  typedef Scaled<PANELS_AT_ONCE, BLOCKS, ROWS> Tokens;
  static constexpr int GAINS_AT = PANELS * ROWS * 128;  // in a slot: the norm's weight, after the tokens
  typedef typename Acc::Tile Tile;
  typedef typename Acc::Squares Squares;

  // Rows of a box of which the tensor has `remaining` more, in steps of 8 for each of OF blocks that share it. A bulk
  // load is slow at rows beyond its tensor, so the last box is smaller; the slot's further rows hold anything.
  template <int OF> DEVICE static int inside(int remaining, int rows) {
    return remaining >= rows ? rows : max(0, (remaining + 8 * OF - 1) / (8 * OF) * (8 * OF));
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
        const int remaining = op.x_rows - item.i * BM;
        if (k == item.k_lo) prefetch_map(inside<CLUSTER_COLUMNS>(remaining, ROWS) == ROWS ? op.x : op.x_last);
        if (NORMALISES && k == item.k_lo) prefetch_map(op.x_scale);
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
      open_load(stage, PANELS * (rows + NORMALISES) * 128);
      const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
      const int column = uniform(k);
      if (NORMALISES && first_lane()) tma_load_2d(slot + GAINS_AT, op.x_scale, 0, column / 64, full);
      if (first_lane() && rows > 0)
#pragma unroll
        for (int p = 0; p < PANELS; ++p)
          load_share<true>(slot + (p * ROWS + before) * 128, x, column + p * 64, row + before, full);
      stage.advance();
    }
  }

  // Keeps the compiler from moving accesses of accumulators across this point (ptx.cuh, settle).
  DEVICE static void settle_all(Tile& accumulators) {
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) settle(accumulators[g][b]);
  }
  // The first HELD stages of an item: their weights go into registers before its tokens arrive, so that their slots
  // fill with what comes next.
  template <int HELD>
  DEVICE static void multiply_held(const Item& item, const Epilogue& op, Stage& stage, Tile& accumulators,
                                   RowFactors& factors) {
    Tall<PANELS, GATES, BLOCKS, BN> weights[HELD];
    hold_weights(stage, weights, inside<1>(op.n - item.j * BN, BN));
    load_factors(item, op, stage, factors);
    settle_all(accumulators);  // otherwise ptxas serialises the products of every tile (C7520)
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
              Product<WIDTH>::add(accumulators[g][b], weights[s].pieces[p][g][b][i],
                                  descriptor(tokens + p * ROWS * 8 + i * 2));
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) release_load(before);
      before = stage.slot;
      stage.advance();
    }
    wgmma_wait<0>();
    release_load(before);
  }
  // Passes through the stages of an item that has no tokens; accumulators and squares stay zero.
  DEVICE static void skip_stages(const Item& item, Stage& stage) {
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK) {
      await_stage(stage);
      __syncwarp();
      release(stage, stage.slot);
      stage.advance();
    }
  }
  // Products of a tile that normalises its rows: it scales tokens, one step of PANELS_AT_ONCE panels at a time, while
  // the products of the step before run. Steps go by pairs, `even` and `odd`, since registers have no index; if their
  // number is odd the first goes alone.
  DEVICE static void multiply_scaled(const Launch& launch, const Item& item, Stage& stage, Tile& accumulators,
                                     Squares& squares) {
    const int count = inside<1>(operands_of<Operands>(launch, item).x_rows - item.i * BM, ROWS);
    if (count == 0) return skip_stages(item, stage);
    typename Tokens::Rows rows(count);
    int remaining = (item.k_hi - item.k_lo + BK - 1) / BK * STEPS;
    // Steps done in the stage whose tokens are scaled, in that whose products are issued, in the oldest with products.
    int scaled = 0, issued = 0, ended = 0, oldest = stage.slot;
    Stage ahead = {stage.slot, stage.phase};
    Tokens even, odd;
    const auto scale = [&](Tokens& tokens) {
      if (scaled == 0) await(load_full(ahead.slot), ahead.phase);
      const unsigned slot = load_slot(ahead.slot), first = scaled * PANELS_AT_ONCE * 128;
      tokens.load(slot + first * ROWS, slot + GAINS_AT + first, rows);
      if (++scaled < STEPS) return;
      __syncwarp();
      release_load(ahead.slot);
      ahead.advance();
      scaled = 0;
    };
    const auto multiply = [&](const Tokens& tokens) {
      if (issued == 0) await(prefetch_full(stage.slot), stage.phase);
      const unsigned weights = operand(prefetch_slot(stage.slot)) + issued * PANELS_AT_ONCE * BN * 8;
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < PANELS_AT_ONCE; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g)
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<WIDTH>::add(accumulators[g][b], tokens.pieces[p][0][b][i],
                                  descriptor(weights + (g * PANELS + p) * BN * 8 + i * 2));
      wgmma_commit();
      if (++issued < STEPS) return;
      stage.advance();
      issued = 0;
    };
    const auto release_ended = [&] {
      if (++ended < STEPS) return;
      release_prefetch(stage, oldest);
      oldest = oldest + 1 == STAGES ? 0 : oldest + 1;
      ended = 0;
    };
    settle_all(accumulators);  // otherwise ptxas serialises wgmma (C7520)
    if (remaining % 2) {
      scale(odd);
      multiply(odd);
      wgmma_wait<0>();
      release_ended();
    }
    if (remaining > 1) {
      scale(even);
      multiply(even);
      scale(odd);
#pragma unroll 1
      for (remaining -= remaining % 2 + 2; remaining > 0; remaining -= 2) {
        multiply(odd);
        wgmma_wait<1>();
        release_ended();
        scale(even);
        multiply(even);
        wgmma_wait<1>();
        release_ended();
        scale(odd);
      }
      multiply(odd);
      wgmma_wait<0>();
      release_ended();
      release_ended();
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) squares[b][r] = rows.squares[b][r];
  }
  // Loads the squares of rows of x after the item's waits, since ops of this launch store them.
  DEVICE static void load_factors(const Item& item, const Epilogue& op, const Stage& stage, RowFactors& factors) {
    if constexpr (SCALES && RowFactors::EARLY) {
      await(load_full(stage.slot), stage.phase);
      factors.load(op, first_token(item));
    }
  }
  DEVICE static int first_token(const Item& item) { return item.i * BM + (SWAP_AB ? 0 : warpgroup() * BLOCKS * 64); }

  // HELD: stages whose weights are held in registers. `op` loads while the first stage does.
  template <int HELD>
  DEVICE static void compute_with(const Launch& launch, const Item& item, const Epilogue& op, Stage& stage) {
    Tile accumulators;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) accumulators[g][b][i] = 0.0f;
    int4 gains[Output::GAINS];
    const int feature = item.j * BN + (SWAP_AB ? warpgroup() * BLOCKS * 64 : 0);
    if constexpr (Output::STORES_SCALED && Output::GAINS_EARLY) load_gains(op, feature, gains);
    RowFactors factors;
    Squares squares = {};
    const unsigned to = scratch_of(warpgroup()) + Output::FACTORS;
    const int group = uniform(warpgroup());
    int before = -1;
    keep_last(item, stage, (item.k_hi - item.k_lo + BK - 1) / BK, HELD);
    if constexpr (NORMALISES) multiply_scaled(launch, item, stage, accumulators, squares);
    else if constexpr (HELD > 0) multiply_held<HELD>(item, op, stage, accumulators, factors);
    else load_factors(item, op, stage, factors);
#pragma unroll 1
    for (int k = NORMALISES ? item.k_hi : item.k_lo + HELD * BK; k < item.k_hi; k += BK) {
      await_stage(stage);
      const unsigned weights = operand(prefetch_slot(stage.slot)), tokens = operand(load_slot(stage.slot));
      wgmma_fence();
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
#pragma unroll
        for (int g = 0; g < GATES; ++g) {
          const unsigned weight = weights + (g * PANELS + p) * BN * 8, token = tokens + p * ROWS * 8;
          const unsigned tall = (SWAP_AB ? weight : token) + group * BLOCKS * 64 * 8;
          const unsigned wide = SWAP_AB ? token : weight;
#pragma unroll
          for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<WIDTH>::add(accumulators[g][b], descriptor(tall + b * 64 * 8 + i * 2), descriptor(wide + i * 2));
        }
      wgmma_commit();
      // The products of a stage run while those of the next are issued; then its slots are released.
      wgmma_wait<1>();
      if (before >= 0) release(stage, before);
      before = stage.slot;
      stage.advance();
      if constexpr (SCALES && !RowFactors::EARLY)
        if (k >= item.k_hi - RowFactors::STEPS * BK) factors.step(op, first_token(item), to);
    }
    if constexpr (SCALES && RowFactors::EARLY) factors.store(to);
    typename Serial::Early early;
    Serial::load_early(launch, item, early);
    wgmma_wait<0>();
    if (before >= 0) release(stage, before);
    settle_all(accumulators);
    // The rest of the factors; with a loop before the last products ptxas would serialise wgmma (C7515).
    if constexpr (SCALES && !RowFactors::EARLY) factors.finish(op, first_token(item), to);
    if constexpr (SHARES_ROWS) {
      if constexpr (!Output::GAINS_EARLY) load_gains(op, feature, gains);
      return RowShares<Config>::finish(launch, item, op, accumulators, gains);
    } else if constexpr (Cooperative::SHARES > 1) {
      typename Cooperative::Share share;
      Cooperative::store_partials(launch, item, accumulators, share, squares);
      typename Output::Residuals residuals;
      Output::template load_residuals<Cooperative::COLUMNS>(op, item, 0, 0, residuals);
      typename Output::EarlyResidual early_residual;
      if constexpr (Output::RESIDUAL_EARLY) Output::load_early_residual(op, item, feature, early_residual);
      Cooperative::reduce(launch, item, share, squares);
      normalise<Cooperative::COLUMNS>(item, op, share, squares, feature, gains);
      return Output::template store<Cooperative::COLUMNS>(op, item, share, gains, early_residual, residuals);
    }
    if constexpr (Config::SHARES == 1) {
      if (Serial::OTHERS > 0 && item.parts > 1) {
        if (!Serial::adds(item)) return Serial::store_partials(launch, item, accumulators, squares);
        Serial::reduce(launch, item, accumulators, early, squares);
      }
      normalise<WIDTH>(item, op, accumulators, squares, feature, gains);
      Output::template store<WIDTH>(op, item, accumulators, gains);
    }
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    compute_with<0>(launch, item, operands_of<Operands>(launch, item), stage);
  }
  // The tile of an op all of whose items have LEAST stages or more, so that their weights may be held in registers.
  // With a branch for shorter items ptxas would serialise wgmma (C7514).
  template <int LEAST, class Op = Matmul> struct Ahead : Op {
    DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
      constexpr int HELD = LEAST < Op::MOST_HELD ? LEAST : Op::MOST_HELD;
      Op::template compute_with<HELD>(launch, item, operands_of<Operands>(launch, item), stage);
    }
  };

  // Applies the folded norm of x. Also loads the next norm's weight where there were no registers for it before.
  template <int COLUMNS>
  DEVICE static void normalise(const Item& item, const Epilogue& op, typename Acc::template Columns<COLUMNS>& values,
                               const Squares& squares, int feature, int4 (&gains)[Output::GAINS]) {
    if constexpr (SCALES) Output::template normalise<COLUMNS>(item, values);
    if constexpr (NORMALISES) normalise_rows<Config>(values, squares);
    if constexpr (Output::STORES_SCALED && !Output::GAINS_EARLY) load_gains(op, feature, gains);
  }
};
