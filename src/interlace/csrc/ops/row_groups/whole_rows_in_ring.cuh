// Tile of an op that computes whole rows, as whole_rows.cuh, from rows in the ring.
#pragma once
#include "in_ring.cuh"
#include "generated/make_row.cuh"

typedef RowLoads<1> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{a.x + (long long)tile.i * BM * N}, min(BM, a.M - tile.i * BM), N, N} {}
};
DEVICE void rows_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  for_each_row(loads, fetch, [&](int row, const unsigned char* stage) {
    make_row(row / ROW_GROUPS % 2, loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
