// Assign tokens to experts in one tile.
#pragma once

DEVICE void assign_tile(const Tile& tile, const Arguments& a) {
  int *const counts = scratch<int>(), *const first = counts + E, *const mine = first + E;
  for (int e = thread(); e < E; e += THREADS) counts[e] = 0;
  for (int row = thread(); row < TILES * ROWS; row += THREADS) a.token[row] = -1;
  for (int n = thread(); n < TILES; n += THREADS) a.owner[n] = -1;
  synchronise_block();
  choose_all(a.logits, 0, T, mine, a.weights, counts, reinterpret_cast<float*>(mine + T * CHOSEN));
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) {
    const int begin = tiles_before(counts, e), end = begin + (counts[e] + ROWS - 1) / ROWS;
    first[e] = begin * ROWS;
    for (int n = begin; n < end; ++n) a.owner[n] = e;
  }
  synchronise_block();
  for (int p = thread(); p < T * CHOSEN; p += THREADS) {
    const int expert = mine[p];
    int row = first[expert];
#pragma unroll 8
    for (int q = 0; q < p; ++q) row += mine[q] == expert;
    a.place[p] = row, a.token[row] = p / CHOSEN;
  }
}
