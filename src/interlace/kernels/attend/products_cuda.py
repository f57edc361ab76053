"""The CUDA C++ body of attention over a cache on tensor cores, for the one launch: 16-bit elements, heads of 64 or 128.

As in ``attend/cuda`` keys and values of a share come through the ring, some positions to a stage. Here they come by
tensor maps, in boxes of 32 positions and 64 elements: rows of 128 bytes, permuted by the 128-byte swizzle, so that
eight rows of a matrix lie in different banks. What a box has behind the share's last position is never read.

A warp takes 16 positions at a time for up to eight heads of the group, and keeps a softmax of its own (online, as in
the Triton body). Products have 16 rows: the second eight carry what rounding took from the first, of queries and of
weights alike, and sums of the two are as exact as if both were float32.

    rows of a product     0 .. 7                     8 .. 15
    queries               rounded                    what is lost, rounded
    scores                their sum is the score, and both are in the same lane
    weights               rounded                    what is lost, rounded
    values' sums          their sum is what a head gets

The warp that has the fewest positions begins with this step's own key and value, which never went through the cache.
In the end warps meet in shared memory, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.share_cuda import SHARE
from interlace.kernels.cuda.matrices import MATRICES
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_HEADS = 8  # of a warp
_WARPS = 4, 8  # of a block, at least and at most
_BOX = 32  # positions that come at once
_WIDTHS = 64, 128  # elements of a head


def suits(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether this body computes an op."""
    d, group = int(op.param("D")), int(op.param("GROUP"))
    return tensors["k_cache"].dtype.itemsize == 2 and d in _WIDTHS and group <= _HEADS * _WARPS[0]


def _scratch_bytes(op: Op) -> int:
    """Of each warp and head the sums of values, the peak and the total."""
    return 4 * _WARPS[1] * min(int(op.param("GROUP")), _HEADS) * (int(op.param("D")) + 8)


def _stage_bytes(op: Op) -> int:
    return 2 * _BOX * int(op.param("D")) * 2


def _boxes(op: Op) -> dict[str, int]:
    return dict.fromkeys(("k_cache", "v_cache"), _BOX)


ATTEND_PRODUCTS = TextBody(
    ROWS
    + SHARE
    + MATRICES
    + r"""
constexpr int BOX = 32, AT_ONCE = 16;  // positions that come at once, and that a warp takes
constexpr int PANEL_BYTES = BOX * 128, BOX_BYTES = D / 64 * PANEL_BYTES;
constexpr int STAGE_ROWS = INDEPENDENT_BYTES / (2 * BOX_BYTES) * BOX;
constexpr int HEADS_AT_ONCE = GROUP < 8 ? GROUP : 8;
constexpr int SETS = (GROUP + 7) / 8, WARPS_OF_SET = WARPS / SETS;
constexpr int PIECES = D / 8;  // of a row; a lane has two neighbours of each
constexpr int PITCH = D + 8;   // floats of a head in the scratch: banks differ from one head to the next three

struct Loads {
  const TensorMap &keys, &values;
  Share share;
  int head;

  DEVICE Loads(const Tile& tile, const Arguments& a) : keys(a.k_cache_boxes), values(a.v_cache_boxes) {
    share = share_of(tile, position_in(tile, a));
    head = tile.i * HEADS + tile.j;
  }
  DEVICE int stages() const { return max((share.high - share.low + STAGE_ROWS - 1) / STAGE_ROWS, 1); }
  DEVICE int boxes(int n) const {
    return (min(share.high - share.low - n * STAGE_ROWS, STAGE_ROWS) + BOX - 1) / BOX;
  }
  DEVICE unsigned bytes(int n) const { return 2 * BOX_BYTES * boxes(n); }
  DEVICE void load(int n, unsigned target, unsigned barrier) const {
    const int count = boxes(n), first = share.low + n * STAGE_ROWS;
    const unsigned below = STAGE_ROWS / BOX * BOX_BYTES;  // values
#pragma unroll 1
    for (int b = 0; b < count; ++b)
#pragma unroll
      for (int d = 0; d < D; d += 64, target += PANEL_BYTES) {
        tma_load_3d(target, keys, d, first + b * BOX, head, barrier);
        tma_load_3d(target + below, values, d, first + b * BOX, head, barrier);
      }
  }
};

constexpr decltype(Arguments::k_cache) STORED = nullptr;  // an element of the cache's type
template <class T> DEVICE float2 widened_pair(unsigned pair, const T*) {
  return make_float2(widened(T{(unsigned short)pair}), widened(T{(unsigned short)(pair >> 16)}));
}
DEVICE unsigned as_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// A lane's elements of a row: of each 8 the two that it has of a matrix.
template <class T> DEVICE void load_row_pairs(unsigned (&to)[PIECES], const T* row) {
#pragma unroll
  for (int p = 0; p < PIECES; ++p) to[p] = __ldcg(reinterpret_cast<const unsigned*>(row) + p * 4 + lane_of() % 4);
}
// Sums and largest numbers of the four lanes that have a head.
DEVICE float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
DEVICE float most_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// A lane's cosines and sines.
struct Angles {
  float2 cosines[PIECES / 2], sines[PIECES / 2];
  DEVICE void load(const float* row) {
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) {
      const float2* const at = reinterpret_cast<const float2*>(row) + p * 4 + lane_of() % 4;
      cosines[p] = __ldcg(at), sines[p] = __ldcg(at + D / 4);
    }
  }
  DEVICE void rotate(float2 (&x)[PIECES]) const {
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) {
      const float2 low = x[p], high = x[p + PIECES / 2], c = cosines[p], s = sines[p];
      x[p] = make_float2(low.x * c.x - high.x * s.x, low.y * c.y - high.y * s.y);
      x[p + PIECES / 2] = make_float2(high.x * c.x + low.x * s.x, high.y * c.y + low.y * s.y);
    }
  }
};
// The weight of a norm of heads, if there is one.
template <class T> struct Norm {
  unsigned pairs[PIECES];
  const T* weight;
  DEVICE Norm(const T* from) : weight(from) {
    if (weight) load_row_pairs(pairs, weight);
  }
  DEVICE void apply(float2 (&x)[PIECES]) const {
    if (!weight) return;
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) squares += x[p].x * x[p].x + x[p].y * x[p].y;
    const float factor = rsqrtf(sum_of_four(squares) / D + EPS);
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      const float2 w = widened_pair(pairs[p], weight);
      x[p] = make_float2(x[p].x * factor * w.x, x[p].y * factor * w.y);
    }
  }
};
template <class T> DEVICE Norm<T> norm_of(const T* weight) { return {weight}; }
// A lane's elements of a head in its place: normalised and rotated.
template <class T> DEVICE void place(float2 (&x)[PIECES], const unsigned (&pairs)[PIECES], const T* of,
                                     const Norm<T>& norm, const Angles& angles) {
#pragma unroll
  for (int p = 0; p < PIECES; ++p) x[p] = widened_pair(pairs[p], of);
  norm.apply(x);
  angles.rotate(x);
}

// What a warp has of the heads of its set: lane l of head l / 4.
struct Sums {
  unsigned queries[PIECES / 2][4];
  float sums[PIECES][4], most, total;  // the total of this lane's positions

  DEVICE void begin(const float2 (&query)[PIECES]) {  // without sums
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      const unsigned pair = as_pair(query[p].x, query[p].y);
      const float2 kept = widened_pair(pair, STORED);
      queries[p / 2][p % 2 * 2] = pair;
      queries[p / 2][p % 2 * 2 + 1] = as_pair(query[p].x - kept.x, query[p].y - kept.y);
    }
  }
  // Up to 16 positions, `count` of which are the share's, at least one: where their rows begin.
  DEVICE void take(unsigned keys, unsigned values, int count) {
    const int lane = lane_of();
    // Behind the last position its row is read again, and does not count.
    const int key = min(lane / 16 * 8 + lane % 8, count - 1), value = min(lane % 16, count - 1);
    const unsigned from_keys = keys + key * 128 + ((lane / 8 % 2 ^ key & 7) << 4);
    const unsigned from_values = values + value * 128 + ((lane / 16 ^ value & 7) << 4);
    float scores[2][2][4] = {};  // of odd and even pieces apart; of 8 positions each
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) {
      unsigned rows[4];
      load_matrices(rows, (from_keys ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
      multiply(scores[p % 2][0], queries[p], rows[0], rows[1]);
      multiply(scores[p % 2][1], queries[p], rows[2], rows[3]);
    }
    unsigned rows[PIECES / 2][4];  // on their way while weights are made
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) load_transposed(rows[p], (from_values ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
    float weights[4], peak = most;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const even = scores[0][i / 2];
      const float* const odd = scores[1][i / 2];
      weights[i] = (even[i % 2] + odd[i % 2]) + (even[i % 2 + 2] + odd[i % 2 + 2]);
      if (i / 2 * 8 + lane % 4 * 2 + i % 2 >= count) weights[i] = NOTHING;
      peak = fmaxf(peak, weights[i]);
    }
    peak = most_of_four(peak);
    const float fade = exp2f(most - peak);
    most = peak;
    total *= fade;
#pragma unroll
    for (int i = 0; i < 4; ++i) total += weights[i] = exp2f(weights[i] - peak);
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      pairs[i] = as_pair(weights[i], weights[i + 1]);
      const float2 kept = widened_pair(pairs[i], STORED);
      pairs[i + 1] = as_pair(weights[i] - kept.x, weights[i + 1] - kept.y);
    }
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[p][i] *= fade;
      multiply(sums[p], pairs, rows[p / 2][p % 2 * 2], rows[p / 2][p % 2 * 2 + 1]);
    }
  }
  // D sums, the peak and the total.
  DEVICE void leave(float* head) {
    const float whole = sum_of_four(total);
    if (lane_of() / 4 >= HEADS_AT_ONCE) return;
#pragma unroll
    for (int p = 0; p < PIECES; ++p)
      reinterpret_cast<float2*>(head)[p * 4 + lane_of() % 4] =
          make_float2(sums[p][0] + sums[p][2], sums[p][1] + sums[p][3]);
    if (lane_of() % 4 == 0) head[D] = most, head[D + 1] = whole;
  }
};

DEVICE void put_pair(float* at, float low, float high) { *reinterpret_cast<float2*>(at) = make_float2(low, high); }
template <class T> DEVICE void put_pair(T* at, float low, float high) {
  *reinterpret_cast<unsigned*>(at) = as_pair(low, high);
}

template <class A> DEVICE void attend_with(const Tile& tile, const A& a, Stream& stream) {
  const long long head = (long long)tile.i * HEADS + tile.j;
  const int set = warp_of() % SETS, which = warp_of() / SETS;
  const int at = position_in(tile, a);
  const Share share = share_of(tile, at);
  const bool own = tile.l == SPLITS - 1 && which == WARPS_OF_SET - 1;
  Angles angles;
  angles.load(a.rope + (long long)at * D);
  const auto q_norm = norm_of(a.q_norm), k_norm = norm_of(a.k_norm);

  stream.next();
  // All loads of what was waited for are on their way before the first is used.
  unsigned query_pairs[PIECES], key_pairs[PIECES], value_pairs[PIECES];
  load_row_pairs(query_pairs, a.q + (head * GROUP + min(set * 8 + lane_of() / 4, GROUP - 1)) * D);
  if (own) load_row_pairs(key_pairs, a.k + head * D), load_row_pairs(value_pairs, a.v + head * D);
  unsigned key[PIECES];  // as it will be read
  if (own) {
    float2 placed[PIECES];
    place(placed, key_pairs, a.k, k_norm, angles);
#pragma unroll
    for (int p = 0; p < PIECES; ++p) key[p] = as_pair(placed[p].x, placed[p].y);
  }
  float2 query[PIECES];
  place(query, query_pairs, a.q, q_norm, angles);
  const float scale = SCALE * rsqrtf((float)D);
  float score = 0.0f;
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    query[p] = make_float2(query[p].x * scale, query[p].y * scale);
    const float2 kept = widened_pair(own ? key[p] : 0, STORED);
    score += query[p].x * kept.x + query[p].y * kept.y;
  }
  score = sum_of_four(score);
  Sums sums;
  sums.begin(query);
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const float2 value = widened_pair(own ? value_pairs[p] : 0, STORED);
    sums.sums[p][0] = value.x, sums.sums[p][1] = value.y, sums.sums[p][2] = sums.sums[p][3] = 0.0f;
  }
  sums.most = own ? score : NOTHING, sums.total = own && lane_of() % 4 == 0 ? 1.0f : 0.0f;
  int block = which;  // of 16 positions of the stage, this warp's next
#pragma unroll 1
  for (int low = share.low;;) {
    const int count = min(share.high - low, STAGE_ROWS);
    const unsigned keys = stream.address(), values = keys + STAGE_ROWS / BOX * BOX_BYTES;
#pragma unroll 1
    for (; which < WARPS_OF_SET && block * AT_ONCE < count; block += WARPS_OF_SET) {
      const unsigned from = block / 2 * BOX_BYTES + block % 2 * AT_ONCE * 128;
      sums.take(keys + from, values + from, count - block * AT_ONCE);
    }
    block -= STAGE_ROWS / AT_ONCE;
    stream.done();
    low += STAGE_ROWS;
    if (low >= share.high) break;
    stream.next();
  }
  float* const left = scratch<float>();
  constexpr int OF_WARP = HEADS_AT_ONCE * PITCH, STEP = SETS * OF_WARP;  // to the next warp of the same heads
  if (which < WARPS_OF_SET) sums.leave(left + warp_of() * OF_WARP + lane_of() / 4 * PITCH);
  synchronise_block();
  const long long part = (head * SPLITS + tile.l) * GROUP;
#pragma unroll
  for (int n = thread(); n < GROUP * D / 2; n += THREADS) {
    const int g = n / (D / 2), d = n % (D / 2) * 2;
    const float* const of_head = left + g / 8 * OF_WARP + g % 8 * PITCH;
    float peak = NOTHING, total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) peak = fmaxf(peak, of_head[w * STEP + D]);
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) {
      const float fade = exp2f(of_head[w * STEP + D] - peak);
      const float2 more = *reinterpret_cast<const float2*>(of_head + w * STEP + d);
      total += fade * of_head[w * STEP + D + 1];
      sum.x += fade * more.x, sum.y += fade * more.y;
    }
    const float by = WHOLE ? __fdividef(1.0f, total) : 1.0f;
    put_pair(a.out + (part + g) * D + d, sum.x * by, sum.y * by);
    if constexpr (!WHOLE) {
      if (d == 0) {
        a.peak[part + g] = total > 0.0f ? peak : __int_as_float(0xff800000);  // minus infinity
        a.total[part + g] = total;
      }
    }
  }
}
DEVICE void attend_tile(const Tile& tile, const Arguments& a, Stream& stream) { attend_with(tile, a, stream); }
""",
    "attend_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional=("q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_scratch_bytes,
    proved=True,
    streamed=("k_cache", "v_cache"),
    early=("position", "rope", "q_norm", "k_norm"),
    paired=("q", "k", "v", "rope", "q_norm", "k_norm", "out"),
    loads="Loads",
    stage_bytes=_stage_bytes,
    boxes=_boxes,
)
