// A tile of an op, as its functions get it: coordinates, range along k, launch and item.
#pragma once
#include "ring/ring.cuh"

struct Tile {
  int i, j, l, k_lo, k_hi;
  const Launch* launch;
  const Item* item;
};
DEVICE Tile tile_of(const Launch& launch, const Item& item) {
  return {item.i, item.j, item.l, item.k_lo, item.k_hi, &launch, &item};
}
