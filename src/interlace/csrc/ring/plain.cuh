// Ops that load their own inputs: CUDA source of a tile (kernels/cuda_body.py).
//
// Such an item moves nothing through shared memory, but all roles count one stage for it, as for any other item:
//
//   loader             opens the stage with no bytes, so its slot is full at once
//   dependent loader   waits for the item's semaphores, then opens the stage with no bytes
//   consumers          wait for the stage, release it, compute, store
//
// Data that the dependent loader's lanes acquired reaches the consumers: the lanes synchronise, one of them arrives on
// the stage's barrier (release), and each consumer waits for it (acquire), both in the scope of the block; causality
// order is transitive. Ordinary loads of consumers then see it. Loads through the read-only path (`__ldg`) need not.
#pragma once
#include "../tile.cuh"
#include "generated/dispatch.cuh"

constexpr int THREADS = WARPGROUPS * 128;
DEVICE int thread() { return threadIdx.x; }
// Synchronises all threads that compute a tile.
DEVICE void synchronise_block() { named_barrier(1 + WARPGROUPS, THREADS); }
// Shared memory of a tile; it begins at a multiple of 128 bytes. Its contents are undefined.
template <class T> DEVICE T* scratch() { return reinterpret_cast<T*>(shared_memory + RING_BYTES); }

template <class A, class O, void (*BODY)(const Tile&, const A&)> struct Plain {
  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    tickets.look(launch);
    open_prefetch(stage, n, STAGES, 0);
    await_begin(stage);
    stage.advance();
    ++n;
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    open_load(stage, 0);
    stage.advance();
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const A a{operands_of<O>(launch, item)};
    const Tile tile = tile_of(launch, item);
    await_stage(stage);
    __syncwarp();
    release(stage, stage.slot);
    stage.advance();
    // Warpgroups share the scratch: none begins a tile before all others have left the one before, and none goes on
    // before all others are done.
    if (WARPGROUPS > 1) synchronise_block();
    BODY(tile, a);
    if (WARPGROUPS > 1) synchronise_block();
  }
};
