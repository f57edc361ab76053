"""The CUDA C++ bodies that draw tokens, for the one launch."""

from __future__ import annotations

from interlace.kernels.argmax.cuda import FIRST
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_WARPS = 8  # of a block, at most
_SEGMENTS = r"""
constexpr int SEGMENT = 64;
DEVICE float lowest() { return __int_as_float(0xff800000); }  // minus infinity
// What a difference of logits is multiplied by; at temperature 0 nothing is drawn, and all weigh the same.
DEVICE float inverse_of(float temperature) { return temperature > 0.0f ? 1.0f / temperature : 0.0f; }
"""

OUTLINE_TEXT = TextBody(
    ROWS
    + _SEGMENTS
    + r"""
DEVICE void outline_tile(const Tile& tile, const Arguments& a) {
  const float inverse = inverse_of(a.temperature[tile.i]);
  const int end = min((tile.j + 1) * BN, a.N);
  const auto* const row = a.x + (long long)tile.i * a.N;
#pragma unroll 4
  for (int segment = warp_of(); segment < BN / SEGMENT; segment += WARPS) {
    const int column = tile.j * BN + segment * SEGMENT;
    const int low = column + lane_of(), high = low + 32;
    const float first = low < end ? widened(row[low]) : lowest(), second = high < end ? widened(row[high]) : lowest();
    const float peak = warp_most(fmaxf(first, second));
    float weight = 0.0f;
    if (first > lowest()) weight += __expf((first - peak) * inverse);
    if (second > lowest()) weight += __expf((second - peak) * inverse);
    weight = warp_sum(weight);
    if (lane_of() == 0 && column < end) {
      const long long at = (long long)tile.i * a.SEGMENTS + column / SEGMENT;
      a.peak[at] = peak;
      a.weight[at] = weight;
    }
  }
}
""",
    "outline_tile",
    constants=("BN",),
    proved=True,
)

CUTOFF_TEXT = TextBody(
    ROWS
    + _SEGMENTS
    + r"""
// Numbers as whole ones in the same order, one for each number of x's dtype.
DEVICE int number_of(float value) {
  const int bits = (int)__float_as_uint(value);
  return (bits < 0 ? bits ^ 0x7fffffff : bits) >> LOW;
}
DEVICE float value_of(int number) {
  return __uint_as_float(number < 0 ? ~(unsigned)number << LOW | 0x80000000 : (unsigned)number << LOW);
}
struct Share {
  float count, weight;
};
DEVICE Share of_block(Share share) {
  Share* const each = scratch<Share>();
  share = Share{warp_sum(share.count), warp_sum(share.weight)};
  synchronise_block();  // until what was there has been read
  if (lane_of() == 0) each[warp_of()] = share;
  synchronise_block();
  Share all = each[0];
  for (int warp = 1; warp < WARPS; ++warp) all = Share{all.count + each[warp].count, all.weight + each[warp].weight};
  return all;
}
template <class T> struct Row {
  const T* x;
  const float *peaks, *weights;
  int columns, segments;
  float most, inverse;
  DEVICE float weight_of(float value) const { return __expf((value - most) * inverse); }

  // At least as much as this has what is not below a number: of every segment, its largest.
  DEVICE Share of_peaks(float least) const {
    Share share = {};
#pragma unroll 4
    for (int n = thread(); n < segments; n += THREADS) {
      const float peak = peaks[n];
      if (peak >= least) share = Share{share.count + 1.0f, share.weight + weight_of(peak)};
    }
    return of_block(share);
  }
  // What is not below a number. A warp reads a segment only if there is something in it.
  DEVICE Share of_all(float least) const {
    Share share = {};
    for (int first = warp_of() * 32; first < segments; first += THREADS) {
      const int own = first + lane_of();
      unsigned found = __ballot_sync(0xffffffff, own < segments && peaks[own] >= least);
      for (; found; found &= found - 1) {
        const int low = (first + __ffs((int)found) - 1) * SEGMENT + lane_of();
#pragma unroll
        for (int column = low; column < low + SEGMENT; column += 32) {
          const float value = column < columns ? widened(x[column]) : lowest();
          if (column < columns && value >= least) {
            share = Share{share.count + 1.0f, share.weight + weight_of(value)};
          }
        }
      }
    }
    return of_block(share);
  }
  // The largest number from low on that still leaves so many, or so much weight; low if none does.
  DEVICE int search(int low, float count, float weight) const {
    for (int high = number_of(most) + 1;;) {
      const int middle = (low & high) + ((low ^ high) >> 1);  // low + high may be more than 31 bits
      if (middle == low) return low;
      const float least = value_of(middle);
      Share share = of_peaks(least);
      if (share.count < count || share.weight < weight) share = of_all(least);
      if (share.count < count || share.weight < weight) {
        high = middle;
      } else {
        low = middle;
      }
    }
  }
};
template <class T> DEVICE float least_of(Row<T> row, int top_k, float top_p) {
  const bool counted = top_k > 0 && top_k < row.columns;
  if (!(row.inverse > 0.0f) || (!counted && !(top_p < 1.0f))) return lowest();
  float* const each = scratch<float>();
  float most = lowest();
  for (int n = thread(); n < row.segments; n += THREADS) most = fmaxf(most, row.peaks[n]);
  most = warp_most(most);
  if (lane_of() == 0) each[warp_of()] = most;
  synchronise_block();
  for (int warp = 0; warp < WARPS; ++warp) most = fmaxf(most, each[warp]);
  row.most = most;
  int least = number_of(lowest());
  if (counted) least = row.search(least, top_k, 0.0f);
  if (top_p < 1.0f) {
    Share all = {};
    if (counted) {
      all = row.of_all(value_of(least));
    } else {
      for (int n = thread(); n < row.segments; n += THREADS) all.weight += row.weights[n] * row.weight_of(row.peaks[n]);
      all = of_block(all);
    }
    least = row.search(least, 0.0f, top_p * all.weight);
  }
  return value_of(least);
}
template <class T> DEVICE Row<T> row_of(const T* x, const Tile& tile, const Arguments& a) {
  const long long at = (long long)tile.i * a.SEGMENTS;
  const float inverse = inverse_of(a.temperature[tile.i]);
  return {x + (long long)tile.i * a.N, a.peak + at, a.weight + at, a.N, a.SEGMENTS, 0.0f, inverse};
}
DEVICE void cutoff_tile(const Tile& tile, const Arguments& a) {
  const float least = least_of(row_of(a.x, tile, a), a.top_k[tile.i], a.top_p[tile.i]);
  if (thread() == 0) a.least[tile.i] = least;
}
""",
    "cutoff_tile",
    constants=("LOW",),
    scratch_bytes=lambda op: 8 * _WARPS,
    proved=True,
)

NOISY_TEXT = TextBody(
    ROWS
    + _SEGMENTS
    + FIRST
    + r"""
// Philox 4x32-10, see philox.py: four words of a counter and a key.
struct Words {
  unsigned word[4];
};
DEVICE Words philox(Words counter, unsigned seed, unsigned sequence) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xd2511f53ull * counter.word[0], second = 0xcd9e8d57ull * counter.word[2];
    counter = Words{{(unsigned)(second >> 32) ^ counter.word[1] ^ seed, (unsigned)second,
                     (unsigned)(first >> 32) ^ counter.word[3] ^ sequence, (unsigned)first}};
    seed += 0x9e3779b9u;
    sequence += 0xbb67ae85u;
  }
  return counter;
}
// -log(E) with E = -log(1 - u), u uniform: by its series where 1 - u would lose what u has.
DEVICE float noise_of(unsigned word) {
  const float u = fminf((float)word * 0x1p-32f + 0x1p-33f, 1.0f - 0x1p-24f);
  const float drawn = u < 0x1p-8f ? u * (1.0f + u * (0.5f + u * (1.0f / 3.0f))) : -__logf(1.0f - u);
  return -__logf(drawn);
}
DEVICE void noisy_tile(const Tile& tile, const Arguments& a) {
  const int first = tile.j * BN, end = min(first + BN, a.N);
  const auto* const row = a.x + (long long)tile.i * a.N;
  const float temperature = a.temperature[tile.i], inverse = inverse_of(temperature), least = a.least[tile.i];
  const unsigned position = a.position[tile.i], seed = a.key[2 * tile.i], sequence = a.key[2 * tile.i + 1];
  Found found = {lowest(), end - 1};
#pragma unroll 2
  for (int column = first + 4 * thread(); column < end; column += 4 * THREADS) {
    float value[4];
    bool any = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      value[e] = column + e < end ? widened(row[column + e]) : lowest();
      any |= value[e] >= least && value[e] > lowest();
    }
    if (!any) continue;
    Words words = {};
    if (temperature > 0.0f) words = philox(Words{{(unsigned)column / 4, position, 0, 0}}, seed, sequence);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float score = temperature > 0.0f ? value[e] * inverse + noise_of(words.word[e]) : value[e];
      if (value[e] >= least && score > found.value) found = Found{score, column + e};
    }
  }
  leave_first(tile, a, found);
}
""",
    "noisy_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _WARPS,
    proved=True,
)
