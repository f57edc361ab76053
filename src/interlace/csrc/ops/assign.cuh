// Routing in one tile, for few tokens: experts and weights of all T tokens, the row of each (token, expert) pair, the
// token of each row, and the expert that owns each tile of ROWS rows.
#pragma once
#include "routing/choose.cuh"
#include "routing/tiles_before.cuh"
#include "generated/arguments.cuh"

DEVICE void assign_tile(const Tile& tile, const Arguments& a) {
  int *const counts = scratch<int>(), *const first = counts + E, *const experts = first + E;
  for (int e = thread(); e < E; e += THREADS) counts[e] = 0;
  for (int row = thread(); row < TILES * ROWS; row += THREADS) a.token[row] = -1;
  for (int n = thread(); n < TILES; n += THREADS) a.owner[n] = -1;
  synchronise_block();
  choose_all(a.logits, 0, T, experts, a.weights, counts, reinterpret_cast<float*>(experts + T * CHOSEN));
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) {
    const int begin = tiles_before(counts, e), end = begin + (counts[e] + ROWS - 1) / ROWS;
    first[e] = begin * ROWS;
    for (int n = begin; n < end; ++n) a.owner[n] = e;
  }
  synchronise_block();
  for (int p = thread(); p < T * CHOSEN; p += THREADS) {
    const int expert = experts[p];
    int row = first[expert];
#pragma unroll 8
    for (int q = 0; q < p; ++q) row += experts[q] == expert;
    a.place[p] = row, a.token[row] = p / CHOSEN;
  }
}
