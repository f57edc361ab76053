// Matmuls of experts whose weights data choose (kernels/experts/cuda.py).
#pragma once

template <int BM, int BN, int BK, int GATES, bool TRANSPOSED, bool JOINED> struct Experts {
  typedef Matmul<BM, BN, BK, BM, GATES, TRANSPOSED, 0, false, false, false, 1> OfMatmul;
  static_assert(!JOINED || (BM == WARPGROUPS * 64 && BK == 64 && !TRANSPOSED), "rows that follow each other");
  static constexpr int PANELS = OfMatmul::PANELS, WEIGHTS = GATES * PANELS * BN * 128;

  DEVICE static unsigned header(int slot) { return prefetch_slot(slot) + WEIGHTS; }
  // By whole warps, of an item's first stage.
  DEVICE static int owner_of(const Stage& stage) {
    await(prefetch_full(stage.slot), stage.phase);
    const int owner = uniform(load_shared_128(header(stage.slot)).x);
    __syncwarp();  // no lane still reads what may be written anew
    return owner;
  }
  // The whole reduction.
  DEVICE static Item whole(const Launch& launch, const Item& item) {
    Item own = item;
    own.k_lo = 0, own.k_hi = operands_of<Operands>(launch, item).k, own.parts = 1;
    return own;
  }

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    await_launch_before();
    await_rows(launch, item, item.wait_lo, item.wait_hi);
    int owner = uniform(__ldcg(op.owner + item.i));
    if (owner >= op.experts) owner = -1;
    tickets.look(launch);
    await(prefetch_empty(stage.slot), stage.phase ^ 1);
    if (first_lane()) store_shared_128(header(stage.slot), make_int4(owner, 0, 0, 0));
    if (owner < 0) {
      open_prefetch(stage, n, OfMatmul::IN_FLIGHT, 0);
      stage.advance();
      ++n;
      return;
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const int row = uniform(owner * op.n + item.j * BN), end = op.k;
#pragma unroll 1
    for (int k = 0; k < end; k += BK) {
      if (k) tickets.look(launch);
      open_prefetch(stage, n, OfMatmul::IN_FLIGHT, WEIGHTS);
      const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
      const int column = uniform(k);
      if (first_lane()) {
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          if (GATES == 2) tma_load_2d(slot + p * BN * 128, op.gate, column + p * 64, row, full);
          tma_load_2d(slot + ((GATES - 1) * PANELS + p) * BN * 128, op.weight, column + p * 64, row, full);
        }
      }
      stage.advance();
      ++n;
    }
  }
  DEVICE static void look_ahead(const Launch& launch, Item& item) { OfMatmul::look_ahead(launch, item); }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    if (owner_of(stage) < 0) {
      open_load(stage, 0);
      stage.advance();
      return;
    }
    const Item own = whole(launch, item);
    OfMatmul::load(launch, own, 0, own.k_hi, stage);
  }
  // As of any product, but the gate's rows and those of the other weights, which lie behind them, are one operand: so
  // tokens come from shared memory once, and not twice.
  DEVICE static void compute_joined(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    float sums[GATES][1][BN / 2];
#pragma unroll
    for (int i = 0; i < GATES * BN / 2; ++i) (&sums[0][0][0])[i] = 0.0f;
    const int own = uniform(warpgroup());
    int before = -1;
    keep_last(item, stage, (item.k_hi + BK - 1) / BK);
#pragma unroll 1
    for (int k = 0; k < item.k_hi; k += BK) {
      await_stage(stage);
      const unsigned weights = operand(prefetch_slot(stage.slot));
      const unsigned tokens = operand(load_slot(stage.slot)) + own * 64 * 8;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Product<GATES * BN>::add(reinterpret_cast<float (&)[GATES * BN / 2]>(sums), descriptor(tokens + i * 2),
                                 descriptor(weights + i * 2));
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0) release(stage, before);
      before = stage.slot;
      stage.advance();
    }
    wgmma_wait<0>();
    release(stage, before);
#pragma unroll
    for (int g = 0; g < GATES; ++g) settle(sums[g][0]);
    const int4 gains[OfMatmul::GAINS] = {};
    OfMatmul::template finish<OfMatmul::WIDTH>(op, item, sums, gains);
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    if (owner_of(stage) >= 0) {
      if constexpr (JOINED) compute_joined(launch, whole(launch, item), stage);
      else OfMatmul::compute(launch, whole(launch, item), stage);
      return;
    }
    await_stage(stage);
    __syncwarp();
    release(stage, stage.slot);
    stage.advance();
    const Operands& op = operands_of<Operands>(launch, item);
    const int n = op.n, pieces = BN / 8;
    ELEMENT* const out = op.out;
    for (int piece = thread(); piece < BM * pieces; piece += THREADS) {
      const int row = item.i * BM + piece / pieces, feature = item.j * BN + piece % pieces * 8;
      if (feature < n) *reinterpret_cast<int4*>(out + (long long)row * n + feature) = make_int4(0, 0, 0, 0);
    }
  }
};
