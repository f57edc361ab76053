"""The tanh form of GELU, of which each language that writes it takes its numbers from here.

    gelu(x) = x / 2 * (1 + tanh(y)) = x * sigmoid(2 y),    y = SCALE * (x + CUBIC * x^3)

The second form saturates without overflow. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
"""

from __future__ import annotations

from math import e, log2, pi, sqrt

SCALE = sqrt(2 / pi)
CUBIC = 0.044715

#: Of a float in CUDA C++, in seven instructions: value / (1 + 2^(value * (linear + cubic * value^2))).
CUDA = f"""
DEVICE float gelu(float value) {{
  constexpr float LINEAR = {-2 * SCALE * log2(e)!r}f, CUBIC = {-2 * SCALE * CUBIC * log2(e)!r}f;
  float power, part;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * (LINEAR + CUBIC * value * value)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1.0f + power));
  return value * part;
}}
"""
