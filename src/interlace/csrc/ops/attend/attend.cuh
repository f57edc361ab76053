// Attention over a KV cache for any element type, heads and groups (kernels/attend/cuda.py).
#pragma once

constexpr int AT_ONCE = 4;  // positions of a team
DEVICE constexpr int heads_of_warp() {
  int heads = 1;
  while (heads < 4 && heads < GROUP) heads *= 2;
  while ((GROUP + heads - 1) / heads > WARPS) heads *= 2;
  return heads;
}
constexpr int HEADS_AT_ONCE = heads_of_warp();
constexpr int SETS = (GROUP + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
constexpr int WARPS_OF_SET = WARPS / SETS;

template <class T> DEVICE constexpr int rows_of(const T*) {
  return PREFETCH_BYTES / (2 * D * (int)sizeof(T)) / 16 * 16;
}
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
    const unsigned below = rows * D * (unsigned)sizeof(*a.k_cache);  // values
    int at = share.low + n * rows;
    const int end = at + count(n);
#pragma unroll 1
    while (at < end) {
      const int together = PAGE ? min(end - at, PAGE - at % max(PAGE, 1)) : end - at;
      const long long from = max(row_of(a, share.sequence, head, at), 0ll) * D;
      const unsigned bytes = D * sizeof(*a.k_cache) * together;
      bulk_load(target, a.k_cache + from, bytes, barrier, evict_first());
      bulk_load(target + below, a.v_cache + from, bytes, barrier, evict_first());
      at += together, target += bytes;
    }
  }
};

template <class T> struct Team {
  static constexpr int E = Piece<T>::ELEMENTS;
  static constexpr int OF_ROW = D / E;  // pieces of 16 bytes
  static constexpr int LANES = OF_ROW <= 2 ? 2 : OF_ROW <= 4 ? 4 : OF_ROW <= 8 ? 8 : OF_ROW <= 16 ? 16 : 32;
  static constexpr int PIECES = (OF_ROW + LANES - 1) / LANES;  // of one lane
  static constexpr int ALL = WARPS_OF_SET * 32 / LANES;
  static constexpr int SCORES = HEADS_AT_ONCE * AT_ONCE;            // in the order of heads
  static constexpr int KEPT = SCORES > LANES ? SCORES / LANES : 1;  // by each lane, of
  static constexpr int HEADS = KEPT > AT_ONCE ? KEPT / AT_ONCE : 1;
  static constexpr int LANES_OF_HEAD = LANES * HEADS / HEADS_AT_ONCE;  // that have scores of the same head
  static constexpr int COPIES = LANES > SCORES ? LANES / SCORES : 1;   // lanes with the same score
  // Where a lane's pieces of a row begin; what would lie behind the row is its last piece again.
  DEVICE static int begin_of(int p) { return min(p * LANES + lane_of() % LANES, OF_ROW - 1) * E; }
  DEVICE static bool is_there(int p) { return p * LANES + lane_of() % LANES < OF_ROW; }
};

// Sums of COUNT numbers over DISTANCE * 2 lanes, each of which keeps a share of them: the first lanes the first.
template <int COUNT, int DISTANCE, int N> DEVICE void exchange(float (&values)[N]) {
  if constexpr (DISTANCE > 0) {
    if constexpr (COUNT > 1) {
      const bool upper = lane_of() & DISTANCE;
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const float given = upper ? values[i] : values[i + COUNT / 2];
        values[i] = (upper ? values[i + COUNT / 2] : values[i]) + __shfl_xor_sync(0xffffffff, given, DISTANCE);
      }
    } else {
      values[0] += __shfl_xor_sync(0xffffffff, values[0], DISTANCE);
    }
    exchange<(COUNT > 1 ? COUNT / 2 : 1), DISTANCE / 2>(values);
  }
}

// What a warp has of HEADS_AT_ONCE heads. A lane knows peaks and totals of the heads whose scores it keeps.
template <class T> struct Sums {
  typedef Team<T> Of;
  static constexpr int E = Of::E, P = Of::PIECES, G = HEADS_AT_ONCE;
  float queries[G][P * E], sum[G][P * E], most[Of::HEADS], total[Of::HEADS];

  // The lane of this lane's team that keeps a score.
  DEVICE static int owner(int score) {
    return lane_of() / Of::LANES * Of::LANES + (Of::SCORES > Of::LANES ? score / Of::KEPT : score * Of::COPIES);
  }
  DEVICE void begin(const float* from, int first, float scale) {
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int e = 0; e < E; ++e) {
          const int d = Of::begin_of(p) + e;
          queries[g][p * E + e] = Of::is_there(p) ? scale * from[min(first + g, GROUP - 1) * D + d] : 0.0f;
          sum[g][p * E + e] = 0.0f;
        }
#pragma unroll
    for (int h = 0; h < Of::HEADS; ++h) most[h] = NOTHING, total[h] = 0.0f;
  }
  DEVICE void fade(int g, float by) {
#pragma unroll
    for (int e = 0; e < P * E; ++e) sum[g][e] *= by;
  }
  // Positions of a stage: `count` rows of keys, and of values.
  DEVICE void take(const T* keys, const T* values, int count, int which) {
    const int team = which * (32 / Of::LANES) + lane_of() / Of::LANES, lane = lane_of() % Of::LANES;
#pragma unroll 1
    for (int start = 0; start < count; start += Of::ALL * AT_ONCE) {
      Elements<T> rows[AT_ONCE][P];
      float score[Of::SCORES];
      int at[AT_ONCE];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) {
        // Behind the last position its row is read again, and does not count.
        at[n] = min(start + n * Of::ALL + team, count - 1) * D;
#pragma unroll
        for (int p = 0; p < P; ++p) rows[n][p] = piece_at(keys + at[n] + Of::begin_of(p), true);
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
        for (int p = 0; p < P; ++p) rows[n][p] = piece_at(values + at[n] + Of::begin_of(p), true);
      exchange<Of::SCORES, Of::LANES / 2>(score);
      float faded[Of::HEADS];
#pragma unroll
      for (int h = 0; h < Of::HEADS; ++h) {
        constexpr int EACH = Of::KEPT / Of::HEADS;
        float peak = most[h];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
          const int n = (Of::KEPT * (lane / Of::COPIES) + i) % AT_ONCE;
          if (start + n * Of::ALL + team >= count) score[h * EACH + i] = NOTHING;
          peak = fmaxf(peak, score[h * EACH + i]);
        }
#pragma unroll
        for (int distance = Of::LANES_OF_HEAD / 2; distance; distance /= 2) {
          peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, distance));
        }
        faded[h] = exp2f(most[h] - peak);
        most[h] = peak;
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
        fade(g, __shfl_sync(0xffffffff, faded[g % Of::HEADS], owner(g * AT_ONCE)));
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          const float weight = __shfl_sync(0xffffffff, score[(g * AT_ONCE + n) % Of::KEPT], owner(g * AT_ONCE + n));
#pragma unroll
          for (int p = 0; p < P; ++p)
#pragma unroll
            for (int e = 0; e < E; ++e) sum[g][p * E + e] += weight * widened(rows[n][p].items[e]);
        }
      }
    }
  }
  // The teams of the warp: of each head D sums, the peak and the total.
  DEVICE void leave(float* left) {
#pragma unroll
    for (int h = 0; h < Of::HEADS; ++h) {
#pragma unroll
      for (int distance = Of::LANES_OF_HEAD / 2; distance; distance /= 2) {
        if (distance >= Of::COPIES) total[h] += __shfl_xor_sync(0xffffffff, total[h], distance);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float peak = __shfl_sync(0xffffffff, most[g % Of::HEADS], owner(g * AT_ONCE));
      float whole = __shfl_sync(0xffffffff, total[g % Of::HEADS], owner(g * AT_ONCE));
#pragma unroll
      for (int distance = 16; distance >= Of::LANES; distance /= 2) {
        const float most_of_two = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, distance));
        const float by = exp2f(peak - most_of_two);
        peak = most_of_two;
        whole *= by;
        whole += __shfl_xor_sync(0xffffffff, whole, distance);
        fade(g, by);
#pragma unroll
        for (int e = 0; e < P * E; ++e) sum[g][e] += __shfl_xor_sync(0xffffffff, sum[g][e], distance);
      }
      float* const place = left + g * (D + 2);
      if (lane_of() < Of::LANES) {
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int e = 0; e < E && Of::is_there(p); ++e) place[Of::begin_of(p) + e] = sum[g][p * E + e];
      }
      if (lane_of() == 0) place[D] = peak, place[D + 1] = whole;
    }
  }
};
template <class T> DEVICE Sums<T> sums_of(const T*) { return {}; }
template <class T> DEVICE const T* as(const unsigned char* bytes, const T*) {
  return reinterpret_cast<const T*>(bytes);
}

template <class A> DEVICE void attend_with(const Tile& tile, const A& a, Stream& stream) {
  const Share share = share_of(tile, a);
  const long long head = (long long)share.sequence * HEADS + tile.j;
  const bool with_own = share.own;
  float* const queries = scratch<float>();
  float* const own = queries + GROUP * D;  // this step's key, and value
  float* const angles = own + 2 * D;
  float* const key = angles + D;
  float* const scores = key + D;
  float* const left = scores + GROUP;
  const float scale = SCALE * rsqrtf((float)D);

  for (int d = thread(); d < D; d += THREADS) angles[d] = __ldcg(a.rope + (long long)share.at * D + d);
  synchronise_block();
  stream.next();
  // All loads of what was waited for are on their way before the first is used.
  constexpr int OWN = (2 * D + THREADS - 1) / THREADS;
  float came[OWN];
  if (with_own) {
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
      const int d = min(n * THREADS + thread(), 2 * D - 1);
      came[n] = widened(d < D ? a.k[head * D + d] : a.v[head * D + d - D]);
    }
  }
  for (int g = warp_of(); g < GROUP; g += WARPS) {
    place<D>(queries + g * D, a.q + (head * GROUP + g) * D, a.q_norm, angles, EPS);
  }
  if (with_own) {
#pragma unroll
    for (int n = 0; n < OWN; ++n)
      if (n * THREADS + thread() < 2 * D) own[n * THREADS + thread()] = came[n];
  }
  synchronise_block();
  if (warp_of() == WARPS - 1) {
    if (with_own) {
      place<D>(key, own, a.k_norm, angles, EPS);
      __syncwarp();
    }
    for (int g = 0; g < GROUP; ++g) {
      float score = 0.0f;  // of the key as it will be read
      for (int d = lane_of(); d < D && with_own; d += 32) score += queries[g * D + d] * as_stored(key[d], a.k_cache);
      score = with_own ? scale * warp_sum(score) : NOTHING;
      if (lane_of() == 0) scores[g] = score;
    }
  }
  // Heads first ... first + HEADS_AT_ONCE - 1 of the group, of whose warps this is one, unless it is left over.
  const int first = warp_of() % SETS * HEADS_AT_ONCE, which = warp_of() / SETS;
  const int rows = rows_of(a.k_cache);
  auto sums = sums_of(a.k_cache);
  sums.begin(queries, first, scale);
#pragma unroll 1
  for (int low = share.low;;) {
    const auto* const keys = as(stream.bytes(), a.k_cache);
    const int count = min(share.high - low, rows);
    if (which < WARPS_OF_SET) sums.take(keys, keys + rows * D, count, which);
    stream.done();
    low += rows;
    if (low >= share.high) break;
    stream.next();
  }
  if (which < WARPS_OF_SET) sums.leave(left + warp_of() * HEADS_AT_ONCE * (D + 2));
  synchronise_block();
  const long long part = (((long long)tile.i * HEADS + tile.j) * SPLITS + tile.l) * GROUP;
  for (int n = thread(); n < GROUP * D; n += THREADS) {
    const int g = n / D, d = n % D;
    const float* const of_set = left + g * (D + 2);
    constexpr int STEP = SETS * HEADS_AT_ONCE * (D + 2);  // to the next warp of these heads
    float peak = scores[g];
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) peak = fmaxf(peak, of_set[w * STEP + D]);
    const float weight = with_own ? exp2f(scores[g] - peak) : 0.0f;
    float total = weight, sum = with_own ? weight * own[D + d] : 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) {
      const float fade = exp2f(of_set[w * STEP + D] - peak);
      total += fade * of_set[w * STEP + D + 1];
      sum += fade * of_set[w * STEP + d];
    }
    if constexpr (WHOLE) {
      put(a.out + (part + g) * D + d, sum / total);
    } else if constexpr (out_words) {
      const unsigned own = publication(tile, a.out_number, a.publications);
      store_word(a.out + (part + g) * D + d, __float_as_uint(sum), own);
      if (d == 0) {
        store_word(a.peak + part + g, __float_as_uint(total > 0.0f ? peak : __int_as_float(0xff800000)), own);
        store_word(a.total + part + g, __float_as_uint(total), own);
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
