// GELU in its tanh form: value / (1 + 2^(value * (linear + cubic * value^2))), with the constants of kernels/gelu.py.
#pragma once
#include "generated/gelu.cuh"

DEVICE float gelu(float value) {
  constexpr float LINEAR = gelu_linear(), CUBIC = gelu_cubic();
  float power, part;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * (LINEAR + CUBIC * value * value)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1.0f + power));
  return value * part;
}
