"""The tanh form of GELU; bodies in all languages take its constants from this module.

    gelu(x) = x / 2 * (1 + tanh(y)) = x * sigmoid(2 y),    y = SCALE * (x + CUBIC * x^3)

The second form saturates without overflow. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
"""

from __future__ import annotations

from math import e, log2, pi, sqrt

from interlace.csrc import include

SCALE = sqrt(2 / pi)
CUBIC = 0.044715

#: ``gelu(value)`` in CUDA C++. Its constants are functions, because NVRTC emits constants of a namespace as variables.
_CONSTANTS = {"gelu_linear": -2 * SCALE * log2(e), "gelu_cubic": -2 * SCALE * CUBIC * log2(e)}
CUDA = "".join(
    f"\nDEVICE constexpr float {name}() {{ return {value!r}f; }}" for name, value in _CONSTANTS.items()
) + include("ops/gelu.cuh")
