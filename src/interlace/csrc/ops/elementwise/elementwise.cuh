// Pointwise arithmetic on rows from memory.
#pragma once

DEVICE void elementwise_tile(const Tile& tile, const Arguments& a) {
  const int column = tile.j * BN, n = min(BN, a.N - column);
  for (int row = tile.i * BM + team(); row < min((tile.i + 1) * BM, a.M); row += TEAMS) {
    const long long at = (long long)row * a.N + column;
    const auto times = row_at(a.times + (TIMES_ROWS > 0 ? at : column));
    point(n, a.out + at, row_at(a.x + at), times, row_at(a.plus + (PLUS_ROWS > 0 ? at : column)));
  }
}
