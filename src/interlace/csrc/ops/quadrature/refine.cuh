// Adaptive quadrature: the integral of a tile's interval by Simpson's rule, coarse and fine, of a sum of Lorentz peaks.
// If the two differ by more than 15 tolerances, the interval is split: `more` requests its halves.
#pragma once
#include "block_sum.cuh"
#include "generated/arguments.cuh"

DEVICE void refine_tile(const Tile& tile, const Arguments& a) {
  const int halves = 2 * (a.BASE + tile.i) + 1;
  bool split = false;
  float value = 0.0f;
  if (!a.wanted || a.wanted[a.BASE + tile.i]) {
    float fine = 0.0f, coarse = 0.0f;
    const float each = 1.0f / a.POINTS;
    // Threads divide peaks times points; there are few points.
#pragma unroll 4
    for (int n = thread(); n < (a.POINTS + 1) * a.PEAKS; n += THREADS) {
      const int k = n / a.PEAKS, p = n % a.PEAKS;
      const float w = a.width[p], d = (tile.i + k * each) * a.LENGTH - a.centre[p];
      const float height = w / (w * w + d * d);
      const bool end = k == 0 || k == a.POINTS;
      fine += height * (end ? 1 : k % 2 ? 4 : 2);
      if (k % 2 == 0) coarse += height * (end ? 1 : k % 4 ? 4 : 2);
    }
    const float step = a.LENGTH / (3 * a.POINTS);
    fine = step * block_sum(fine, scratch<float>());
    coarse = 2 * step * block_sum(coarse, scratch<float>() + WARPS);
    const float difference = fine - coarse;
    split = !a.LAST && (difference > 15 * a.TOLERANCE || -difference > 15 * a.TOLERANCE);
    if (!split) value = fine + difference / 15;
  }
  if (thread() != 0) return;
  a.value[a.BASE + tile.i] = value;
  int* const more = (int*)a.more;  // without the argument it is a null of another type
  if (more) more[halves] = more[halves + 1] = split;
}
