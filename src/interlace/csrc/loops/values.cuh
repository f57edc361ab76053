// Vectors of tiles, and clipped access.
#pragma once
#include "indices.cuh"
#include "generated/elements.cuh"

// Return NaN if either argument is NaN.
DEVICE float larger(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
DEVICE float smaller(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
constexpr int FLOAT_INFINITY_BITS = 0x7f800000;
#define INFINITE __int_as_float(FLOAT_INFINITY_BITS)

// V consecutive elements of a tensor.
template <class T, int V> struct __align__(sizeof(T) * V) Vector {
  T items[V];
};
template <class T, int V> DEVICE bool vector_aligned(const T* at) {
  return V == 1 || ((size_t)at & (sizeof(T) * V - 1)) == 0;
}
template <class T, int V> DEVICE void read_tile(float (&out)[V], const T* at) {
  const Vector<T, V> in = *reinterpret_cast<const Vector<T, V>*>(at);
#pragma unroll
  for (int j = 0; j < V; ++j) out[j] = widened(in.items[j]);
}
template <class T, int V> DEVICE void write_tile(T* at, const float (&in)[V]) {
  Vector<T, V> out;
#pragma unroll
  for (int j = 0; j < V; ++j) out.items[j] = rounded<T>(in[j]);
  *reinterpret_cast<Vector<T, V>*>(at) = out;
}
// Writes to global memory; stores of 16 bytes are evicted from the cache first.
template <class T, int V> DEVICE void write_streaming(T* at, const float (&in)[V]) {
  if constexpr (sizeof(T) * V == 16) {
    Vector<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) out.items[j] = rounded<T>(in[j]);
    __stcs(reinterpret_cast<uint4*>(at), *reinterpret_cast<const uint4*>(&out));
  } else {
    write_tile<T, V>(at, in);
  }
}
template <class T, int V> DEVICE void read_clipped(float (&out)[V], const T* at, int count, int skip = 0) {
  if (count >= V && skip <= 0 && vector_aligned<T, V>(at)) {
    read_tile<T, V>(out, at);
    return;
  }
#pragma unroll
  for (int j = 0; j < V; ++j) out[j] = j < count && j >= skip ? widened(at[j]) : 0.0f;
}
template <class T, int V> DEVICE void write_clipped(T* at, const float (&in)[V], int count, int skip = 0) {
  if (count >= V && skip <= 0 && vector_aligned<T, V>(at)) {
    write_streaming<T, V>(at, in);
    return;
  }
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (j < count && j >= skip) at[j] = rounded<T>(in[j]);
}
// Returns the offset of byte `offset` of a tile with rows of 128 bytes under the 128-byte swizzle.
DEVICE unsigned swizzled(unsigned offset) { return offset ^ (offset >> 7 & 7) << 4; }
