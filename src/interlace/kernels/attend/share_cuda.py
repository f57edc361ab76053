"""What the CUDA C++ bodies of attention have in common: exponents, and which cached positions a tile has."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.graph.op import Op
from interlace.graph.tensor import Tensor

_EXPONENTS = r"""
constexpr float NOTHING = -1e30f;  // below every score; an exponent of it is 0, and of itself 1, times a total of 0
constexpr float SCALE = 1.4426950408889634f;
DEVICE float power_of_two(float x) {  // 0 where it is below the least normal number
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a tile has: positions of a sequence that is at one, from the first to one after the last; and whether this
// step's own key and value are among them.
struct Share {
  int sequence, at, low, high;
  bool own;
};
// Past the nearest cache, which may have what was there a launch ago.
template <class A> DEVICE int position_in(int sequence, const A& a) {
  return min(max(__ldcg(a.position + sequence), 0), a.CAPACITY - 1);
}
"""

#: Of splits, one of as many equal shares of its sequence.
SHARE = (
    _EXPONENTS
    + r"""
template <class A> DEVICE Share share_of(const Tile& tile, const A& a, int at) {
  const int each = (((at + BLOCK - 1) / BLOCK + SPLITS - 1) / SPLITS) * BLOCK, low = min(tile.l * each, at);
  return {tile.i, at, low, min(low + each, at), tile.l == SPLITS - 1};
}
template <class A> DEVICE Share share_of(const Tile& tile, const A& a) {
  return share_of(tile, a, position_in(tile.i, a));
}
"""
)

#: What its row of a table says (``kernels/attend/shares``).
TABLED_SHARE = (
    _EXPONENTS
    + r"""
template <class A> DEVICE Share share_of(const Tile& tile, const A& a) {
  const int* const row = a.shares + tile.i * 3;
  const int named = __ldcg(row), sequence = min(max(named, 0), a.BATCH - 1), at = position_in(sequence, a);
  const int most = named < 0 ? 0 : at, low = min(max(__ldcg(row + 1), 0), most);
  const int high = min(max(__ldcg(row + 2), low), most);
  return {sequence, at, low, high, named >= 0 && high == at};
}
"""
)


def whole_shares(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tile reads all of q, k and v that its op says, so that it may poll their words."""
    return "shares" not in tensors
