// Share of a tile of attention: one of SPLITS equal shares of its sequence, in whole blocks of BLOCK positions.
#pragma once
#include "exponents.cuh"

template <class A> DEVICE Share share_of(const Tile& tile, const A& a, int at) {
  const int each = (((at + BLOCK - 1) / BLOCK + SPLITS - 1) / SPLITS) * BLOCK, low = min(tile.l * each, at);
  return {tile.i, at, low, min(low + each, at), tile.l == SPLITS - 1};
}
template <class A> DEVICE Share share_of(const Tile& tile, const A& a) {
  return share_of(tile, a, position_in(tile.i, a));
}
