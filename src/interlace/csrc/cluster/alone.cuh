// Definitions of cluster.cuh for a launch without thread block clusters.
#pragma once
#include "barriers.cuh"
#include "generated/launch.cuh"

enum { WORDS = 0 };
DEVICE void hand_back_prefetch(int slot) {
  if (first_lane()) mbarrier_arrive(prefetch_empty(slot));
}
DEVICE void hand_back_load(int slot) {
  if (first_lane()) mbarrier_arrive(load_empty(slot));
}
DEVICE void hand_back_kept(int slot) { mbarrier_arrive_many(prefetch_empty(slot), WARPGROUPS * 4); }
template <bool TOKENS> DEVICE int rows_before(int rows) { return 0; }
template <bool TOKENS> DEVICE void load_share(unsigned target, const TensorMap& map, int x, int y, unsigned full) {
  if (TOKENS) tma_load_2d(target, map, x, y, full);
  else tma_load_2d(target, map, x, y, full, evict_first());
}
DEVICE void begin_together() { __syncthreads(); }
DEVICE void end_together() {}
