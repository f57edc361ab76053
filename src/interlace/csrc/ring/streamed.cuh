// Ops whose prefetchable inputs come through the ring (megakernel/streamed.py).
#pragma once
#include "passage.cuh"
#include "bulk_load.cuh"
#include "plain.cuh"

// A header begins with the number of the item's stages; then comes what is the text's.
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
  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    await_launch_before();
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const LOADS loads = loads_of(tile_of(launch, item), operands_of<A>(launch, item), stage);
    const int count = loads.stages();
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      tickets.look(launch);
      const unsigned bytes = loads.bytes(s), full = prefetch_full(stage.slot);
      // Bytes go into both slots. That for tokens, for which this warp waits in no other item, may be a turn behind,
      // but no more than that once the one for weights is free.
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
    // The scratch is one for all warpgroups, as in Plain.
    if (WARPGROUPS > 1) synchronise_block();
    BODY(tile_of(launch, item), a, stream);
    if (WARPGROUPS > 1) synchronise_block();
  }
};
