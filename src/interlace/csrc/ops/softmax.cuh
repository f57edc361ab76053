// Softmax of one row.
#pragma once

DEVICE float power_of_two(float exponent) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
  return y;
}
template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = held<N>(all);
  float peaks[PLACES], sums[PLACES] = {};
#pragma unroll
  for (int place = 0; place < PLACES; ++place) peaks[place] = __int_as_float(0xff800000);  // minus infinity
  visit(x, [&](int place, float value) { peaks[place] = fmaxf(peaks[place], value); });
  const float most = team_most(peaks, 0);
  visit(x, [&](int place, float value) { sums[place] += power_of_two((value - most) * a.EXPONENT); });
  const float share = 1.0f / team_sum(sums, 1);
  const auto made = [&](float value) { return power_of_two((value - most) * a.EXPONENT) * share; };
  if (some) map_rows(out, made, x);
}
