// Splits of a sequence: as many for each, SPLITS.
#pragma once
#include "../rows.cuh"
#include "generated/arguments.cuh"

struct Splits {
  DEVICE static constexpr int count() { return SPLITS; }
  DEVICE long long first(const Tile& tile, const long long& head) const { return head * SPLITS; }
  DEVICE int place(int n) const { return n; }
};
template <class A> DEVICE Splits splits_of(const Tile& tile, const A& a) { return {}; }
