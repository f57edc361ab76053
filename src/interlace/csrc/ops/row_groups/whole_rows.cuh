// Tile of an op that makes whole rows.
#pragma once

DEVICE void rows_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    make_row(0, row_at(a.x + (long long)min(row, a.M - 1) * N), a.out + (long long)row * N, row < a.M, a);
  }
}
