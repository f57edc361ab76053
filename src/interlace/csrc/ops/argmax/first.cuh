// Argmax over the threads of a block: the largest value, and of equal ones the first.
#pragma once
#include "../rows.cuh"

struct Candidate {
  float value;
  int at;
};
// The larger of two; of equal ones the first. Rows of NaN have a result too, so that its reader stays inside its table.
DEVICE Candidate first_of(Candidate a, Candidate b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}
DEVICE Candidate first_of_block(Candidate best) {
  for (int distance = 16; distance; distance /= 2) {
    const float value = __shfl_xor_sync(0xffffffff, best.value, distance);
    best = first_of(best, Candidate{value, __shfl_xor_sync(0xffffffff, best.at, distance)});
  }
  Candidate* const each = scratch<Candidate>();
  if (lane_of() == 0) each[warp_of()] = best;
  synchronise_block();
  for (int warp = 0; warp < WARPS; ++warp) best = first_of(best, each[warp]);
  return best;
}
// Stores the result of a tile of columns from those of its threads.
template <class A> DEVICE void store_first(const Tile& tile, const A& a, Candidate of_thread) {
  const Candidate best = first_of_block(of_thread);
  if (thread() == 0) {
    a.best[tile.i * a.TILES + tile.j] = best.value;
    a.at[tile.i * a.TILES + tile.j] = best.at;
  }
}
constexpr unsigned LOWEST = 0xff800000;  // minus infinity
