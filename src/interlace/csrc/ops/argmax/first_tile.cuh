// Tile that reduces the largest values of column blocks.
#pragma once

DEVICE void first_tile(const Tile& tile, const Arguments& a) {
  const float* const best = a.best + tile.i * a.TILES;
  const int* const at = a.at + tile.i * a.TILES;
  Found found = {__int_as_float(LOWEST), at[0]};
  for (int n = thread(); n < a.TILES; n += THREADS) found = first_of(found, Found{best[n], at[n]});
  found = first_of_block(found);
  if (thread() == 0) a.out[tile.i] = found.at;
}
