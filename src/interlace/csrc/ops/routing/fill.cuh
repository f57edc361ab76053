// Tile of routing: the token of each of ROWS rows, -1 where a tile has fewer, and the expert that owns the tile, or -1.
#pragma once
#include "sum_up.cuh"
#include "generated/arguments.cuh"

DEVICE void fill_tile(const Tile& tile, const Arguments& a) {
  int *const total = scratch<int>(), *const none = total + E, *const token = none + E, *const owner = token + ROWS;
  sum_up(a.counts, a.BLOCKS, 0, total, none);
  for (int row = thread(); row < ROWS; row += THREADS) token[row] = -1;
  if (thread() == 0) *owner = -1;
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) {
    const int before = tile.i - tiles_before(total, e);
    if (before >= 0 && before * ROWS < total[e]) *owner = e;
  }
  const int low = tile.i * ROWS;
  for_each(a.place, a.T * CHOSEN, [&](int pair, int place) {
    const int row = place - low;
    if (row >= 0 && row < ROWS) token[row] = pair / CHOSEN;
  });
  synchronise_block();
  for (int row = thread(); row < ROWS; row += THREADS) a.token[low + row] = token[row];
  if (thread() == 0) a.owner[tile.i] = *owner;
}
