"""The CUDA C++ bodies of routing, for the one launch.

A warp looks for the experts of some tokens. Numbers are compared as integers of the same order, by one instruction for
all lanes; what was taken, and what there is not, is below all of them.
"""

from __future__ import annotations

from interlace.graph.op import Op
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_TOGETHER = 4
#: Tokens that a block has at a time at most: some for each of its warps.
MOST_AT_ONCE = 8 * _TOGETHER
_AT_ONCE = 8

CHOOSE = ROWS + rf"""
constexpr int TOGETHER = {_TOGETHER};
""" + r"""
constexpr int PER = (E + 31) / 32, NONE = -0x7fffffff;
DEVICE int key_of(float x) {
  const int bits = __float_as_int(x + 0.0f);  // -0 is 0
  return max(bits ^ (bits >> 31 & 0x7fffffff), NONE + 1);
}
DEVICE float float_of(int key) { return __int_as_float(key ^ (key >> 31 & 0x7fffffff)); }
DEVICE void load_keys(const float* logits, int (&keys)[PER]) {
#pragma unroll
  for (int n = 0; n < PER; ++n) {
    const int e = n * 32 + lane_of();
    keys[n] = e < E ? key_of(logits[e]) : NONE;
  }
}
// By all threads: the experts of tokens from `begin` to `end`, each counted, and their weights; `shares` has CHOSEN for
// each token meanwhile. A warp has some tokens at a time: memory is far, and so is what all lanes find together.
DEVICE void choose_all(const float* logits, int begin, int end, int* experts, float* weights, int* counts,
                       float* shares) {
  const int lane = lane_of();
  float* const mine = shares + warp_of() * TOGETHER * CHOSEN;
  for (int first = begin + warp_of(); first < end; first += WARPS * TOGETHER) {
    int keys[TOGETHER][PER];
    float most_of[TOGETHER], sums[TOGETHER];
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) load_keys(logits + (long long)min(first + n * WARPS, end - 1) * E, keys[n]);
#pragma unroll 1
    for (int k = 0; k < CHOSEN; ++k) {
#pragma unroll
      for (int n = 0; n < TOGETHER; ++n) {
        int most = keys[n][0], where = 0;
#pragma unroll
        for (int p = 1; p < PER; ++p)
          if (keys[n][p] > most) most = keys[n][p], where = p;
        const int best = __reduce_max_sync(0xffffffff, most);
        const int expert = __reduce_min_sync(0xffffffff, most == best ? where * 32 + lane : E);
#pragma unroll
        for (int p = 0; p < PER; ++p)
          if (p * 32 + lane == expert) keys[n][p] = NONE;
        if (k == 0) most_of[n] = float_of(best), sums[n] = 0.0f;
        const float share = __expf(float_of(best) - most_of[n]);
        sums[n] += share;
        if (lane == 0 && first + n * WARPS < end) {
          experts[(long long)(first + n * WARPS) * CHOSEN + k] = expert;
          mine[n * CHOSEN + k] = share;
          atomicAdd(counts + expert, 1);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < TOGETHER; ++n) {
      const int t = first + n * WARPS;
      for (int k = lane; t < end && k < CHOSEN; k += 32)
        weights[(long long)t * CHOSEN + k] = mine[n * CHOSEN + k] / sums[n];
    }
    __syncwarp();
  }
}
"""

_ROUTE = CHOOSE + r"""
DEVICE void route_tile(const Tile& tile, const Arguments& a) {
  int* const counts = scratch<int>();
  const int begin = tile.i * BLOCK, end = min(begin + BLOCK, a.T);
  for (int e = thread(); e < E; e += THREADS) counts[e] = 0;
  synchronise_block();
  choose_all(a.logits, begin, end, a.experts, a.weights, counts, scratch<float>() + E);
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) a.counts[(long long)tile.i * E + e] = counts[e];
}
"""

TILES_BEFORE = r"""
// Tiles that the experts before one own together.
DEVICE int tiles_before(const int* total, int expert) {
  int tiles = 0;
  for (int e = 0; e < expert; ++e) tiles += (total[e] + ROWS - 1) / ROWS;
  return tiles;
}
"""

_SUM_UP = rf"""{TILES_BEFORE}
constexpr int AT_ONCE = {_AT_ONCE};
""" + r"""
// By all threads: a function of each of some numbers and its place. A thread has 4 neighbours at a time, where memory
// begins so, and several of these on their way.
template <class F> DEVICE void for_each(const int* numbers, int count, F use) {
  const bool fours = (unsigned long long)numbers % 16 == 0;
  for (int first = thread() * 4; first < count; first += THREADS * 4 * AT_ONCE) {
    int4 values[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int at = first + n * THREADS * 4;
      values[n] = make_int4(0, 0, 0, 0);
      if (fours && at + 4 <= count) values[n] = __ldcg(reinterpret_cast<const int4*>(numbers + at));
      else if (at < count)
        values[n] = make_int4(__ldcg(numbers + at), __ldcg(numbers + min(at + 1, count - 1)),
                              __ldcg(numbers + min(at + 2, count - 1)), __ldcg(numbers + min(at + 3, count - 1)));
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int at = first + n * THREADS * 4;
      if (at < count) use(at, values[n].x);
      if (at + 1 < count) use(at + 1, values[n].y);
      if (at + 2 < count) use(at + 2, values[n].z);
      if (at + 3 < count) use(at + 3, values[n].w);
    }
  }
}
// By all threads: pairs of each expert, and those of them in the first `before` blocks of tokens.
DEVICE void sum_up(const int* counts, int blocks, int before, int* total, int* earlier) {
  for (int e = thread(); e < E; e += THREADS) total[e] = earlier[e] = 0;
  synchronise_block();
  for_each(counts, blocks * E, [&](int at, int count) {
    if (!count) return;
    atomicAdd(total + at % E, count);
    if (at / E < before) atomicAdd(earlier + at % E, count);
  });
  synchronise_block();
}
"""

_PLACE = _SUM_UP + r"""
DEVICE void place_tile(const Tile& tile, const Arguments& a) {
  int *const total = scratch<int>(), *const next = total + E, *const mine = next + E;
  const int first = tile.i * BLOCK * CHOSEN, pairs = min(BLOCK * CHOSEN, a.T * CHOSEN - first);
  sum_up(a.counts, a.BLOCKS, tile.i, total, next);
  for (int e = thread(); e < E; e += THREADS) next[e] += tiles_before(total, e) * ROWS;
  for (int p = thread(); p < pairs; p += THREADS) mine[p] = a.experts[first + p];
  synchronise_block();
  for (int p = thread(); p < pairs; p += THREADS) {
    const int expert = mine[p];
    int earlier = 0;
    for (int q = 0; q < p; ++q) earlier += mine[q] == expert;
    a.place[first + p] = expert >= 0 && expert < E ? next[expert] + earlier : -1;
  }
}
"""

_FILL = _SUM_UP + r"""
DEVICE void fill_tile(const Tile& tile, const Arguments& a) {
  int *const total = scratch<int>(), *const none = total + E, *const token = none + E, *const owner = token + ROWS;
  sum_up(a.counts, a.BLOCKS, 0, total, none);
  for (int row = thread(); row < ROWS; row += THREADS) token[row] = -1;
  if (thread() == 0) *owner = -1;
  synchronise_block();
  for (int e = thread(); e < E; e += THREADS) {
    const int before = tile.i - tiles_before(total, e);
    if (before >= 0 && before * ROWS < total[e]) *owner = e;
  }
  const int low = tile.i * ROWS;
  for_each(a.place, a.T * CHOSEN, [&](int pair, int place) {
    const int row = place - low;
    if (row >= 0 && row < ROWS) token[row] = pair / CHOSEN;
  });
  synchronise_block();
  for (int row = thread(); row < ROWS; row += THREADS) a.token[low + row] = token[row];
  if (thread() == 0) a.owner[tile.i] = *owner;
}
"""


def _of_experts(op: Op, *, more: int = 0) -> int:
    return 4 * (2 * int(op.param("E")) + more)


ROUTE_TEXT = TextBody(
    _ROUTE,
    "route_tile",
    constants=("E", "CHOSEN", "BLOCK"),
    scratch_bytes=lambda op: 4 * (int(op.param("E")) + MOST_AT_ONCE * int(op.param("CHOSEN"))),
    proved=True,
)
PLACE_TEXT = TextBody(
    _PLACE,
    "place_tile",
    constants=("E", "CHOSEN", "BLOCK", "ROWS"),
    scratch_bytes=lambda op: _of_experts(op, more=int(op.param("BLOCK")) * int(op.param("CHOSEN"))),
    proved=True,
)
FILL_TEXT = TextBody(
    _FILL,
    "fill_tile",
    constants=("E", "CHOSEN", "ROWS"),
    scratch_bytes=lambda op: _of_experts(op, more=int(op.param("ROWS")) + 1),
    proved=True,
)
