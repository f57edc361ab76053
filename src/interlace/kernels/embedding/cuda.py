"""The CUDA C++ body of embedding, for the one launch."""

from __future__ import annotations

from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

EMBEDDING_TEXT = TextBody(
    ROWS
    + r"""
template <class T> DEVICE void copy_row(T* out, const T* row, int column, int end) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  if (by_pieces(out + column) && by_pieces(row + column) && (end - column) % EACH == 0) {
    for (int at = column + thread() * EACH; at < end; at += THREADS * EACH) {
      *reinterpret_cast<Elements<T>*>(out + at) = piece_at(row + at, true);
    }
  } else {
    for (int at = column + thread(); at < end; at += THREADS) out[at] = row[at];
  }
}
DEVICE void embedding_tile(const Tile& tile, const Arguments& a) {
  const int row = min(max(a.tokens[tile.i], 0), a.V - 1), column = tile.j * BN;
  copy_row(a.out + (long long)tile.i * a.H, a.table + (long long)row * a.H, column, min(column + BN, a.H));
}
""",
    "embedding_tile",
    constants=("BN",),
    proved=True,
)
