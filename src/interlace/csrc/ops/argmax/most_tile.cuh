// Tile of argmax: BN columns of a row of x. first_tile.cuh joins the tiles of a row.
#pragma once
#include "most.cuh"
#include "generated/arguments.cuh"

DEVICE void most_tile(const Tile& tile, const Arguments& a) {
  store_first(tile, a, max_of(a.x + (long long)tile.i * a.N, tile.j * BN, min((tile.j + 1) * BN, a.N)));
}
