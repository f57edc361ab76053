// RMS normalisation of one row: x * rsqrt(mean(x^2) + EPS) * weight, for tiles of whole rows (row_groups/).
#pragma once
#include "row_groups/row_groups.cuh"
#include "generated/arguments.cuh"

template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = hold<N>(all);
  Vector<T> weight = {a.weight};
  weight.load(x, 0);
  float squares[SLOTS] = {};
  visit(x, [&](int slot, float value) { squares[slot] += value * value; });
  const float scale = rsqrtf(group_sum(squares, turn) / N + a.EPS);
  const auto normalise = [&](float value, float gain) { return value * scale * gain; };
  if (some) map_rows(out, normalise, x, weight);
}
