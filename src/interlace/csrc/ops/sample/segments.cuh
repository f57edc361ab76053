// Sampling: segments of SEGMENT logits, of which outline.cuh stores the largest logit and the sum of weights. Then
// cutoff.cuh finds the least logit that top-k and top-p keep, and noisy.cuh samples by the Gumbel-max trick.
#pragma once
#include "../rows.cuh"

constexpr int SEGMENT = 64;
DEVICE float lowest() { return __int_as_float(0xff800000); }  // minus infinity
// Moves the next of some pieces in flight to the front, so that a loop that is not unrolled takes each from there: the
// code of sampling is longer than that of a layer otherwise.
template <class P, int N> DEVICE void advance(P (&pieces)[N]) {
#pragma unroll
  for (int n = 0; n + 1 < N; ++n) pieces[n] = pieces[n + 1];
}
// The factor of a difference of logits; at temperature 0, which is greedy, all weights are equal.
DEVICE float inverse_of(float temperature) { return temperature > 0.0f ? 1.0f / temperature : 0.0f; }
