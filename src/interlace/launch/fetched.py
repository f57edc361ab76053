"""Text of the one launch whose inputs come through the ring behind its items' waits, and how its items pass through it.

Rows that earlier items produce are loaded while consumers are still at the items before, and stores of those are under
way: memory has work all the time, and a consumer that wants a row twice has it in shared memory.

    independent loads    open each stage with no bytes
    dependent loads      wait for the item's semaphores, then open a stage for each piece and load it
    consumers            wait for each stage, read it, hand it back; store

Every item of an op has the same number of stages. ``LOADS`` is a struct of the text, made from the tile and its
arguments: ``STAGES_OF_TILE``; ``bytes(n)`` of stage n; and ``load(n, target, barrier)``, which all lanes of a warp call
together to begin bulk copies of so many bytes into the slot of dependent operands at ``target``. Where a tile ends
beyond its tensors, its last stages have no bytes.

Warpgroups share nothing but these stages: each has its own part of the scratch, and they do not meet.
"""

from __future__ import annotations

FETCHED = r"""
struct Fetch : Passage {
  DEVICE const unsigned char* bytes() {
    return shared_memory + STAGES * INDEPENDENT_BYTES + stage.slot * DEPENDENT_BYTES;
  }
};
template <class A, class O, class LOADS, void (*BODY)(const Tile&, const A&, Fetch&)> struct Fetched {
  DEVICE static void load_independent(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Stage first = stage;
#pragma unroll 1
    for (int s = 0; s < LOADS::STAGES_OF_TILE; ++s) {
      tickets.look(launch);
      open_independent(stage, n, STAGES, 0);
      stage.advance();
      ++n;
    }
    if (LOADS::STAGES_OF_TILE <= STAGES) await_begin(first);  // else it has begun
  }
  DEVICE static void load_dependent(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const LOADS loads(tile_of(launch, item), A{operands_of<O>(launch, item)});
#pragma unroll 1
    for (int s = 0; s < LOADS::STAGES_OF_TILE; ++s) {
      open_dependent(stage, loads.bytes(s));
      __syncwarp();
      loads.load(s, dependent_slot(stage.slot), dependent_full(stage.slot));
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
"""
