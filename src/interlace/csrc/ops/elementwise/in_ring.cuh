// Tile of pointwise arithmetic on rows from the ring: BM rows by BN columns, by row groups.
#pragma once
#include "../row_groups/in_ring.cuh"
#include "elements.cuh"

constexpr int OPERANDS = 1 + (TIMES_ROWS > 0) + (PLUS_ROWS > 0);
typedef RowLoads<OPERANDS> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{}, min(BM, a.M - tile.i * BM), min(BN, a.N - tile.j * BN), a.N} {
    const long long first = (long long)tile.i * BM * a.N + tile.j * BN;
    from[0] = a.x + first;
    if (TIMES_ROWS > 0) from[OPERANDS > 1] = a.times + first;
    if (PLUS_ROWS > 0) from[OPERANDS - 1] = a.plus + first;
  }
};
DEVICE void elementwise_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  const int column = tile.j * BN;
  for_each_row(loads, fetch, [&](int row, const unsigned char* stage) {
    const auto times = TIMES_ROWS > 0 ? loads.row(OPERANDS > 1, row, stage) : row_at(a.times + column);
    const auto plus = PLUS_ROWS > 0 ? loads.row(OPERANDS - 1, row, stage) : row_at(a.plus + column);
    compute_row(loads.columns, a.out + ((long long)tile.i * BM + row) * a.N + column, loads.row(0, row, stage), times,
                plus);
  });
}
