// RMS normalisation of one row.
#pragma once

template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = held<N>(all);
  Vector<T> weight = {a.weight};
  weight.load(x, 0);
  float squares[PLACES] = {};
  visit(x, [&](int place, float value) { squares[place] += value * value; });
  const float scale = rsqrtf(team_sum(squares, turn) / N + a.EPS);
  const auto made = [&](float value, float gain) { return value * scale * gain; };
  if (some) map_rows(out, made, x, weight);
}
