// Softmax of one row, in powers of two: EXPONENT is log2(e) / temperature; for tiles of whole rows (row_groups/).
#pragma once
#include "row_groups/row_groups.cuh"
#include "generated/arguments.cuh"

DEVICE float power_of_two(float exponent) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
  return y;
}
template <class T> DEVICE void make_row(int turn, const Row<T>& all, T* out, bool some, const Arguments& a) {
  const auto x = hold<N>(all);
  float peaks[SLOTS], sums[SLOTS] = {};
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) peaks[slot] = __int_as_float(0xff800000);  // minus infinity
  visit(x, [&](int slot, float value) { peaks[slot] = fmaxf(peaks[slot], value); });
  const float largest = group_max(peaks, 0);
  visit(x, [&](int slot, float value) { sums[slot] += power_of_two((value - largest) * a.EXPONENT); });
  const float share = 1.0f / group_sum(sums, 1);
  const auto normalise = [&](float value) { return power_of_two((value - largest) * a.EXPONENT) * share; };
  if (some) map_rows(out, normalise, x);
}
