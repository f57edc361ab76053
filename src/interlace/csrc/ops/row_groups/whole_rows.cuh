// Tile of an op that computes whole rows of out (M, N) from those of x: BM rows, by row groups. The op's header defines
// make_row(slot, row, out, has_row, a), which all threads of a group call: `slot` is that of its reductions, and a
// group without a row takes part in the reductions and stores nothing.
#pragma once
#include "generated/make_row.cuh"

DEVICE void rows_tile(const Tile& tile, const Arguments& a) {
  for (int own = row_group(); own < BM; own += ROW_GROUPS) {
    const int row = tile.i * BM + own;  // groups without a row reduce with the others
    make_row(0, row_at(a.x + (long long)min(row, a.M - 1) * N), a.out + (long long)row * N, row < a.M, a);
  }
}
