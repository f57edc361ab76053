// Tile of routing: experts and weights of BLOCK tokens, and how many of their pairs each expert has.
#pragma once
#include "choose.cuh"
#include "generated/arguments.cuh"

DEVICE void route_tile(const Tile& tile, const Arguments& a) {
  int* const counts = scratch<int>();
  const int begin = tile.i * BLOCK, end = min(begin + BLOCK, a.T);
  for (int e = thread(); e < E; e += THREADS) counts[e] = 0;
  synchronise_block();
  choose_all(a.logits, begin, end, a.experts, a.weights, counts, scratch<float>() + E);
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) a.counts[(long long)tile.i * E + e] = counts[e];
}
