// Thread block clusters: blocks with rings in step, which load once what several of them need.
//
// Blocks of a cluster take items in groups, one item each: items of one op and the same part of the reduction, a
// rectangle of tiles. Tiles of a column need the same weights, tiles of a row the same tokens (megakernel/clusters.py
// checks all this). So all blocks open the same stages, item after item, and stage n of one block is stage n of the
// others. Each block loads its share of the rows that several blocks need, by a multicast to the same place in their
// rings, which completes `full` there:
//
//   full     expects the bytes of all shares. Those of another block may arrive before this block has said how many
//            there will be; the phase does not end before it has
//   empty    counts the consumers of all blocks or, for a slot of tokens, of the blocks of its row; these release a
//            slot to each of those blocks. So a block that finds a slot empty may write to that slot of all blocks that
//            need the same, and where a slot is empty for the next round, `full` has ended this round
//
// Each block awaits what its own item waits for, before it loads its share of tokens. A group is done when the last of
// its items is: it makes progress as one item does, if none of its items waits for anything after the group's first
// item in the plan's sequence, which is checked too.
//
// No block begins before the barriers of all blocks are initialised, and none ends before all are done with its
// barriers and its ring.
//
// The release of a slot tells that reads are over, and nothing about writes: it needs no order beyond the block's own.
#pragma once
#include "barriers.cuh"
#include "generated/launch.cuh"

enum { WORDS = STAGES + 1 };
DEVICE unsigned rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Returns the address in another block's shared memory that corresponds to an address in this block's.
DEVICE unsigned of_block(unsigned address, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Called by a warp: each lane releases a slot to one block. Slots of weights go to all, slots of tokens to the row.
DEVICE void hand_back_to(unsigned empty, unsigned first, unsigned count) {
  const unsigned lane = threadIdx.x % 32;
  if (lane < count)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(of_block(empty, first + lane)) : "memory");
}
DEVICE void hand_back_prefetch(int slot) { hand_back_to(prefetch_empty(slot), 0, CLUSTER); }
DEVICE void hand_back_load(int slot) {
  if (CLUSTER_COLUMNS > 1) {
    hand_back_to(load_empty(slot), rank() / CLUSTER_COLUMNS * CLUSTER_COLUMNS, CLUSTER_COLUMNS);
  } else if (first_lane()) {
    mbarrier_arrive(load_empty(slot));
  }
}
DEVICE void hand_back_kept(int slot) {
#pragma unroll
  for (unsigned block = 0; block < CLUSTER; ++block)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;" ::"r"(of_block(prefetch_empty(slot), block)),
                 "r"(WARPGROUPS * 4)
                 : "memory");
}
// Returns the rows before this block's share of `rows` rows of tokens or weights.
template <bool TOKENS> DEVICE int rows_before(int rows) {
  constexpr int SHARES = TOKENS ? CLUSTER_COLUMNS : CLUSTER_ROWS;
  if (SHARES == 1) return 0;
  const int place = TOKENS ? rank() % CLUSTER_COLUMNS : rank() / CLUSTER_COLUMNS;
  return __shfl_sync(0xffffffff, place * (rows / SHARES), 0);
}
// Loads a box for all blocks that need it.
template <bool TOKENS> DEVICE void load_share(unsigned target, const TensorMap& map, int x, int y, unsigned full) {
  const unsigned long long policy = TOKENS ? evict_normal() : evict_first();
  if ((TOKENS ? CLUSTER_COLUMNS : CLUSTER_ROWS) == 1) return tma_load_2d(target, map, x, y, full, policy);
  unsigned blocks = 0;
  if (TOKENS) blocks = ((1u << CLUSTER_COLUMNS) - 1) << rank() / CLUSTER_COLUMNS * CLUSTER_COLUMNS;
  else
    for (unsigned row = 0; row < CLUSTER_ROWS; ++row)
      blocks |= 1u << (row * CLUSTER_COLUMNS + rank() % CLUSTER_COLUMNS);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(full), "h"((unsigned short)blocks), "l"(policy)
      : "memory");
}
DEVICE void synchronise_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEVICE void begin_together() { synchronise_cluster(); }
DEVICE void end_together() { synchronise_cluster(); }
