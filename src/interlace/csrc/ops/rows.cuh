// Helpers of CUDA sources of a tile: warps and lanes, elements by 16 bytes, reductions over a warp.
#pragma once
#include "../ring/plain.cuh"
#include "generated/elements.cuh"

constexpr int WARPS = THREADS / 32;
DEVICE int warp_of() { return thread() / 32; }
DEVICE int lane_of() { return thread() % 32; }

// x * cosine + y * sine. Explicit, because the compiler would fuse either product, and not the same one in every text.
DEVICE float rotate_part(float x, float cosine, float y, float sine) { return fmaf(x, cosine, __fmul_rn(y, sine)); }
// A piece: neighbours in memory of 16 bytes in all.
template <class T> struct Piece {
  static constexpr int ELEMENTS = 16 / (int)sizeof(T);
};
template <class T> struct __align__(16) Elements {
  T items[Piece<T>::ELEMENTS];
};
template <class T> DEVICE bool is_aligned(const T* at) { return (unsigned long long)at % 16 == 0; }
// Elements before the first one at a multiple of 16 bytes.
template <class T> DEVICE int before_pieces(const T* row) {
  return (int)((16 - (unsigned long long)row % 16) % 16 / sizeof(T));
}
template <class T> DEVICE Elements<T> piece_at(const T* at, bool aligned) {
  Elements<T> piece;
  if (aligned) return *reinterpret_cast<const Elements<T>*>(at);
#pragma unroll
  for (int e = 0; e < Piece<T>::ELEMENTS; ++e) piece.items[e] = at[e];
  return piece;
}
template <class T> DEVICE void put(T* at, float value) { *at = rounded<T>(value); }
template <class T> DEVICE float as_stored(float value, const T*) { return widened(rounded<T>(value)); }

DEVICE float warp_sum(float value) {
  for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}
DEVICE float warp_max(float value) {
  for (int distance = 16; distance; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}
