// Layer normalisation of one row: (x - mean) * rsqrt(variance + EPS) * weight + bias, for tiles of whole rows.
#pragma once
#include "row_groups/row_groups.cuh"
#include "generated/arguments.cuh"

template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = hold<N>(all);
  Vector<T> weight = {a.weight}, bias = {a.bias};
  weight.load(x, 0), bias.load(x, 0);
  float sums[SLOTS] = {}, squares[SLOTS] = {};
  visit(x, [&](int slot, float value) { sums[slot] += value; });
  const float mean = group_sum(sums, 0) / N;
  visit(x, [&](int slot, float value) { squares[slot] += (value - mean) * (value - mean); });
  const float scale = rsqrtf(group_sum(squares, 1) / N + a.EPS);
  const auto normalise = [&](float value, float gain, float shift) { return (value - mean) * scale * gain + shift; };
  if (some) map_rows(out, normalise, x, weight, bias);
}
