"""The CUDA C++ body of attention over a cache, for the one launch.

A row of a head is read by a *team* of neighbouring lanes, 16 bytes each. Every team keeps a softmax of its own over
every n-th position (online, as in the Triton body), and joins the others at the end: first within its warp by shuffles,
then through shared memory, where this step's own key is one more. With D = 64 in bf16 a team has 8 lanes, so that 4
warps are 16 teams, and a team takes positions 0, 16, 32 and 48 of 64 at once. They are loaded while the 64 before are
multiplied, the first while the queries are put in place: 16 KiB under way for each 128 threads. A group of more than
four queries is taken in several passes over the cache.
"""

from __future__ import annotations

from interlace.graph.op import Op
from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.text import TextBody

_MOST_WARPS = 8


def _scratch_bytes(op: Op) -> int:
    """Queries, the own key and scores; of each warp its sums of values, peaks and totals."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return 4 * ((group + 1) * d + group + _MOST_WARPS * group * (d + 2))


ATTEND_TEXT = TextBody(
    ROWS
    + PLACED
    + r"""
constexpr float NOTHING = -1e30f;  // below every score; an exponent of it is 0, and of itself 1, times a total of 0
constexpr int AT_ONCE = 4;         // positions of a team
constexpr int HEADS_AT_ONCE = GROUP < 4 ? GROUP : 4;  // more would not fit the registers
constexpr float SCALE = 1.4426950408889634f;

template <class T> struct Team {
  static constexpr int E = Piece<T>::ELEMENTS;
  static constexpr int LANES = D / E < 32 ? D / E : 32;
  static constexpr int PIECES = D / (LANES * E);  // of a row, of one lane
  static constexpr int ALL = THREADS / LANES;
};

// What a lane has of AT_ONCE rows of keys and of values.
template <class T> struct Cached {
  Elements<T> keys[AT_ONCE][Team<T>::PIECES], values[AT_ONCE][Team<T>::PIECES];
};
template <class T> DEVICE Cached<T> nothing_of(const T*) { return {}; }
template <class T> DEVICE void fetch(Cached<T>& cached, const T* keys, const T* values, int start, int high) {
  typedef Team<T> Of;
  const bool pieces = by_pieces(keys) && by_pieces(values);
  if (start >= high) return;
#pragma unroll
  for (int n = 0; n < AT_ONCE; ++n) {
    // Behind the last position its row is read again, and does not count.
    const int position = min(start + n * Of::ALL + thread() / Of::LANES, high - 1);
    const long long row = (long long)position * D + thread() % Of::LANES * Of::E;
#pragma unroll
    for (int p = 0; p < Of::PIECES; ++p) {
      cached.keys[n][p] = piece_at(keys + row + p * Of::LANES * Of::E, pieces);
      cached.values[n][p] = piece_at(values + row + p * Of::LANES * Of::E, pieces);
    }
  }
}

// Heads first ... first + HEADS_AT_ONCE - 1 of the group, by all teams; each warp leaves what its teams have. The first
// rows are fetched already, and later ones while those before them are multiplied.
template <class T> DEVICE void scan(Cached<T> now, const T* keys, const T* values, int low, int high, int first,
                                    const float* queries, float* left) {
  typedef Team<T> Of;
  constexpr int E = Of::E, P = Of::PIECES, G = HEADS_AT_ONCE;
  const int team = thread() / Of::LANES, mine = thread() % Of::LANES * E;
  float most[G], total[G], sum[G][P * E];
#pragma unroll
  for (int g = 0; g < G; ++g) {
    most[g] = NOTHING;
    total[g] = 0.0f;
#pragma unroll
    for (int e = 0; e < P * E; ++e) sum[g][e] = 0.0f;
  }
#pragma unroll 1
  for (int start = low; start < high; start += Of::ALL * AT_ONCE) {
    Cached<T> following;
    fetch(following, keys, values, start + Of::ALL * AT_ONCE, high);
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float* const query = queries + min(first + g, GROUP - 1) * D + mine;
      float score[AT_ONCE], peak = most[g];
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) {
        score[n] = 0.0f;
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int e = 0; e < E; ++e) score[n] += query[p * Of::LANES * E + e] * widened(now.keys[n][p].items[e]);
#pragma unroll
        for (int distance = Of::LANES / 2; distance; distance /= 2) {
          score[n] += __shfl_xor_sync(0xffffffff, score[n], distance);
        }
        if (start + n * Of::ALL + team >= high) score[n] = NOTHING;
        peak = fmaxf(peak, score[n]);
      }
      const float fade = exp2f(most[g] - peak);
      most[g] = peak;
      total[g] *= fade;
#pragma unroll
      for (int e = 0; e < P * E; ++e) sum[g][e] *= fade;
#pragma unroll
      for (int n = 0; n < AT_ONCE; ++n) {
        const float weight = score[n] == NOTHING ? 0.0f : exp2f(score[n] - peak);
        total[g] += weight;
#pragma unroll
        for (int p = 0; p < P; ++p)
#pragma unroll
          for (int e = 0; e < E; ++e) sum[g][p * E + e] += weight * widened(now.values[n][p].items[e]);
      }
    }
    now = following;
  }
  // The teams of a warp.
#pragma unroll
  for (int g = 0; g < G; ++g) {
#pragma unroll
    for (int distance = 16; distance >= Of::LANES; distance /= 2) {
      const float peak = fmaxf(most[g], __shfl_xor_sync(0xffffffff, most[g], distance));
      const float fade = exp2f(most[g] - peak);
      most[g] = peak;
      total[g] *= fade;
      total[g] += __shfl_xor_sync(0xffffffff, total[g], distance);
#pragma unroll
      for (int e = 0; e < P * E; ++e) {
        sum[g][e] *= fade;
        sum[g][e] += __shfl_xor_sync(0xffffffff, sum[g][e], distance);
      }
    }
    if (first + g < GROUP && lane_of() < Of::LANES) {
      float* const place = left + (warp_of() * GROUP + first + g) * (D + 2);
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int e = 0; e < E; ++e) place[p * Of::LANES * E + mine + e] = sum[g][p * E + e];
      if (lane_of() == 0) {
        place[D] = most[g];
        place[D + 1] = total[g];
      }
    }
  }
}

template <class A> DEVICE void attend_with(const Tile& tile, const A& a) {
  const long long head = (long long)tile.i * HEADS + tile.j;
  const int at = position_of(a.position, tile.i, a.CAPACITY);
  const int share = (((at + BLOCK - 1) / BLOCK + SPLITS - 1) / SPLITS) * BLOCK;
  const int low = min(tile.l * share, at), high = min(low + share, at);
  const bool last = tile.l == SPLITS - 1;
  const float* const angles = a.rope + (long long)at * D;
  float* const queries = scratch<float>();
  float* const key = queries + GROUP * D;
  float* const scores = key + D;
  float* const left = scores + GROUP;
  const float scale = SCALE * rsqrtf((float)D);

  const auto* const keys = a.k_cache + head * a.CAPACITY * D;
  const auto* const values = a.v_cache + head * a.CAPACITY * D;
  constexpr bool ONE_PASS = GROUP <= HEADS_AT_ONCE;
  auto ahead = nothing_of(keys);
  if (ONE_PASS) fetch(ahead, keys, values, low, high);

  for (int g = warp_of(); g <= GROUP; g += WARPS) {
    if (g < GROUP) {
      place<D>(queries + g * D, a.q + (head * GROUP + g) * D, a.q_norm, angles, EPS);
      __syncwarp();
      for (int d = lane_of(); d < D; d += 32) queries[g * D + d] *= scale;
    } else {
      place<D>(key, a.k + head * D, a.k_norm, angles, EPS);
      __syncwarp();
      for (int d = lane_of(); d < D; d += 32) key[d] = as_stored(key[d], a.k_cache);  // as it will be read
    }
  }
  synchronise_block();
  for (int g = warp_of(); g < GROUP; g += WARPS) {
    float score = 0.0f;
    for (int d = lane_of(); d < D; d += 32) score += queries[g * D + d] * key[d];
    score = warp_sum(score);
    if (lane_of() == 0) scores[g] = last ? score : NOTHING;
  }
  if constexpr (ONE_PASS) {
    scan(ahead, keys, values, low, high, 0, queries, left);
  } else {
#pragma unroll 1
    for (int first = 0; first < GROUP; first += HEADS_AT_ONCE) {
      auto now = nothing_of(keys);
      fetch(now, keys, values, low, high);
      scan(now, keys, values, low, high, first, queries, left);
    }
  }
  synchronise_block();
  const long long part = (head * SPLITS + tile.l) * GROUP;
  for (int n = thread(); n < GROUP * D; n += THREADS) {
    const int g = n / D, d = n % D;
    float peak = scores[g];
    for (int warp = 0; warp < WARPS; ++warp) peak = fmaxf(peak, left[(warp * GROUP + g) * (D + 2) + D]);
    const float own = last ? exp2f(scores[g] - peak) : 0.0f;
    float total = own, sum = own * widened(a.v[head * D + d]);
    for (int warp = 0; warp < WARPS; ++warp) {
      const float* const of = left + (warp * GROUP + g) * (D + 2);
      const float fade = exp2f(of[D] - peak);
      total += fade * of[D + 1];
      sum += fade * of[d];
    }
    if constexpr (WHOLE) {
      put(a.out + (part + g) * D + d, sum / total);
    } else {
      a.out[(part + g) * D + d] = sum;
      if (d == 0) {
        a.peak[part + g] = total > 0.0f ? peak : __int_as_float(0xff800000);  // minus infinity
        a.total[part + g] = total;
      }
    }
  }
}
DEVICE void attend_tile(const Tile& tile, const Arguments& a) { attend_with(tile, a); }
""",
    "attend_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional=("q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_scratch_bytes,
    proved=True,
)
