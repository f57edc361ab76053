// Cutoff of top-k and nucleus (top-p) sampling: the least logit of a row that is kept, by bisection.
//
// Logits map to integers of the same order, of which x's dtype has a limited number. A search keeps the largest cutoff
// that leaves a count (top-k) or a share of the weight (top-p). Segments whose peak is below a cutoff are skipped, so
// most steps read the peaks alone. A tile is a row.
#pragma once
#include "segments.cuh"
#include "generated/arguments.cuh"

// Integers in the order of floats, one for each number of x's dtype: LOW bits of a float32 are dropped.
DEVICE int number_of(float value) {
  const int bits = (int)__float_as_uint(value);
  return (bits < 0 ? bits ^ 0x7fffffff : bits) >> LOW;
}
DEVICE float value_of(int number) {
  return __uint_as_float(number < 0 ? ~(unsigned)number << LOW | 0x80000000 : (unsigned)number << LOW);
}
DEVICE int between(int low, int high) { return (low & high) + ((low ^ high) >> 1); }  // their sum may have 33 bits
constexpr int AT_ONCE = 4;                                                            // pieces of a lane in flight
struct Share {
  float count, weight;
};
DEVICE Share block_sum(Share share) {
  Share* const each = scratch<Share>();
  share = Share{warp_sum(share.count), warp_sum(share.weight)};
  synchronise_block();  // the scratch may still be read
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
  float largest, inverse;
  DEVICE float weight_of(float value) const { return __expf((value - largest) * inverse); }

  // A lower bound of what `least` keeps: the largest logit of each segment.
  DEVICE Share of_peaks(float least) const {
    Share share = {};
#pragma unroll 4
    for (int n = thread(); n < segments; n += THREADS) {
      const float peak = peaks[n];
      if (peak >= least) share = Share{share.count + 1.0f, share.weight + weight_of(peak)};
    }
    return block_sum(share);
  }
  // Adds a logit to the shares of three cutoffs that keep it; the first is the least.
  DEVICE void add(float value, const float (&least)[3], Share (&shares)[3]) const {
    if (!(value >= least[0])) return;
    const float weight = weight_of(value);
#pragma unroll
    for (int w = 0; w < 3; ++w)
      if (value >= least[w]) shares[w] = Share{shares[w].count + 1.0f, shares[w].weight + weight};
  }
  // The shares that three cutoffs keep. A warp has 32 segments at a time, and reads only those whose peak is kept:
  // where rows are aligned by pieces, AT_ONCE of a lane in flight.
  DEVICE void shares_of(const float (&least)[3], Share (&shares)[3]) const {
    constexpr int E = Piece<T>::ELEMENTS, LANES = SEGMENT / E, TOGETHER = 32 / LANES;  // lanes of a segment; segments
    const bool whole = is_aligned(x) && columns % E == 0;
#pragma unroll
    for (int w = 0; w < 3; ++w) shares[w] = Share{};
#pragma unroll 1
    for (int first = warp_of() * 32; first < segments; first += THREADS) {
      const int segment = first + lane_of();
      unsigned candidates = __ballot_sync(0xffffffff, segment < segments && peaks[segment] >= least[0]);
      if (!whole) {
#pragma unroll 1
        for (; candidates; candidates &= candidates - 1) {
          const int low = (first + __ffs((int)candidates) - 1) * SEGMENT, end = min(low + SEGMENT, columns);
#pragma unroll 1
          for (int column = low + lane_of(); column < end; column += 32) add(widened(x[column]), least, shares);
        }
        continue;
      }
      const T* from = x + (first + lane_of() / LANES) * SEGMENT + lane_of() % LANES * E;
      candidates >>= lane_of() / LANES;
#pragma unroll 1
      for (; candidates; candidates >>= AT_ONCE * TOGETHER, from += AT_ONCE * TOGETHER * SEGMENT) {
        Elements<T> pieces[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
          if (candidates >> n * TOGETHER & 1 && from + n * TOGETHER * SEGMENT < x + columns)
            pieces[n] = piece_at(from + n * TOGETHER * SEGMENT, true);
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
          if (candidates >> n * TOGETHER & 1 && from + n * TOGETHER * SEGMENT < x + columns)
#pragma unroll
            for (int e = 0; e < E; ++e) add(widened(pieces[n].items[e]), least, shares);
      }
    }
#pragma unroll
    for (int w = 0; w < 3; ++w) shares[w] = block_sum(shares[w]);
  }
  // The largest cutoff from `low` on that keeps `count` logits and `weight`; `low` if none does. A negative weight is a
  // share, negated, of the weight that `low` keeps. A look at the peaks rules out half of the remaining cutoffs, one at
  // the logits three quarters.
  DEVICE int search(int low, float count, float weight) const {
#pragma unroll 1
    for (int high = number_of(largest) + 1;;) {
      const int middle = between(low, high);
      const bool weighs = weight < 0.0f;
      int tried[] = {low, low, low};
      if (!weighs) {
        if (middle == low) return low;
        const Share share = of_peaks(value_of(middle));
        if (share.count >= count && share.weight >= weight) {
          low = middle;
          continue;
        }
        tried[0] = between(low, middle), tried[1] = middle, tried[2] = between(middle, high);
      }
      Share shares[3];
      shares_of({value_of(tried[0]), value_of(tried[1]), value_of(tried[2])}, shares);
      if (weighs) {
        weight *= -shares[0].weight;
        continue;
      }
#pragma unroll
      for (int w = 2; w >= 0; --w) {
        if (shares[w].count >= count && shares[w].weight >= weight) {
          low = tried[w];
          break;
        }
        high = tried[w];
      }
      if (high <= low) return low;  // not even low keeps enough
    }
  }
};
template <class T> DEVICE float least_of(Row<T> row, int top_k, float top_p) {
  const bool counted = top_k > 0 && top_k < row.columns;
  if (!(row.inverse > 0.0f) || (!counted && !(top_p < 1.0f))) return lowest();
  float* const each = scratch<float>();
  float largest = lowest();
  for (int n = thread(); n < row.segments; n += THREADS) largest = fmaxf(largest, row.peaks[n]);
  largest = warp_max(largest);
  if (lane_of() == 0) each[warp_of()] = largest;
  synchronise_block();
  for (int warp = 0; warp < WARPS; ++warp) largest = fmaxf(largest, each[warp]);
  row.largest = largest;
  int least = number_of(lowest());
  // First the count, then the share of the weight; one loop, so that the code is there once.
#pragma unroll 1
  for (int turn = counted ? 0 : 1; turn < 2; ++turn) {
    float weight = 0.0f;
    if (turn) {
      if (!(top_p < 1.0f)) break;
      weight = -top_p;
      if (!counted) {
        Share all = {};
        for (int n = thread(); n < row.segments; n += THREADS)
          all.weight += row.weights[n] * row.weight_of(row.peaks[n]);
        weight = top_p * block_sum(all).weight;
      }
    }
    least = row.search(least, turn ? 0.0f : (float)top_k, weight);
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
