"""Bodies of the one launch that are plain text of a tile: how their items pass through the ring.

Such an item moves nothing through shared memory, but all roles count one stage for it, as for any other item:

    independent loads    open the stage with no bytes, so its slot is full at once
    dependent loads      wait for the item's semaphores, then open the stage with no bytes
    consumers            wait for the stage, hand it back, compute, store

So what the loader's lanes acquired reaches the consumers: the lanes meet, one of them arrives on the stage's barrier
(release), and each consumer waits for it (acquire), both in the scope of the block; order is handed on from one such
pair to the next. Ordinary loads of consumers then see it. Those through the read-only path (``__ldg``) need not.
"""

from __future__ import annotations

#: What a text is told of its tile. It waits for words itself (``primitives/tagged_cuda``).
TILE = r"""
struct Tile {
  int i, j, l, k_lo, k_hi;
  const Launch* launch;
  const Item* item;
};
DEVICE Tile tile_of(const Launch& launch, const Item& item) {
  return {item.i, item.j, item.l, item.k_lo, item.k_hi, &launch, &item};
}
"""
PLAIN = r"""
constexpr int THREADS = WARPGROUPS * 128;
DEVICE int thread() { return threadIdx.x; }
// All threads that compute a tile.
DEVICE void synchronise_block() { named_barrier(1 + WARPGROUPS, THREADS); }
// Shared memory of a tile; it begins at a multiple of 128 bytes, and holds nothing.
template <class T> DEVICE T* scratch() {
  return reinterpret_cast<T*>(shared_memory + RING_BYTES);
}

template <class A, class O, void (*BODY)(const Tile&, const A&)> struct Plain {
  DEVICE static void load_independent(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    tickets.look(launch);
    open_independent(stage, n, STAGES, 0);
    await_begin(stage);
    stage.advance();
    ++n;
  }
  DEVICE static void load_dependent(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    open_dependent(stage, 0);
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
"""
