// Thread block clusters: multicast loads and messages (megakernel/cluster.py).
#pragma once
#include "barriers.cuh"
#include "generated/clusters.cuh"

enum { WORDS = STAGES + 1 };
DEVICE unsigned rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The address of another block's shared memory that lies there as this one lies here.
DEVICE unsigned of_block(unsigned address, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// By a warp, to each block by a lane: a slot of weights to all, one of tokens to those of the row.
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
// Of some rows of tokens or weights, that so many blocks need, those before this block's share.
template <bool TOKENS> DEVICE int rows_before(int rows) {
  constexpr int SHARES = TOKENS ? CLUSTER_COLUMNS : CLUSTER_ROWS;
  if (SHARES == 1) return 0;
  const int place = TOKENS ? rank() % CLUSTER_COLUMNS : rank() / CLUSTER_COLUMNS;
  return __shfl_sync(0xffffffff, place * (rows / SHARES), 0);
}
// A box, for all blocks that need it.
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
