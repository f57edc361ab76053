// Pointwise arithmetic of one element, and of a row.
#pragma once

DEVICE float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }
DEVICE float activated(float value) {
  if (ACTIVATION == 1) return fmaxf(value, 0.0f);
  if (ACTIVATION == 2) return gelu(value);
  if (ACTIVATION == 3) return value * sigmoid(value);
  return value;
}
template <class T, class U, class V>
DEVICE void point(int n, T* out, const Row<T>& x, const Row<U>& times, const Row<V>& plus) {
  const auto scaled = [](float x, float y) { return activated(x) * y; };
  const auto added = [](float x, float y) { return activated(x) + y; };
  const auto both = [](float x, float y, float z) { return activated(x) * y + z; };
  if constexpr (TIMES_ROWS >= 0 && PLUS_ROWS >= 0) {
    map_rows(n, out, both, x, times, plus);
  } else if constexpr (TIMES_ROWS >= 0) {
    map_rows(n, out, scaled, x, times);
  } else if constexpr (PLUS_ROWS >= 0) {
    map_rows(n, out, added, x, plus);
  } else {
    map_rows(n, out, activated, x);
  }
}
