// Splits of a sequence: rows of a table of shares (kernels/attend/shares.py), rows[first[i]] to rows[first[i + 1]].
#pragma once
#include "../rows.cuh"
#include "generated/arguments.cuh"

struct Splits {
  const int* rows;
  int splits;
  DEVICE int count() const { return splits; }
  DEVICE long long first(const Tile& tile, const long long& head) const { return tile.j; }
  DEVICE int place(int n) const { return min(max(__ldcg(rows + n), 0), SPLITS - 1) * HEADS; }
};
template <class A> DEVICE Splits splits_of(const Tile& tile, const A& a) {
  const int first = min(max(__ldcg(a.first + tile.i), 0), SPLITS - 1);
  return {a.rows + first, min(max(__ldcg(a.first + tile.i + 1), first + 1), SPLITS) - first};
}
