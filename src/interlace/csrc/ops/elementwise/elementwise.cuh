// Tile of pointwise arithmetic on rows from memory: BM rows by BN columns, by row groups.
#pragma once
#include "elements.cuh"

DEVICE void elementwise_tile(const Tile& tile, const Arguments& a) {
  const int column = tile.j * BN, n = min(BN, a.N - column);
  for (int row = tile.i * BM + row_group(); row < min((tile.i + 1) * BM, a.M); row += ROW_GROUPS) {
    const long long at = (long long)row * a.N + column;
    const auto times = row_at(a.times + (TIMES_ROWS > 0 ? at : column));
    compute_row(n, a.out + at, row_at(a.x + at), times, row_at(a.plus + (PLUS_ROWS > 0 ? at : column)));
  }
}
