// Warps of a row group, from the width of a row: as many of a warpgroup as leave each thread a few pieces. Groups run
// independently of each other.
#pragma once
#include "element.cuh"
#include "../rows.cuh"

constexpr int ROW_PIECES = WIDE * (int)sizeof(Element) / 16;
constexpr int GROUP_THREADS = ROW_PIECES <= 32 * 4 ? 32 : ROW_PIECES <= 64 * 4 ? 64 : 128;
constexpr int ROW_GROUPS = THREADS / GROUP_THREADS;
DEVICE float* group_scratch(int slot) {
  const int warps = thread() % 128 / GROUP_THREADS * (GROUP_THREADS / 32) + slot * 4;
  return scratch<float>() + warpgroup() * (SCRATCH_BYTES / 4) + warps;
}
// Each warpgroup has two barriers of its own: another one may be at an item whose groups are larger.
DEVICE void synchronise_group() {
  named_barrier(2 + WARPGROUPS + warpgroup() * 2 + thread() % 128 / GROUP_THREADS, GROUP_THREADS);
}
