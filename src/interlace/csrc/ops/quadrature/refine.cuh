// Refine intervals of adaptive quadrature.
#pragma once

DEVICE void refine_tile(const Tile& tile, const Arguments& a) {
  const int halves = 2 * (a.BASE + tile.i) + 1;
  bool split = false;
  float value = 0.0f;
  if (!a.wanted || a.wanted[a.BASE + tile.i]) {
    float fine = 0.0f, coarse = 0.0f;
    const float each = 1.0f / a.POINTS;
    // All threads have something of peaks times points: there are few points.
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
    const float off = fine - coarse;
    split = !a.LAST && (off > 15 * a.TOLERANCE || -off > 15 * a.TOLERANCE);
    if (!split) value = fine + off / 15;
  }
  if (thread() != 0) return;
  a.value[a.BASE + tile.i] = value;
  int* const more = (int*)a.more;  // null has a type of its own
  if (more) more[halves] = more[halves + 1] = split;
}
