// Layer normalisation of one row.
#pragma once

template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = held<N>(all);
  Vector<T> weight = {a.weight}, bias = {a.bias};
  weight.load(x, 0), bias.load(x, 0);
  float sums[PLACES] = {}, squares[PLACES] = {};
  visit(x, [&](int place, float value) { sums[place] += value; });
  const float mean = team_sum(sums, 0) / N;
  visit(x, [&](int place, float value) { squares[place] += (value - mean) * (value - mean); });
  const float scale = rsqrtf(team_sum(squares, 1) / N + a.EPS);
  const auto made = [&](float value, float gain, float shift) { return (value - mean) * scale * gain + shift; };
  if (some) map_rows(out, made, x, weight, bias);
}
