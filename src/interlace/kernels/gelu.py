"""The tanh form of GELU, of which each language that writes it takes its numbers from here.

    gelu(x) = x / 2 * (1 + tanh(y)) = x * sigmoid(2 y),    y = SCALE * (x + CUBIC * x^3)

The second form saturates without overflow. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
"""

from __future__ import annotations

from math import pi, sqrt

SCALE = sqrt(2 / pi)
CUBIC = 0.044715
