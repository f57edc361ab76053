// Epilogue operands of matmul, activations, and accesses of 16 and 32 bits.
#pragma once
#include "operands.cuh"
#include "../gelu.cuh"

// An op's operands that its epilogue uses, copied: a store might change the table, for all that the compiler knows.
struct Epilogue {
  const ELEMENT *bias, *residual, *scale;
  const float* x_squares;
  ELEMENT *out, *scaled;
  float* squares;
  int m, n, k, residual_rows;
  const unsigned long long *x_words, *x_squares_words;
  unsigned long long *out_words, *scaled_words, *squares_words;
  unsigned x_number, x_squares_number, number, publications;
  DEVICE Epilogue(const Operands& op)
      : bias(op.bias), residual(op.residual), scale(op.scale), x_squares(op.x_squares), out(op.out), scaled(op.scaled),
        squares(op.squares), m(op.m), n(op.n), k(op.k), residual_rows(op.residual_rows), x_words(op.x_words),
        x_squares_words(op.x_squares_words), out_words(op.out_words), scaled_words(op.scaled_words),
        squares_words(op.squares_words), x_number(op.x_number), x_squares_number(op.x_squares_number),
        number(op.number), publications(op.publications) {}
};
// Stores two neighbours of a ragged row, or one at its end.
DEVICE void store_ragged(const Epilogue& op, int token, int feature, unsigned pair) {
  ELEMENT* const to = op.out + (long long)token * op.n + feature;
  to[0] = (ELEMENT)pair;
  if (feature + 1 < op.n) to[1] = (ELEMENT)(pair >> 16);
}
DEVICE float sigmoid(float value) { return __fdividef(1.0f, 1.0f + __expf(-value)); }
// ACTIVATION: 0 none, 1 ReLU, 2 GELU (tanh form), 3 SiLU. With two GATES the value is multiplied by SiLU of the gate.
template <int GATES, int ACTIVATION> DEVICE float activate(float value, float gate) {
  if (GATES == 2) value *= gate * sigmoid(gate);
  if (ACTIVATION == 1) value = fmaxf(value, 0.0f);
  if constexpr (ACTIVATION == 2) value = gelu(value);
  if (ACTIVATION == 3) value *= sigmoid(value);
  return value;
}
DEVICE void store_shared_16(unsigned at, unsigned value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"((unsigned short)value) : "memory");
}
DEVICE unsigned load_shared_pair(unsigned at) {
  unsigned pair;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
  return pair;
}
DEVICE void store_shared_64(unsigned at, float2 pair) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(__float_as_int(pair.x)), "r"(__float_as_int(pair.y))
               : "memory");
}
DEVICE void store_shared_32(unsigned at, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
