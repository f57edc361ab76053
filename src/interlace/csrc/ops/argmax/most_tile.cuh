// Tile of argmax: the largest of each row's columns.
#pragma once

DEVICE void most_tile(const Tile& tile, const Arguments& a) {
  leave_first(tile, a, most_of(a.x + (long long)tile.i * a.N, tile.j * BN, min((tile.j + 1) * BN, a.N)));
}
