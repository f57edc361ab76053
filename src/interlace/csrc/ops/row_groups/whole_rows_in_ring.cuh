// Tile of an op that makes whole rows from rows in the ring.
#pragma once

typedef RowLoads<1> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{a.x + (long long)tile.i * BM * N}, min(BM, a.M - tile.i * BM), N, N} {}
};
DEVICE void rows_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    make_row(row / TEAMS % 2, loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
