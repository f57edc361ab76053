// Attention of one new token a sequence over its KV cache, for any element type, head dimension and group of heads.
//
//   out = softmax(q . [k_cache, k] / sqrt(D)) @ [v_cache, v]     for GROUP heads of queries that share a KV head
//
// A tile (i, j, l) is sequence i (or a row of the table of shares), KV head j, split l of the positions. Keys and
// values of its share come through the ring, a number of positions to a stage: first their keys, then their values. No
// earlier op of a step writes them, so they are prefetched before the queries exist. With one split (WHOLE) the tile
// stores out; otherwise sums of values, peak and total of each head, which combine.cuh joins. Where tensor cores are
// faster, products.cuh is used instead.
//
// A row is read by a team of neighbouring lanes, 16 bytes each; a warp has up to four heads of the group, and shares
// the positions with the other warps of these heads. Each team keeps an online softmax over every n-th position. Teams
// are joined at the end: within a warp by shuffles, then through shared memory, where this step's own key is one more.
//
// Four positions times four heads are 16 scores, of which each lane has a part of every sum. With D = 64 in bf16 a team
// has 8 lanes. They exchange halves, so that after three steps each lane has two complete scores; it computes two
// exponents rather than 16, and passes the weights on by shuffles:
//
//   lane of the team      0    1    2    3    4    5    6    7
//   head                  0    0    1    1    2    2    3    3
//   positions             0 1  2 3  0 1  2 3  0 1  2 3  0 1  2 3
//
// With D = 72 a team has 16 lanes; seven of them read the last 16 bytes of a row again, and multiply them by zero.
#pragma once
#include "share_equal.cuh"
#include "../heads.cuh"
#include "../pages.cuh"
#include "../../ring/streamed.cuh"
#include "../../ll.cuh"

constexpr int AT_ONCE = 4;  // positions that a team reads at once
DEVICE constexpr int heads_per_warp() {
  int heads = 1;
  while (heads < 4 && heads < GROUP) heads *= 2;
  while ((GROUP + heads - 1) / heads > WARPS) heads *= 2;
  return heads;
}
constexpr int HEADS_AT_ONCE = heads_per_warp();
constexpr int SETS = (GROUP + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
constexpr int WARPS_PER_SET = WARPS / SETS;

template <class T> DEVICE constexpr int rows_of(const T*) {
  return PREFETCH_BYTES / (2 * D * (int)sizeof(T)) / 16 * 16;
}
// Loads of an item for the ring (ring/streamed.cuh): keys and values of the share, page by page.
struct Loads {
  static constexpr int STAGE_BYTES = PREFETCH_BYTES;
  const Arguments& a;
  Share share;
  int rows, head;

  DEVICE Loads(const Tile& tile, const Arguments& a)
      : a(a), share(share_of(tile, a)), rows(rows_of(a.k_cache)), head(tile.j) {}
  template <class A>
  DEVICE Loads(const Tile& tile, const A& a, int at)
      : a(a), share(share_of(tile, a, at)), rows(rows_of(a.k_cache)), head(tile.j) {}
  DEVICE static int known(int sequence, const Arguments& a) { return position_in(sequence, a); }
  DEVICE int stages() const { return max((share.high - share.low + rows - 1) / rows, 1); }
  DEVICE int count(int n) const { return min(share.high - share.low - n * rows, rows); }
  DEVICE unsigned bytes(int n) const { return 2 * D * sizeof(*a.k_cache) * count(n); }
  DEVICE void load(int n, int slot, unsigned barrier) const {
    unsigned target = prefetch_slot(slot);
    const unsigned to_values = rows * D * (unsigned)sizeof(*a.k_cache);  // from keys to values
    int at = share.low + n * rows;
    const int end = at + count(n);
#pragma unroll 1
    while (at < end) {
      const int together = PAGE ? min(end - at, PAGE - at % max(PAGE, 1)) : end - at;
      const long long from = max(row_of(a, share.sequence, head, at), 0ll) * D;
      const unsigned bytes = D * sizeof(*a.k_cache) * together;
      bulk_load(target, a.k_cache + from, bytes, barrier, evict_first());
      bulk_load(target + to_values, a.v_cache + from, bytes, barrier, evict_first());
      at += together, target += bytes;
    }
  }
};

// Division of a row among the lanes of a team, and the scores of HEADS_AT_ONCE heads and AT_ONCE positions.
template <class T> struct Team {
  static constexpr int E = Piece<T>::ELEMENTS;
  static constexpr int ROW_PIECES = D / E;  // of 16 bytes
  static constexpr int LANES = ROW_PIECES <= 2    ? 2
                               : ROW_PIECES <= 4  ? 4
                               : ROW_PIECES <= 8  ? 8
                               : ROW_PIECES <= 16 ? 16
                                                  : 32;
  static constexpr int PIECES = (ROW_PIECES + LANES - 1) / LANES;  // of a lane
  static constexpr int TEAMS = WARPS_PER_SET * 32 / LANES;
  static constexpr int SCORES = HEADS_AT_ONCE * AT_ONCE;                   // head by head
  static constexpr int LANE_SCORES = SCORES > LANES ? SCORES / LANES : 1;  // scores that a lane keeps, of
  static constexpr int HEADS = LANE_SCORES > AT_ONCE ? LANE_SCORES / AT_ONCE : 1;
  static constexpr int LANES_PER_HEAD = LANES * HEADS / HEADS_AT_ONCE;  // lanes with scores of the same head
  static constexpr int COPIES = LANES > SCORES ? LANES / SCORES : 1;    // lanes with the same score
  // The first element of a lane's piece of a row; a lane beyond the row reads its last piece again.
  DEVICE static int begin_of(int p) { return min(p * LANES + lane_of() % LANES, ROW_PIECES - 1) * E; }
  DEVICE static bool has_piece(int p) { return p * LANES + lane_of() % LANES < ROW_PIECES; }
};

// Reduces COUNT numbers over DISTANCE * 2 lanes. Each lane keeps a share of the sums: the first lanes the first.
template <int COUNT, int DISTANCE, int N> DEVICE void exchange(float (&values)[N]) {
  if constexpr (DISTANCE > 0) {
    if constexpr (COUNT > 1) {
      const bool upper = lane_of() & DISTANCE;
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const float other_half = upper ? values[i] : values[i + COUNT / 2];
        values[i] = (upper ? values[i + COUNT / 2] : values[i]) + __shfl_xor_sync(0xffffffff, other_half, DISTANCE);
      }
    } else {
      values[0] += __shfl_xor_sync(0xffffffff, values[0], DISTANCE);
    }
    exchange<(COUNT > 1 ? COUNT / 2 : 1), DISTANCE / 2>(values);
  }
}

// Online softmax of a warp for HEADS_AT_ONCE heads: sums of weighted values. A lane has the peaks and totals of the
// heads whose scores it keeps.
template <class T> struct OnlineSoftmax {
  typedef Team<T> Layout;
  static constexpr int E = Layout::E, P = Layout::PIECES, G = HEADS_AT_ONCE;
  float queries[G][P * E], sum[G][P * E], peaks[Layout::HEADS], total[Layout::HEADS];

  // The lane of this lane's team that keeps a score.
  DEVICE static int owner(int score) {
    return lane_of() / Layout::LANES * Layout::LANES +
           (Layout::SCORES > Layout::LANES ? score / Layout::LANE_SCORES : score * Layout::COPIES);
  }
  DEVICE void begin(const float* from, int first, float scale) {
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int e = 0; e < E; ++e) {
          const int d = Layout::begin_of(p) + e;
          queries[g][p * E + e] = Layout::has_piece(p) ? scale * from[min(first + g, GROUP - 1) * D + d] : 0.0f;
          sum[g][p * E + e] = 0.0f;
        }
#pragma unroll
    for (int h = 0; h < Layout::HEADS; ++h) peaks[h] = NOTHING, total[h] = 0.0f;
  }
  DEVICE void fade(int g, float by) {
#pragma unroll
    for (int e = 0; e < P * E; ++e) sum[g][e] *= by;
  }
  // Adds the positions of a stage: `count` rows of keys, and of values. `which`: number of the warp among those of the
  // set.
  DEVICE void add(const T* keys, const T* values, int count, int which) {
    const int team = which * (32 / Layout::LANES) + lane_of() / Layout::LANES, lane = lane_of() % Layout::LANES;
#pragma unroll 1
    for (int start = 0; start < count; start += Layout::TEAMS * AT_ONCE) {
      Elements<T> rows[AT_ONCE][P];
      float score[Layout::SCORES];
      int at[AT_ONCE];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) {
        // Beyond the last position its row is read again; it does not count.
        at[n] = min(start + n * Layout::TEAMS + team, count - 1) * D;
#pragma unroll
        for (int p = 0; p < P; ++p) rows[n][p] = piece_at(keys + at[n] + Layout::begin_of(p), true);
      }
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          float& of = score[g * AT_ONCE + n];
          of = 0.0f;
#pragma unroll
          for (int p = 0; p < P; ++p)
#pragma unroll
            for (int e = 0; e < E; ++e) of += queries[g][p * E + e] * widened(rows[n][p].items[e]);
        }
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
        for (int p = 0; p < P; ++p) rows[n][p] = piece_at(values + at[n] + Layout::begin_of(p), true);
      exchange<Layout::SCORES, Layout::LANES / 2>(score);
      float faded[Layout::HEADS];
#pragma unroll
      for (int h = 0; h < Layout::HEADS; ++h) {
        constexpr int EACH = Layout::LANE_SCORES / Layout::HEADS;
        float peak = peaks[h];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          const int n = (Layout::LANE_SCORES * (lane / Layout::COPIES) + i) % AT_ONCE;
          if (start + n * Layout::TEAMS + team >= count) score[h * EACH + i] = NOTHING;
          peak = fmaxf(peak, score[h * EACH + i]);
        }
#pragma unroll
        for (int distance = Layout::LANES_PER_HEAD / 2; distance; distance /= 2) {
          peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, distance));
        }
        faded[h] = exp2f(peaks[h] - peak);
        peaks[h] = peak;
        total[h] *= faded[h];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          float& weight = score[h * EACH + i];
          weight = weight == NOTHING ? 0.0f : exp2f(weight - peak);
          total[h] += weight;
        }
      }
#pragma unroll
      for (int g = 0; g < G; ++g) {
        fade(g, __shfl_sync(0xffffffff, faded[g % Layout::HEADS], owner(g * AT_ONCE)));
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          const float weight =
              __shfl_sync(0xffffffff, score[(g * AT_ONCE + n) % Layout::LANE_SCORES], owner(g * AT_ONCE + n));
#pragma unroll
          for (int p = 0; p < P; ++p)
#pragma unroll
            for (int e = 0; e < E; ++e) sum[g][p * E + e] += weight * widened(rows[n][p].items[e]);
        }
      }
    }
  }
  // Joins the teams of the warp, and stores for each head D sums, the peak and the total.
  DEVICE void store(float* to) {
#pragma unroll
    for (int h = 0; h < Layout::HEADS; ++h) {
#pragma unroll
      for (int distance = Layout::LANES_PER_HEAD / 2; distance; distance /= 2) {
        if (distance >= Layout::COPIES) total[h] += __shfl_xor_sync(0xffffffff, total[h], distance);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float peak = __shfl_sync(0xffffffff, peaks[g % Layout::HEADS], owner(g * AT_ONCE));
      float sum_of_weights = __shfl_sync(0xffffffff, total[g % Layout::HEADS], owner(g * AT_ONCE));
#pragma unroll
      for (int distance = 16; distance >= Layout::LANES; distance /= 2) {
        const float peak_of_both = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, distance));
        const float by = exp2f(peak - peak_of_both);
        peak = peak_of_both;
        sum_of_weights *= by;
        sum_of_weights += __shfl_xor_sync(0xffffffff, sum_of_weights, distance);
        fade(g, by);
#pragma unroll
        for (int e = 0; e < P * E; ++e) sum[g][e] += __shfl_xor_sync(0xffffffff, sum[g][e], distance);
      }
      float* const head = to + g * (D + 2);
      if (lane_of() < Layout::LANES) {
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int e = 0; e < E && Layout::has_piece(p); ++e) head[Layout::begin_of(p) + e] = sum[g][p * E + e];
      }
      if (lane_of() == 0) head[D] = peak, head[D + 1] = sum_of_weights;
    }
  }
};
template <class T> DEVICE OnlineSoftmax<T> softmax_of(const T*) { return {}; }
template <class T> DEVICE const T* as(const unsigned char* bytes, const T*) {
  return reinterpret_cast<const T*>(bytes);
}

template <class A> DEVICE void attend_with(const Tile& tile, const A& a, Stream& stream) {
  const Share share = share_of(tile, a);
  const long long head = (long long)share.sequence * HEADS + tile.j;
  const bool has_own = share.own;
  float* const queries = scratch<float>();
  float* const own = queries + GROUP * D;  // this step's key, and value
  float* const angles = own + 2 * D;
  float* const key = angles + D;
  float* const scores = key + D;
  float* const partials = scores + GROUP;
  const float scale = SCALE * rsqrtf((float)D);

  for (int d = thread(); d < D; d += THREADS) angles[d] = __ldcg(a.rope + (long long)share.at * D + d);
  synchronise_block();
  stream.next();
  // All loads of the item's dependent inputs are issued before the first is used.
  constexpr int OWN_EACH = (2 * D + THREADS - 1) / THREADS;
  float loaded[OWN_EACH];
  if (has_own) {
#pragma unroll
    for (int n = 0; n < OWN_EACH; ++n) {
      const int d = min(n * THREADS + thread(), 2 * D - 1);
      loaded[n] = widened(d < D ? a.k[head * D + d] : a.v[head * D + d - D]);
    }
  }
  for (int g = warp_of(); g < GROUP; g += WARPS) {
    transform<D>(queries + g * D, a.q + (head * GROUP + g) * D, a.q_norm, angles, EPS);
  }
  if (has_own) {
#pragma unroll
    for (int n = 0; n < OWN_EACH; ++n)
      if (n * THREADS + thread() < 2 * D) own[n * THREADS + thread()] = loaded[n];
  }
  synchronise_block();
  if (warp_of() == WARPS - 1) {
    if (has_own) {
      transform<D>(key, own, a.k_norm, angles, EPS);
      __syncwarp();
    }
    for (int g = 0; g < GROUP; ++g) {
      float score = 0.0f;  // with the key as later steps will read it
      for (int d = lane_of(); d < D && has_own; d += 32) score += queries[g * D + d] * as_stored(key[d], a.k_cache);
      score = has_own ? scale * warp_sum(score) : NOTHING;
      if (lane_of() == 0) scores[g] = score;
    }
  }
  // This warp's heads are `first` to first + HEADS_AT_ONCE - 1 of the group, unless it is left over.
  const int first = warp_of() % SETS * HEADS_AT_ONCE, which = warp_of() / SETS;
  const int rows = rows_of(a.k_cache);
  auto softmax = softmax_of(a.k_cache);
  softmax.begin(queries, first, scale);
#pragma unroll 1
  for (int low = share.low;;) {
    const auto* const keys = as(stream.bytes(), a.k_cache);
    const int count = min(share.high - low, rows);
    if (which < WARPS_PER_SET) softmax.add(keys, keys + rows * D, count, which);
    stream.done();
    low += rows;
    if (low >= share.high) break;
    stream.next();
  }
  if (which < WARPS_PER_SET) softmax.store(partials + warp_of() * HEADS_AT_ONCE * (D + 2));
  synchronise_block();
  const long long part = (((long long)tile.i * HEADS + tile.j) * SPLITS + tile.l) * GROUP;
  for (int n = thread(); n < GROUP * D; n += THREADS) {
    const int g = n / D, d = n % D;
    const float* const of_head = partials + g * (D + 2);
    constexpr int STEP = SETS * HEADS_AT_ONCE * (D + 2);  // from one warp of these heads to the next
    float peak = scores[g];
#pragma unroll
    for (int w = 0; w < WARPS_PER_SET; ++w) peak = fmaxf(peak, of_head[w * STEP + D]);
    const float weight = has_own ? exp2f(scores[g] - peak) : 0.0f;
    float total = weight, sum = has_own ? weight * own[D + d] : 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS_PER_SET; ++w) {
      const float fade = exp2f(of_head[w * STEP + D] - peak);
      total += fade * of_head[w * STEP + D + 1];
      sum += fade * of_head[w * STEP + d];
    }
    if constexpr (WHOLE) {
      put(a.out + (part + g) * D + d, sum / total);
    } else if constexpr (out_words) {
      const unsigned epoch = publication(tile, a.out_number, a.publications);
      store_word(a.out + (part + g) * D + d, __float_as_uint(sum), epoch);
      if (d == 0) {
        store_word(a.peak + part + g, __float_as_uint(total > 0.0f ? peak : __int_as_float(0xff800000)), epoch);
        store_word(a.total + part + g, __float_as_uint(total), epoch);
      }
    } else {
      a.out[(part + g) * D + d] = sum;
      if (d == 0) {
        a.peak[part + g] = total > 0.0f ? peak : __int_as_float(0xff800000);  // minus infinity
        a.total[part + g] = total;
      }
    }
  }
  if constexpr (out_words) note_words(tile, a);
}
DEVICE void attend_tile(const Tile& tile, const Arguments& a, Stream& stream) { attend_with(tile, a, stream); }
