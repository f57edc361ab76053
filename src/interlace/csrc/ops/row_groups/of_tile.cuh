// Warps of a row group, from the rows of a tile: ROW_GROUPS groups of GROUP_THREADS threads that divide warps and rows
// evenly.
//
//   BM    4 warps                         8 warps               12 warps
//   1     a row by all                    a row by all          a row by all
//   4     a row by each                   a row by two          a row by three
//   8     two rows by each, in turn       a row by each         two rows by three, in turn
#pragma once
#include "../rows.cuh"
#include "generated/arguments.cuh"

// The largest number of groups, at most `most`, that divides warps and rows.
DEVICE constexpr int even_groups(int most) { return WARPS % most || BM % most ? even_groups(most - 1) : most; }
constexpr int ROW_GROUPS = BM < WARPS ? even_groups(BM) : WARPS, GROUP_THREADS = THREADS / ROW_GROUPS;
// Scratch of a group for a reduction; slots 0 and 1 alternate. All groups reduce together.
DEVICE float* group_scratch(int slot) {
  return scratch<float>() + slot * WARPS + thread() / GROUP_THREADS * (GROUP_THREADS / 32);
}
DEVICE void synchronise_group() { synchronise_block(); }
