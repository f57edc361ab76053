// Sampling: segments of SEGMENT logits, of which outline.cuh stores the largest logit and the sum of weights. Then
// cutoff.cuh finds the least logit that top-k and top-p keep, and noisy.cuh samples by the Gumbel-max trick.
#pragma once
#include "../rows.cuh"

constexpr int SEGMENT = 64;
DEVICE float lowest() { return __int_as_float(0xff800000); }  // minus infinity
// The factor of a difference of logits; at temperature 0, which is greedy, all weights are equal.
DEVICE float inverse_of(float temperature) { return temperature > 0.0f ? 1.0f / temperature : 0.0f; }
