// Tile of argmax: the first of the largest of a row, from the results of its TILES tiles of columns.
#pragma once
#include "first.cuh"
#include "generated/arguments.cuh"

DEVICE void first_tile(const Tile& tile, const Arguments& a) {
  const float* const best = a.best + tile.i * a.TILES;
  const int* const at = a.at + tile.i * a.TILES;
  Candidate result = {__int_as_float(LOWEST), at[0]};
  for (int n = thread(); n < a.TILES; n += THREADS) result = first_of(result, Candidate{best[n], at[n]});
  result = first_of_block(result);
  if (thread() == 0) a.out[tile.i] = result.at;
}
