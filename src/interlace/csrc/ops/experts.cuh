// Matmul of experts: tiles as of matmul.cuh, whose rows of weights data choose: owner[i] is the expert of row tile i.
//
// The owner is known only after the item's waits, so the loader waits before it prefetches weights, and tells all other
// roles by a word in the item's first stage, after the weights. So all roles count the same stages, whatever a table
// may hold when a wait was given up.
//
//   tile of       weights                  tokens         stages of the ring
//   an expert     its rows of weights      rows of x      one for each BK of k, as of any matmul
//   no expert     none                     none           one, of no bytes; the tile stores zeros
//
// Rows of x lie together (gather.cuh), so that one bulk load brings a panel of them.
#pragma once
#include "matmul/matmul.cuh"
#include "generated/arguments.cuh"

// Config: as of Matmul, and JOINED: gate and up weights are one operand of twice as many columns.
template <class Config> struct Experts {
  typedef Matmul<Config> OfMatmul;
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK, GATES = Config::GATES;
  static constexpr bool JOINED = Config::JOINED;
  static_assert(!JOINED || (BM == WARPGROUPS * 64 && BK == 64 && !Config::SWAP_AB), "rows that follow each other");
  static constexpr int PANELS = OfMatmul::PANELS, WEIGHTS = GATES * PANELS * BN * 128;

  DEVICE static unsigned header(int slot) { return prefetch_slot(slot) + WEIGHTS; }
  // The expert of an item, negative if none, from its first stage; called by whole warps.
  DEVICE static int owner_of(const Stage& stage) {
    await(prefetch_full(stage.slot), stage.phase);
    const int owner = uniform(load_shared_128(header(stage.slot)).x);
    __syncwarp();  // before the slot is written again
    return owner;
  }
  // The item with the whole reduction.
  DEVICE static Item whole_reduction(const Launch& launch, const Item& item) {
    Item whole_item = item;
    whole_item.k_lo = 0, whole_item.k_hi = operands_of<Operands>(launch, item).k, whole_item.parts = 1;
    return whole_item;
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
    const Item whole_item = whole_reduction(launch, item);
    OfMatmul::load(launch, whole_item, 0, whole_item.k_hi, stage);
  }
  // As Matmul::compute, but the gate's rows and those of the other weights, which follow them, are one operand, so that
  // tokens are read from shared memory once rather than twice.
  DEVICE static void compute_joined(const Launch& launch, const Item& item, Stage& stage) {
    const Epilogue op = operands_of<Operands>(launch, item);
    float accumulators[GATES][1][BN / 2];
#pragma unroll
    for (int i = 0; i < GATES * BN / 2; ++i) (&accumulators[0][0][0])[i] = 0.0f;
    const int group = uniform(warpgroup());
    int before = -1;
    keep_last(item, stage, (item.k_hi + BK - 1) / BK);
#pragma unroll 1
    for (int k = 0; k < item.k_hi; k += BK) {
      await_stage(stage);
      const unsigned weights = operand(prefetch_slot(stage.slot));
      const unsigned tokens = operand(load_slot(stage.slot)) + group * 64 * 8;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Product<GATES * BN>::add(reinterpret_cast<float (&)[GATES * BN / 2]>(accumulators), descriptor(tokens + i * 2),
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
    for (int g = 0; g < GATES; ++g) settle(accumulators[g][0]);
    const int4 gains[OfMatmul::GAINS] = {};
    OfMatmul::template store<OfMatmul::WIDTH>(op, item, accumulators, gains);
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    if (owner_of(stage) >= 0) {
      if constexpr (JOINED) compute_joined(launch, whole_reduction(launch, item), stage);
      else OfMatmul::compute(launch, whole_reduction(launch, item), stage);
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
