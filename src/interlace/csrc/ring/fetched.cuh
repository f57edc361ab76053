// Ops whose dependent inputs come through the ring after the item's waits.
//
// Rows that earlier items produce are loaded while consumers are still at the items before, and while stores of those
// are in flight: memory is busy all the time, and a consumer that needs a row twice has it in shared memory.
//
//   loader             opens each stage with no bytes
//   dependent loader   waits for the item's semaphores, then opens a stage for each piece and loads it
//   consumers          wait for each stage, read it, release it; store
//
// Every item of an op has the same number of stages. `LOADS` is a struct of the op, made from the tile and its
// arguments: `STAGES_OF_TILE`; `bytes(n)` of stage n; and `load(n, target, barrier)`, which all lanes of a warp call
// together to begin bulk copies of that many bytes to `target`, the slot of dependent operands. Where a tile ends
// beyond its tensors, its last stages have no bytes.
//
// Warpgroups share nothing but these stages: each has its own part of the scratch, and they do not synchronise.
#pragma once
#include "passage.cuh"
#include "bulk_load.cuh"
#include "plain.cuh"

struct Fetch : Passage {
  DEVICE const unsigned char* bytes() { return shared_memory + STAGES * PREFETCH_BYTES + stage.slot * LOAD_BYTES; }
};
template <class A, class O, class LOADS, void (*BODY)(const Tile&, const A&, Fetch&)> struct Fetched {
  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Stage first = stage;
#pragma unroll 1
    for (int s = 0; s < LOADS::STAGES_OF_TILE; ++s) {
      tickets.look(launch);
      open_prefetch(stage, n, STAGES, 0);
      stage.advance();
      ++n;
    }
    if (LOADS::STAGES_OF_TILE <= STAGES) await_begin(first);  // else the item has begun
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const LOADS loads(tile_of(launch, item), A{operands_of<O>(launch, item)});
#pragma unroll 1
    for (int s = 0; s < LOADS::STAGES_OF_TILE; ++s) {
      open_load(stage, loads.bytes(s));
      __syncwarp();
      loads.load(s, load_slot(stage.slot), load_full(stage.slot));
      stage.advance();
    }
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const A a{operands_of<O>(launch, item)};
    keep_last(item, stage, LOADS::STAGES_OF_TILE);
    Fetch fetch = {stage};
    BODY(tile_of(launch, item), a, fetch);
  }
};
