// Warps of a row group, chosen from the width of a row.
#pragma once

// As many warps of a warpgroup as leave each thread of them a few pieces of a row. Teams go their own ways.
constexpr int ROW_PIECES = WIDE * (int)sizeof(Element) / 16;
constexpr int TEAM = ROW_PIECES <= 32 * 4 ? 32 : ROW_PIECES <= 64 * 4 ? 64 : 128, TEAMS = THREADS / TEAM;
DEVICE float* shared_by_team(int place) {
  const int warps = thread() % 128 / TEAM * (TEAM / 32) + place * 4;
  return scratch<float>() + warpgroup() * (SCRATCH_BYTES / 4) + warps;
}
// Barriers of a warpgroup's own, two of them: another one may be at an item whose teams are larger.
DEVICE void synchronise_team() { named_barrier(2 + WARPGROUPS + warpgroup() * 2 + thread() % 128 / TEAM, TEAM); }
