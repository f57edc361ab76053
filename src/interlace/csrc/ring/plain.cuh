// Ops that load their own inputs (megakernel/plain.py).
#pragma once
#include "../tile.cuh"
#include "../dispatch/ticket.cuh"

constexpr int THREADS = WARPGROUPS * 128;
DEVICE int thread() { return threadIdx.x; }
// All threads that compute a tile.
DEVICE void synchronise_block() { named_barrier(1 + WARPGROUPS, THREADS); }
// Shared memory of a tile; it begins at a multiple of 128 bytes, and holds nothing.
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
    // The scratch is one for all warpgroups: none begins before all others have left theirs, or goes on before them.
    if (WARPGROUPS > 1) synchronise_block();
    BODY(tile, a);
    if (WARPGROUPS > 1) synchronise_block();
  }
};
