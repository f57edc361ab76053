// Tile i takes ns[i] nanoseconds of the GPU's clock, then writes that to out[i].
#pragma once
#include "../ring/plain.cuh"
#include "generated/arguments.cuh"

DEVICE void spin_tile(const Tile& tile, const Arguments& a) {
  const unsigned long long begin = nanoseconds();
  const int ns = a.ns[tile.i];
  if (thread() != 0) return;
#pragma unroll 1
  while ((long long)(nanoseconds() - begin) < ns) {}
  a.out[tile.i] = ns;
}
