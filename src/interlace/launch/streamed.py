"""Text of the one launch whose inputs come through the ring, and how its items pass through it.

Some inputs of an item, such as a cache, are written by no op before it: they may be loaded before the item's waits,
like weights, but only behind the launch before, which may have written them. How many stages they take may depend on
such inputs too; all roles read the same and so count the same.

    independent loads    wait for the launch before, then open a stage for each piece and load it
    dependent loads      wait for the item's semaphores, then open each of these stages with no bytes
    consumers            wait for the first loads; wait for both of each stage, read it, hand it back; store

What else an item reads before its first product may come with its first stage: in a header beside the slots, filled by
both loaders. Loaders are ahead of consumers, which else would go to the L2 and back for it, once or twice an item.

What the launch before wrote is seen behind the first loads, so a text may read such inputs at once. What the item's
waits are for is seen behind the first stage, as in ``launch/plain``.

``LOADS`` is a struct of the text, made from the tile and its arguments where they lie in device memory, as tensor maps
must: ``stages()``, at least 1; ``STAGE_BYTES``, of a stage at most; ``bytes(n)`` of stage n, for which all lanes of the
warp ask, stage by stage, before it is loaded; and ``load(n, slot, barrier)``, which one lane calls to begin bulk copies
of so many bytes, if there are any. They go into the slot of independent operands, and into that of dependent ones,
where nothing else of the item lies. With a header also

    note(header)                                  one lane of the first loader stores there what it knows
    early_bytes(), load_early(header, barrier)    its bulk copies, of what may be loaded before the waits
    LATE_BEGIN, LATE                              where what the waits are for comes to lie, and of how many bulk copies
    late_at(n), late_bytes(n)                     of each where it begins, which is asked for before the waits, and its
                                                  bytes, as many for all items; one lies behind the other

How many stages an item has, and so all of its loads, may wait for a number of its sequence, a trip to the L2 or two for
every tile. Where all ops that would ask for it have the same tensor, the first loader keeps it in shared memory, and
makes ``LOADS`` from the tile, its arguments and that of element ``tile.i``: ``known(n, a)`` is what it keeps of the
n-th.

What the first brought is there when the tile's function begins, what the second brought behind the first stage; the
header is the tile's until it hands that stage back. Ordinary stores into headers and bulk copies keep apart, in all
texts of a launch: the first 48 bytes are for stores.
"""

from __future__ import annotations

#: A bulk copy without a tensor map.
BULK_LOAD = r"""
// Neighbours in memory, both sides at multiples of 16 bytes, and a multiple of 16 of them.
DEVICE void bulk_load(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void bulk_load(unsigned target, const void* source, unsigned bytes, unsigned barrier,
                      unsigned long long policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1], %2, [%3], %4;"
               ::"r"(target), "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
"""
#: The stages of an item, as its consumers see them, whichever side of them has bytes.
PASSAGE = r"""// By each warp.
struct Passage {
  Stage& stage;
  DEVICE void next() {
    // An answer takes as long as all that is done with few rows, so both questions are asked at once.
    const bool dependent = mbarrier_try_wait(dependent_full(stage.slot), stage.phase);
    const bool independent = mbarrier_try_wait(independent_full(stage.slot), stage.phase);
    if (!dependent || !independent) await_stage(stage);
  }
  DEVICE void done() {
    __syncwarp();
    release(stage, stage.slot);
    stage.advance();
  }
};
"""
STREAMED = r"""
// A header begins with the number of the item's stages; then comes what is the text's.
DEVICE unsigned header_in(int slot) { return header_at(slot) + 16; }
struct Stream : Passage {
  DEVICE int slot() { return stage.slot; }
  DEVICE unsigned address() { return independent_slot(stage.slot); }
  DEVICE const unsigned char* header() { return shared_memory + (header_in(stage.slot) - SHARED_BASE); }
  DEVICE const unsigned char* bytes() { return shared_memory + stage.slot * INDEPENDENT_BYTES; }
};
template <class A, class O, class LOADS, bool HEADED, void (*BODY)(const Tile&, const A&, Stream&), int RESIDENT = 0>
struct Streamed {
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + LOADS::STAGE_BYTES - 1) / LOADS::STAGE_BYTES;
  // By the loader that draws.
  DEVICE static LOADS loads_of(const Tile& tile, const A& a, Stage& stage) {
    if constexpr (RESIDENT == 0) {
      return LOADS(tile, a);
    } else {
      if (!stage.resident)
        for (int n = threadIdx.x % 32; n < RESIDENT; n += 32) resident()[n] = LOADS::known(n, a);
      __syncwarp();
      stage.resident = true;
      return LOADS(tile, a, resident()[tile.i]);
    }
  }
  DEVICE static void load_independent(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    await_launch_before();
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const LOADS loads = loads_of(tile_of(launch, item), operands_of<A>(launch, item), stage);
    const int count = loads.stages();
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      tickets.look(launch);
      const unsigned bytes = loads.bytes(s), full = independent_full(stage.slot);
      // Bytes go into both slots. That for tokens, for which this warp waits in no other item, may be a turn behind,
      // but no more than that once the one for weights is free.
      await(independent_empty(stage.slot), stage.phase ^ 1);
      await(dependent_empty(stage.slot), stage.phase ^ 1);
      unsigned early_bytes = 0;
      if constexpr (HEADED) {
        if (s == 0) {
          early_bytes = loads.early_bytes();
          if (first_lane()) {
            store_shared_128(header_at(stage.slot), make_int4(count, 0, 0, 0));
            loads.note(header_in(stage.slot));
          }
        }
      }
      open_independent(stage, n, IN_FLIGHT, bytes + early_bytes);
      if constexpr (HEADED) {
        if (s == 0 && first_lane()) loads.load_early(header_in(stage.slot), full);
      }
      if (bytes && first_lane()) loads.load(s, stage.slot, full);
      stage.advance();
      ++n;
    }
  }
  DEVICE static void look_ahead(const Launch& launch, Item& item) {
    const LOADS loads(tile_of(launch, item), operands_of<A>(launch, item));
    item.given.count = loads.stages();
    if constexpr (HEADED) {
      static_assert(LOADS::LATE <= sizeof(item.given.rows) / sizeof(*item.given.rows), "bulk copies of a header");
#pragma unroll
      for (int n = 0; n < LOADS::LATE; ++n) item.given.rows[n] = loads.late_at(n);
    }
  }
  DEVICE static void load_dependent(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    if constexpr (HEADED) {
      unsigned bytes = 0, to = header_in(stage.slot) + LOADS::LATE_BEGIN;
#pragma unroll
      for (int n = 0; n < LOADS::LATE; ++n) bytes += LOADS::late_bytes(n);
      open_dependent(stage, bytes);
      if (first_lane())
#pragma unroll
        for (int n = 0; n < LOADS::LATE; to += LOADS::late_bytes(n++))
          bulk_load(to, item.given.rows[n], LOADS::late_bytes(n), dependent_full(stage.slot));
    } else {
      open_dependent(stage, 0);
    }
    stage.advance();
#pragma unroll 1
    for (int s = 1; s < item.given.count; ++s) {
      open_dependent(stage, 0);
      stage.advance();
    }
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const A a{operands_of<O>(launch, item)};
    Stream stream = {stage};
    await(independent_full(stage.slot), stage.phase);
    if (item.code & KEEPS) {
      int count;
      if constexpr (HEADED) count = load_shared_128(header_at(stage.slot)).x;
      else count = LOADS(tile_of(launch, item), operands_of<A>(launch, item)).stages();
      keep_last(item, stage, count);
    }
    // The scratch is one for all warpgroups, as in Plain.
    if (WARPGROUPS > 1) synchronise_block();
    BODY(tile_of(launch, item), a, stream);
    if (WARPGROUPS > 1) synchronise_block();
  }
};
"""
