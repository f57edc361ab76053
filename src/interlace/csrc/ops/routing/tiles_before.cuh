// Tiles of ROWS rows that all experts before `expert` own together; `total`: pairs of each expert.
#pragma once
#include "../rows.cuh"
#include "generated/arguments.cuh"

DEVICE int tiles_before(const int* total, int expert) {
  int tiles = 0;
  for (int e = 0; e < expert; ++e) tiles += (total[e] + ROWS - 1) / ROWS;
  return tiles;
}
