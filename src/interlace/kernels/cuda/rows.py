"""What texts of a tile have in common: elements by the 16 bytes, sums over a warp or all threads, heads in place."""

from __future__ import annotations

ROWS = r"""
constexpr int WARPS = THREADS / 32;
DEVICE int warp_of() { return thread() / 32; }
DEVICE int lane_of() { return thread() % 32; }

// x * cosine + y * sine, of which the compiler would round either product, in one text the one and in one the other.
DEVICE float turned(float x, float cosine, float y, float sine) { return fmaf(x, cosine, __fmul_rn(y, sine)); }
// Neighbours in memory, by 16 bytes where they lie so.
template <class T> struct Piece {
  static constexpr int ELEMENTS = 16 / (int)sizeof(T);
};
template <class T> struct __align__(16) Elements {
  T items[Piece<T>::ELEMENTS];
};
template <class T> DEVICE bool by_pieces(const T* at) { return (unsigned long long)at % 16 == 0; }
// Elements before the first that lies at a multiple of 16 bytes.
template <class T> DEVICE int before_pieces(const T* row) {
  return (int)((16 - (unsigned long long)row % 16) % 16 / sizeof(T));
}
template <class T> DEVICE Elements<T> piece_at(const T* at, bool by_pieces) {
  Elements<T> piece;
  if (by_pieces) return *reinterpret_cast<const Elements<T>*>(at);
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
DEVICE float warp_most(float value) {
  for (int distance = 16; distance; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, distance));
  }
  return value;
}
"""

#: Behind ``ROWS``: 16 bytes from memory and back.
WORDS = r"""
// The elements of 16 bytes. By words: in structs of elements they would be stored one by one.
template <class T> DEVICE void widen(const int4& piece, float (&values)[Piece<T>::ELEMENTS]) {
  const int words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (sizeof(T) == 4) {
      values[w] = __int_as_float(words[w]);
    } else {
      values[2 * w] = widened(T{(unsigned short)words[w]});
      values[2 * w + 1] = widened(T{(unsigned short)((unsigned)words[w] >> 16)});
    }
  }
}
template <class T> DEVICE int4 narrowed(const float (&values)[Piece<T>::ELEMENTS]) {
  int words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (sizeof(T) == 4) {
      words[w] = __float_as_int(values[w]);
    } else {
      words[w] = (int)((unsigned)rounded<T>(values[2 * w + 1]).bits << 16 | rounded<T>(values[2 * w]).bits);
    }
  }
  return make_int4(words[0], words[1], words[2], words[3]);
}
template <class T> DEVICE int4 words_at(const T* at) { return *reinterpret_cast<const int4*>(at); }
// As an instruction of its own: an assignment is cut into words.
template <class T> DEVICE void store_words(T* at, const int4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"l"(__cvta_generic_to_global(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}
"""

#: Behind ``ROWS``: see ``kernels/rope``.
PLACED = r"""
// What a lane has of a head of D elements: those at `at(n)` of either half, which are turned together.
template <int D, class T> struct Halves {
  static constexpr int HALF = D / 2, EACH = (HALF + 31) / 32;
  T low[EACH], high[EACH];
  DEVICE static bool has(int n) { return HALF % 32 == 0 || n * 32 + lane_of() < HALF; }
  DEVICE static int at(int n) { return HALF % 32 == 0 ? n * 32 + lane_of() : min(n * 32 + lane_of(), HALF - 1); }
  DEVICE void load(const T* from) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) low[n] = from[at(n)], high[n] = from[at(n) + HALF];
  }
  DEVICE void store(T* to) const {
#pragma unroll
    for (int n = 0; n < EACH; ++n)
      if (has(n)) to[at(n)] = low[n], to[at(n) + HALF] = high[n];
  }
};
template <int D, class T> DEVICE void put(T* to, const Halves<D, float>& from) {
  Halves<D, T> head;
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) head.low[n] = rounded<T>(from.low[n]), head.high[n] = rounded<T>(from.high[n]);
  head.store(to);
}
template <int D, class T> DEVICE Halves<D, T> halves_at(const T* from) {
  Halves<D, T> halves;
  halves.load(from);
  return halves;
}
// Of a warp a head in its place: normalised by weight unless null, rotated by a row of the table.
template <int D, class T, class W>
DEVICE Halves<D, float> placed(const Halves<D, T>& x, const W* weight, const Halves<D, float>& angles, float eps) {
  Halves<D, float> head;
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) head.low[n] = widened(x.low[n]), head.high[n] = widened(x.high[n]);
  if (weight) {
    const Halves<D, W> gains = halves_at<D>(weight);
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < head.EACH; ++n)
      if (head.has(n)) squares += head.low[n] * head.low[n] + head.high[n] * head.high[n];
    const float scale = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
    for (int n = 0; n < head.EACH; ++n) {
      head.low[n] = head.low[n] * scale * widened(gains.low[n]);
      head.high[n] = head.high[n] * scale * widened(gains.high[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < head.EACH; ++n) {
    const float low = head.low[n], high = head.high[n], cosine = angles.low[n], sine = angles.high[n];
    head.low[n] = turned(low, cosine, -high, sine);
    head.high[n] = turned(high, cosine, low, sine);
  }
  return head;
}
// By a warp, from where it may also put it.
template <int D, class T, class W>
DEVICE void place(float* out, const T* x, const W* weight, const float* angles, float eps) {
  placed<D>(halves_at<D>(x), weight, halves_at<D>(angles), eps).store(out);
}
// The position of a sequence, clamped to the cache.
DEVICE int position_of(const int* positions, int sequence, int capacity) {
  return min(max(positions[sequence], 0), capacity - 1);
}
"""
