// Rows of queries, keys and values in the lanes of a warp, as products.cuh takes them: normalised, and rotated.
#pragma once
#include "loads.cuh"
#include "../mma.cuh"
#include "../rows.cuh"
#include "../../ll.cuh"

constexpr bool WIDE = D > 128;
constexpr int HEADS_AT_ONCE = GROUP < 8 ? GROUP : 8;
constexpr int PIECES = D / 8;  // of a row, 8 elements each; a lane has two neighbours of a piece
constexpr int PITCH = D + 4;   // floats of a head in the scratch, such that lanes store to different banks
constexpr int PARTIAL_FLOATS = WARPS * HEADS_AT_ONCE * PITCH;  // of the scratch, for the partial sums of all warps

constexpr decltype(Arguments::k_cache) STORED = nullptr;  // an element of the cache's type
template <class T> DEVICE float2 widened_pair(unsigned pair, const T*) {
  return make_float2(widened(T{(unsigned short)pair}), widened(T{(unsigned short)(pair >> 16)}));
}
// Two neighbours of each 8 elements of a row of shared memory: in registers, or, if WIDE, where they are.
struct RowPairs {
  const unsigned* row;
  unsigned held[WIDE ? 1 : PIECES];
  DEVICE void load(const void* from, int which) {
    row = static_cast<const unsigned*>(from) + which;
    if constexpr (!WIDE) {
#pragma unroll
      for (int p = 0; p < PIECES; ++p) held[p] = row[p * 4];
    }
  }
  DEVICE unsigned operator[](int p) const {
    if constexpr (WIDE) return row[p * 4];
    else return held[p];
  }
};
template <bool IS_LL, class A> struct LLRows {
  DEVICE LLRows(const Tile& tile, const A& a, long long head) {}
};
// Rows of q, k and v that are LL words of two elements: all threads poll them, and store them to the scratch. Meanwhile
// they load what a header has otherwise: cosines and sines, and the weights of norms.
template <class A> struct LLRows<true, A> {
  static constexpr int WIDTH = D / 2, PAIRS = (GROUP + 2) * WIDTH / 2, EACH = (PAIRS + THREADS - 1) / THREADS;
  static constexpr int GIVEN = NORMED ? 2 * D : D, EACH_GIVEN = (GIVEN + THREADS - 1) / THREADS;
  const Tile& tile;
  const A& a;
  const long long head;
  Words<2> pairs[EACH];
  unsigned given[EACH_GIVEN];
  DEVICE LLRows(const Tile& tile, const A& a, long long head) : tile(tile), a(a), head(head) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      pairs[n].wanted = publication(tile, number(n), a.publications);
      pairs[n].forget();
      if (pair(n) >= PAIRS) pairs[n].skip(0), pairs[n].skip(1);
    }
    ask();
  }
  DEVICE static int pair(int n) { return n * THREADS + thread(); }
  DEVICE static int row(int n) { return pair(n) / (WIDTH / 2); }
  DEVICE unsigned number(int n) const {
    return row(n) < GROUP ? a.q_number : row(n) == GROUP ? a.k_number : a.v_number;
  }
  DEVICE void ask() {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const auto* const of =
          row(n) < GROUP ? a.q + (head * GROUP + row(n)) * WIDTH : (row(n) == GROUP ? a.k : a.v) + head * WIDTH;
      pairs[n].ask_two([&](int) { return of + pair(n) % (WIDTH / 2) * 2; });
    }
  }
  DEVICE void load_given(int at) {
#pragma unroll
    for (int n = 0; n < EACH_GIVEN; ++n) {
      const int word = n * THREADS + thread(), of_norm = word - D;
      const void* from = a.rope + (long long)at * D + word;
      if (NORMED && of_norm >= 0) from = of_norm < WIDTH ? a.q_norm + of_norm * 2 : a.k_norm + (of_norm - WIDTH) * 2;
      given[n] = word < GIVEN ? load_32_now(from) : 0;
    }
  }
  DEVICE unsigned* rows() const { return reinterpret_cast<unsigned*>(scratch<float>() + PARTIAL_FLOATS); }
  DEVICE const void* angles() const { return rows() + (GROUP + 2) * WIDTH; }
  DEVICE const void* norms() const { return rows() + (GROUP + 2) * WIDTH + D; }
  DEVICE void poll(int set, RowPairs& query, RowPairs& key, RowPairs& value) {
    unsigned* const rows = this->rows();
    Patience patience;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
#pragma unroll 1
      for (; !pairs[n].came(); ask())
        if (patience.over(tile, pairs[n].wanted, number(n))) break;
      if (pair(n) < PAIRS) rows[pair(n) * 2] = pairs[n].data(0), rows[pair(n) * 2 + 1] = pairs[n].data(1);
    }
#pragma unroll
    for (int n = 0; n < EACH_GIVEN; ++n)
      if (const int word = n * THREADS + thread(); word < GIVEN) rows[(GROUP + 2) * WIDTH + word] = given[n];
    synchronise_block();
    query.load(rows + min(set * 8 + lane_of() / 4, GROUP - 1) * WIDTH, lane_of() % 4);
    key.load(rows + GROUP * WIDTH, lane_of() % 4), value.load(rows + (GROUP + 1) * WIDTH, lane_of() / 8);
  }
};
// Sum and maximum over the four lanes that have a head.
DEVICE float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
DEVICE float max_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// A lane's cosines and sines of the rotary embedding: in registers, if it has time to load them before its rows come
// and is not WIDE, or where they are.
struct Angles {
  static constexpr bool HELD = !WIDE && !q_words;
  const float2* row;
  float2 held[HELD ? PIECES : 1];
  DEVICE void load(const void* from) {
    row = static_cast<const float2*>(from) + lane_of() % 4;
    if constexpr (HELD) {
#pragma unroll
      for (int p = 0; p < PIECES; ++p) held[p] = row[p * 4];
    }
  }
  DEVICE float2 at(int p) const { return HELD ? held[HELD ? p : 0] : row[p * 4]; }
  DEVICE void rotate(float2& low, float2& high, int p) const {
    const float2 x = low, y = high, c = at(p), s = at(p + PIECES / 2);
    low = make_float2(rotate_part(x.x, c.x, -y.x, s.x), rotate_part(x.y, c.y, -y.y, s.y));
    high = make_float2(rotate_part(y.x, c.x, x.x, s.x), rotate_part(y.y, c.y, x.y, s.y));
  }
};
// RMS norm of a head, if the model has one, with a weight in shared memory.
struct Norm {
  const unsigned* weight;
  DEVICE explicit Norm(const void* from) : weight(static_cast<const unsigned*>(from) + lane_of() % 4) {}
  // The factor of all elements of a head.
  template <class X> DEVICE float factor(const RowPairs& head, const X* of) const {
    if (!NORMED) return 1.0f;
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      const float2 x = widened_pair(head[p], of);
      squares += x.x * x.x + x.y * x.y;
    }
    return rsqrtf(sum_of_four(squares) / D + EPS);
  }
  DEVICE float2 apply(float2 x, int p, float factor) const {
    if (!NORMED) return make_float2(x.x * factor, x.y * factor);
    const float2 w = widened_pair(weight[p * 4], STORED);
    return make_float2(x.x * factor * w.x, x.y * factor * w.y);
  }
};
// Normalises and rotates a lane's elements of a head, times a factor, and calls f with piece p and with the piece that
// is rotated together with it. The result has no array: there are no registers for it.
template <class T, class F>
DEVICE void transform(const RowPairs& head, const T* of, const Norm& norm, const Angles& angles, float by, F f) {
  const float factor = norm.factor(head, of) * by;
#pragma unroll
  for (int p = 0; p < PIECES / 2; ++p) {
    float2 low = norm.apply(widened_pair(head[p], of), p, factor);
    float2 high = norm.apply(widened_pair(head[p + PIECES / 2], of), p + PIECES / 2, factor);
    angles.rotate(low, high, p);
    f(p, low), f(p + PIECES / 2, high);
  }
}
