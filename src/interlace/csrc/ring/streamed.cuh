// Ops whose prefetchable inputs come through the ring before the item's waits.
//
// No op of the launch writes some inputs of an item, such as a cache. They may be loaded before the item's waits, like
// weights, but only after the launch before, which may have written them. The number of stages may depend on such
// inputs too; all roles read the same ones, so all count the same stages.
//
//   loader             waits for the launch before, then opens a stage for each piece and loads it
//   dependent loader   waits for the item's semaphores, then opens each of these stages with no bytes
//   consumers          wait for the first loads; wait for both slots of each stage, read it, release it; store
//
// Other data that an item reads before its first product may come with its first stage, in a header next to the slots,
// which both loaders fill. Loaders are ahead of consumers, which otherwise would make a round trip to the L2 for it,
// once or twice an item.
//
// Stores of the launch before are visible after the first loads, so an op may read such inputs at once. Data that the
// item's waits cover is visible after the first stage, as in ring/plain.cuh.
//
// `LOADS` is a struct of the op, made from the tile and its arguments in device memory, where tensor maps must be:
//
//   stages()                  number of stages, at least 1
//   STAGE_BYTES               most bytes of a stage
//   bytes(n)                  bytes of stage n; all lanes of the warp call it, stage by stage, before each load
//   load(n, slot, barrier)    one lane calls it, if there are bytes, to begin bulk copies of that many bytes into the
//                             slots of prefetchable and of dependent operands, where nothing else of the item is
//
// With a header also:
//
//   note(header)                  one lane of the loader stores there what it knows
//   early_bytes()                 bytes of bulk copies that may begin before the waits
//   load_early(header, barrier)   begins them
//   LATE_BEGIN, LATE              offset in the header of what the waits are for, and its number of bulk copies, which
//                                 are stored one after the other
//   late_at(n)                    source of each, which the dependent loader asks for before the waits
//   late_bytes(n)                 bytes of each, the same for all items
//
// The number of stages of an item, and so all of its loads, may depend on a number of its sequence: one or two trips to
// the L2 for every tile. Where all ops that need it have the same tensor, the loader keeps it in shared memory and
// makes `LOADS` from the tile, its arguments and element `tile.i`. `known(n, a)` returns what it keeps of element n.
//
// Data of the loader is in place when the tile's function begins, data of the dependent loader after the first stage.
// The header belongs to the tile until it releases that stage. Ordinary stores and bulk copies use separate bytes of
// headers in all ops of a launch: the first 48 bytes are for stores.
#pragma once
#include "passage.cuh"
#include "bulk_load.cuh"
#include "plain.cuh"

// A header begins with the number of the item's stages, in 16 bytes; the op's own part follows.
DEVICE unsigned header_in(int slot) { return header_at(slot) + 16; }
struct Stream : Passage {
  DEVICE int slot() { return stage.slot; }
  DEVICE unsigned address() { return prefetch_slot(stage.slot); }
  DEVICE const unsigned char* header() { return shared_memory + (header_in(stage.slot) - SHARED_BASE); }
  DEVICE const unsigned char* bytes() { return shared_memory + stage.slot * PREFETCH_BYTES; }
};
template <class A, class O, class LOADS, bool HEADED, void (*BODY)(const Tile&, const A&, Stream&), int RESIDENT = 0>
struct Streamed {
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + LOADS::STAGE_BYTES - 1) / LOADS::STAGE_BYTES;
  // Called by the loader.
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
  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    await_launch_before();
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const LOADS loads = loads_of(tile_of(launch, item), operands_of<A>(launch, item), stage);
    const int count = loads.stages();
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      tickets.look(launch);
      const unsigned bytes = loads.bytes(s), full = prefetch_full(stage.slot);
      // Bytes go into both slots. The loader waits for the slot of dependent operands in no other item, so this slot
      // may be a round behind, but no more than one once the slot of prefetchable operands is free.
      await(prefetch_empty(stage.slot), stage.phase ^ 1);
      await(load_empty(stage.slot), stage.phase ^ 1);
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
      open_prefetch(stage, n, IN_FLIGHT, bytes + early_bytes);
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
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    if constexpr (HEADED) {
      unsigned bytes = 0, to = header_in(stage.slot) + LOADS::LATE_BEGIN;
#pragma unroll
      for (int n = 0; n < LOADS::LATE; ++n) bytes += LOADS::late_bytes(n);
      open_load(stage, bytes);
      if (first_lane())
#pragma unroll
        for (int n = 0; n < LOADS::LATE; to += LOADS::late_bytes(n++))
          bulk_load(to, item.given.rows[n], LOADS::late_bytes(n), load_full(stage.slot));
    } else {
      open_load(stage, 0);
    }
    stage.advance();
#pragma unroll 1
    for (int s = 1; s < item.given.count; ++s) {
      open_load(stage, 0);
      stage.advance();
    }
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const A a{operands_of<O>(launch, item)};
    Stream stream = {stage};
    await(prefetch_full(stage.slot), stage.phase);
    if (item.code & KEEPS) {
      int count;
      if constexpr (HEADED) count = load_shared_128(header_at(stage.slot)).x;
      else count = LOADS(tile_of(launch, item), operands_of<A>(launch, item)).stages();
      keep_last(item, stage, count);
    }
    // Warpgroups share the scratch, as in Plain.
    if (WARPGROUPS > 1) synchronise_block();
    BODY(tile_of(launch, item), a, stream);
    if (WARPGROUPS > 1) synchronise_block();
  }
};
