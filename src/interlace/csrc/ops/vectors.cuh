// Pieces of 16 bytes, to and from memory, as floats and back.
#pragma once
#include "rows.cuh"

// Converts a piece to floats. Pieces are int4: structs of elements would be stored element by element.
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
template <class T> DEVICE int4 narrow(const float (&values)[Piece<T>::ELEMENTS]) {
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
// One 16-byte store; the compiler would split an assignment into words.
template <class T> DEVICE void store_words(T* at, const int4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
