// Warps of a row group, chosen from the rows of a tile.
#pragma once

// As many teams as share warps and rows evenly, at most so many.
DEVICE constexpr int even_teams(int most) { return WARPS % most || BM % most ? even_teams(most - 1) : most; }
constexpr int TEAMS = BM < WARPS ? even_teams(BM) : WARPS, TEAM = THREADS / TEAMS;
// All teams reduce at once.
DEVICE float* shared_by_team(int place) { return scratch<float>() + place * WARPS + thread() / TEAM * (TEAM / 32); }
DEVICE void synchronise_team() { synchronise_block(); }
