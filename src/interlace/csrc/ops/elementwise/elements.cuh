// Pointwise arithmetic of one row: out = activation(x), times and plus further rows where the op has them.
//
// ACTIVATION: 0 none, 1 ReLU, 2 GELU (tanh form), 3 SiLU. TIMES_ROWS, PLUS_ROWS: rows of the operand; 0 if it is a
// vector that all rows share, negative without it.
#pragma once
#include "../gelu.cuh"
#include "../row_groups/row_groups.cuh"
#include "generated/arguments.cuh"

DEVICE float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }
DEVICE float activate(float value) {
  if (ACTIVATION == 1) return fmaxf(value, 0.0f);
  if (ACTIVATION == 2) return gelu(value);
  if (ACTIVATION == 3) return value * sigmoid(value);
  return value;
}
template <class T, class U, class V>
DEVICE void compute_row(int n, T* out, const Row<T>& x, const Row<U>& times, const Row<V>& plus) {
  const auto scaled = [](float x, float y) { return activate(x) * y; };
  const auto added = [](float x, float y) { return activate(x) + y; };
  const auto both = [](float x, float y, float z) { return activate(x) * y + z; };
  if constexpr (TIMES_ROWS >= 0 && PLUS_ROWS >= 0) {
    map_rows(n, out, both, x, times, plus);
  } else if constexpr (TIMES_ROWS >= 0) {
    map_rows(n, out, scaled, x, times);
  } else if constexpr (PLUS_ROWS >= 0) {
    map_rows(n, out, added, x, plus);
  } else {
    map_rows(n, out, activate, x);
  }
}
