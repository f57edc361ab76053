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
constexpr int AT_ONCE = 4;   // peaks and pieces of a lane in flight
constexpr int LISTED = 256;  // segments of a warp's list
struct Share {
  float count, weight;
};
template <int N> DEVICE void block_sum(Share (&shares)[N]) {
  Share* const each = scratch<Share>();
#pragma unroll
  for (int n = 0; n < N; ++n) shares[n] = Share{warp_sum(shares[n].count), warp_sum(shares[n].weight)};
  synchronise_block();  // the scratch may still be read
  if (lane_of() == 0)
#pragma unroll
    for (int n = 0; n < N; ++n) each[warp_of() * N + n] = shares[n];
  synchronise_block();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    shares[n] = each[n];
    for (int warp = 1; warp < WARPS; ++warp) {
      const Share more = each[warp * N + n];
      shares[n] = Share{shares[n].count + more.count, shares[n].weight + more.weight};
    }
  }
}
DEVICE Share block_sum(Share share) {
  Share shares[] = {share};
  block_sum(shares);
  return shares[0];
}
constexpr int CUTOFFS = 3;  // tried at once; the first is the least
// The segments whose logits a warp reads next.
DEVICE int* list_of_warp() { return reinterpret_cast<int*>(scratch<Share>() + WARPS * CUTOFFS) + warp_of() * LISTED; }
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
  // Adds a logit to the shares of the cutoffs that keep it.
  DEVICE void add(float value, const float (&least)[CUTOFFS], Share (&shares)[CUTOFFS]) const {
    if (!(value >= least[0])) return;
    const float weight = weight_of(value);
#pragma unroll
    for (int w = 0; w < CUTOFFS; ++w)
      if (value >= least[w]) shares[w] = Share{shares[w].count + 1.0f, shares[w].weight + weight};
  }
  // Adds the logits of the first `count` segments of the warp's list: by pieces where rows are aligned.
  DEVICE void add_listed(int count, const float (&least)[CUTOFFS], Share (&shares)[CUTOFFS]) const {
    constexpr int E = Piece<T>::ELEMENTS, LANES = SEGMENT / E;  // lanes of a segment
    const int* const list = list_of_warp();
    __syncwarp();
    if (is_aligned(x) && columns % E == 0) {
#pragma unroll 1
      for (int first = lane_of(); first < count * LANES; first += AT_ONCE * 32) {
        Elements<T> pieces[AT_ONCE];
        int at[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          const int piece = first + n * 32;
          at[n] = piece < count * LANES ? list[piece / LANES] * SEGMENT + piece % LANES * E : columns;
          if (at[n] < columns) pieces[n] = piece_at(x + at[n], true);
        }
#pragma unroll 1
        for (int n = 0; n < AT_ONCE; ++n, advance(pieces), advance(at))
          if (at[0] < columns)
#pragma unroll
            for (int e = 0; e < E; ++e) add(widened(pieces[0].items[e]), least, shares);
      }
    } else {
#pragma unroll 1
      for (int n = 0; n < count; ++n) {
        const int low = list[n] * SEGMENT, end = min(low + SEGMENT, columns);
#pragma unroll
        for (int column = low + lane_of(); column < low + SEGMENT; column += 32)
          if (column < end) add(widened(x[column]), least, shares);
      }
    }
    __syncwarp();
  }
  // The shares that some cutoffs keep. A warp lists segments whose peak is kept, and reads only those.
  DEVICE void shares_of(const float (&least)[CUTOFFS], Share (&shares)[CUTOFFS]) const {
    int* const list = list_of_warp();
    int listed = 0;
#pragma unroll
    for (int w = 0; w < CUTOFFS; ++w) shares[w] = Share{};
#pragma unroll 1
    for (int first = warp_of() * 32;; first += AT_ONCE * THREADS) {
      const bool ends = first >= segments;  // its list is read here, too, so that the code is there once
      float peak[AT_ONCE];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) peak[n] = peaks[min(first + n * THREADS + lane_of(), segments - 1)];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) {
        const int segment = first + n * THREADS + lane_of();
        const bool keeps = segment < segments && peak[n] >= least[0];
        const unsigned candidates = __ballot_sync(0xffffffff, keeps);
        if (keeps) list[listed + __popc(candidates & (1u << lane_of()) - 1)] = segment;
        listed += __popc(candidates);
      }
      if (!ends && listed <= LISTED - AT_ONCE * 32) continue;
      add_listed(listed, least, shares);
      if (ends) break;
      listed = 0;
    }
    block_sum(shares);
  }
  // The largest cutoff from `low` on that keeps `count` logits and `weight`; `low` if none does. A negative weight is a
  // share, negated, of the weight that `low` keeps. A look at the peaks rules out half of the remaining cutoffs, one at
  // the logits three quarters.
  DEVICE int search(int low, float count, float weight) const {
#pragma unroll 1
    for (int high = number_of(largest) + 1;;) {
      const int middle = between(low, high);
      const bool weighs = weight < 0.0f;
      int tried[CUTOFFS] = {low, low, low};
      if (!weighs) {
        if (middle == low) return low;
        const Share share = of_peaks(value_of(middle));
        if (share.count >= count && share.weight >= weight) {
          low = middle;
          continue;
        }
        tried[0] = between(low, middle), tried[1] = middle, tried[2] = between(middle, high);
      }
      Share shares[CUTOFFS];
      shares_of({value_of(tried[0]), value_of(tried[1]), value_of(tried[2])}, shares);
      if (weighs) {
        weight *= -shares[0].weight;
        continue;
      }
#pragma unroll
      for (int w = CUTOFFS - 1; w >= 0; --w) {
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
