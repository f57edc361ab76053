// Tile of routing: the row of each (token, expert) pair of BLOCK tokens, among the rows of its expert's tiles.
#pragma once
#include "sum_up.cuh"
#include "generated/arguments.cuh"

DEVICE void place_tile(const Tile& tile, const Arguments& a) {
  int *const total = scratch<int>(), *const next = total + E, *const experts = next + E;
  const int first = tile.i * BLOCK * CHOSEN, pairs = min(BLOCK * CHOSEN, a.T * CHOSEN - first);
  sum_up(a.counts, a.BLOCKS, tile.i, total, next);
  for (int e = thread(); e < E; e += THREADS) next[e] += tiles_before(total, e) * ROWS;
  for (int p = thread(); p < pairs; p += THREADS) experts[p] = a.experts[first + p];
  synchronise_block();
  for (int p = thread(); p < pairs; p += THREADS) {
    const int expert = experts[p];
    int earlier = 0;
    for (int q = 0; q < p; ++q) earlier += experts[q] == expert;
    a.place[first + p] = expert >= 0 && expert < E ? next[expert] + earlier : -1;
  }
}
