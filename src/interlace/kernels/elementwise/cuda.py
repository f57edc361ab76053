"""The CUDA C++ body of pointwise arithmetic, for the one launch."""

from __future__ import annotations

from interlace.kernels import gelu
from interlace.kernels.cuda.teams import TEAMS
from interlace.kernels.text import TextBody

ELEMENTWISE_TEXT = TextBody(
    TEAMS
    + f"constexpr float GELU_SCALE = {gelu.SCALE!r}f, GELU_CUBIC = {gelu.CUBIC!r}f;"
    + r"""
DEVICE float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }
DEVICE float activated(float value) {
  if (ACTIVATION == 1) return fmaxf(value, 0.0f);
  // 0.5 * (1 + tanh(y)) = sigmoid(2 y), which saturates without overflow.
  if (ACTIVATION == 2) return value * sigmoid(2 * GELU_SCALE * (value + GELU_CUBIC * value * value * value));
  if (ACTIVATION == 3) return value * sigmoid(value);
  return value;
}
// Behind which elements of an operand are: of its row, or of a vector that all rows have.
template <class T> DEVICE const T* behind(const T* operand, int of_rows, long long at, int column) {
  return operand + (of_rows ? at : column);
}
DEVICE void elementwise_tile(const Tile& tile, const Arguments& a) {
  const int column = tile.j * BN, n = min(BN, a.N - column);
  for (int row = tile.i * BM + team(); row < min((tile.i + 1) * BM, a.M); row += TEAMS) {
    const long long at = (long long)row * a.N + column;
    const auto* const times = behind(a.times, TIMES_ROWS, at, column);
    const auto* const plus = behind(a.plus, PLUS_ROWS, at, column);
    const auto scaled = [](float x, float y) { return activated(x) * y; };
    const auto added = [](float x, float y) { return activated(x) + y; };
    const auto both = [](float x, float y, float z) { return activated(x) * y + z; };
    if constexpr (TIMES_ROWS >= 0 && PLUS_ROWS >= 0) {
      map_rows(n, a.out + at, both, a.x + at, times, plus);
    } else if constexpr (TIMES_ROWS >= 0) {
      map_rows(n, a.out + at, scaled, a.x + at, times);
    } else if constexpr (PLUS_ROWS >= 0) {
      map_rows(n, a.out + at, added, a.x + at, plus);
    } else {
      map_rows(n, a.out + at, activated, a.x + at);
    }
  }
}
""",
    "elementwise_tile",
    constants=("BM", "BN", "ACTIVATION", "TIMES_ROWS", "PLUS_ROWS"),
    optional=("times", "plus"),
    proved=True,
)
