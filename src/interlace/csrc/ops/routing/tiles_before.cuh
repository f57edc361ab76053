// Tiles of the experts before one.
#pragma once

// Tiles that the experts before one own together.
DEVICE int tiles_before(const int* total, int expert) {
  int tiles = 0;
  for (int e = 0; e < expert; ++e) tiles += (total[e] + ROWS - 1) / ROWS;
  return tiles;
}
