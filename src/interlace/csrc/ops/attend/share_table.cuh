// Share of a tile of attention, as a row of the table `shares` gives it: sequence (or -1), low, high
// (kernels/attend/shares.py). Whatever the table holds, positions stay inside the cache.
#pragma once
#include "exponents.cuh"

template <class A> DEVICE Share share_of(const Tile& tile, const A& a) {
  const int* const row = a.shares + tile.i * 3;
  const int named = __ldcg(row), sequence = min(max(named, 0), a.BATCH - 1), at = position_in(sequence, a);
  const int most = named < 0 ? 0 : at, low = min(max(__ldcg(row + 1), 0), most);
  const int high = min(max(__ldcg(row + 2), low), most);
  return {sequence, at, low, high, named >= 0 && high == at};
}
