// Append this step's keys and values to KV caches: k is normalised and rotated, v copied.
//
// A tile is one sequence's heads, or with paged caches or rows that name their sequences one head of all rows; COUNT
// heads in all. Their few elements are all latency: a warp loads positions and pages of up to 32 of its heads at once,
// one in each lane, then keys, values and angles of AT_ONCE heads before it uses the first.
#pragma once
#include "rows_own.cuh"
#include "../heads.cuh"
#include "../pages.cuh"
#include "../../ll.cuh"
#include "generated/arguments.cuh"

constexpr bool BY_HEAD = PAGE || HAS_SEQUENCES;
constexpr int WARP_HEADS = (COUNT + WARPS - 1) / WARPS;
constexpr int FIT = 8 / Halves<D, float>::EACH;  // heads in registers
constexpr int WANTED = WARP_HEADS < FIT ? WARP_HEADS : FIT;
constexpr int AT_ONCE = HAS_SEQUENCES && WANTED > 4 ? 8 : WANTED > 2 ? 4 : WANTED > 1 ? 2 : 1;

// Polls keys and values of AT_ONCE heads that are LL words of two elements.
template <class A, class T>
DEVICE void poll_heads(const Tile& tile, const A& a, const long long (&head)[AT_ONCE], Halves<D, T> (&key)[AT_ONCE],
                       Halves<D, T> (&value)[AT_ONCE]) {
  typedef Halves<D, T> Head;
  constexpr int EACH = 2 * Head::EACH;
  Words<AT_ONCE * EACH> k(publication(tile, a.k_number, a.publications));
  Words<AT_ONCE * EACH> v(publication(tile, a.v_number, a.publications));
  const auto element = [&](int n) { return head[n / EACH] * D + Head::at(n % EACH / 2) + n % 2 * Head::HALF; };
  Patience patience;
#pragma unroll 1
  for (;;) {
    k.ask([&](int n) { return a.k + element(n) / 2; }), v.ask([&](int n) { return a.v + element(n) / 2; });
    if (k.came() && v.came()) break;
    const unsigned late = k.came() ? a.v_number : a.k_number;
    if (patience.over(tile, publication(tile, late, a.publications), late)) break;
  }
#pragma unroll
  for (int n = 0; n < AT_ONCE * EACH; ++n) {
    const int shift = element(n) % 2 * 16;
    const T own_key = {(unsigned short)(k.data(n) >> shift)}, own_value = {(unsigned short)(v.data(n) >> shift)};
    Head &keys = key[n / EACH], &values = value[n / EACH];
    (n % 2 ? keys.high : keys.low)[n % EACH / 2] = own_key;
    (n % 2 ? values.high : values.low)[n % EACH / 2] = own_value;
  }
}
template <class A, class T> DEVICE void append_with(const Tile& tile, const A& a, T* k_cache, T* v_cache) {
  const auto gains = gains_at<D>(a.k_norm);
#pragma unroll 1
  for (int first = warp_of(); first < COUNT; first += 32 * WARPS) {
    const int own_head = min(first + lane_of() * WARPS, COUNT - 1), own_row = BY_HEAD ? own_head : tile.i;
    const int at = position_of(a.position, own_row, a.CAPACITY), sequence = sequence_of(a, own_row);
    long long row = row_of(a, max(sequence, 0), BY_HEAD ? tile.i : own_head, at);  // negative without a page
    if (HAS_SEQUENCES && sequence < 0) row = -1;
#pragma unroll 1
    for (int n = 0; n < 32 && first + n * WARPS < COUNT; n += AT_ONCE) {
      Halves<D, T> key[AT_ONCE], value[AT_ONCE];
      Halves<D, float> angles[AT_ONCE];
      long long to[AT_ONCE], head[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
        const int which = first + (n + r) * WARPS, last = min(which, COUNT - 1);
        head[r] = BY_HEAD ? (long long)last * HEADS + tile.i : (long long)tile.i * HEADS + last;
        to[r] = __shfl_sync(0xffffffff, row, n + r);
        if (which >= COUNT) to[r] = -1;
        angles[r].load(a.rope + (long long)__shfl_sync(0xffffffff, at, n + r) * D);
        if constexpr (!k_words) key[r].load(a.k + head[r] * D), value[r].load(a.v + head[r] * D);
      }
      if constexpr (k_words) poll_heads(tile, a, head, key, value);
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
        if (to[r] < 0) continue;
        put(k_cache + to[r] * D, transform(key[r], gains, angles[r], EPS));
        value[r].store(v_cache + to[r] * D);
      }
    }
  }
}
DEVICE void append_tile(const Tile& tile, const Arguments& a) { append_with(tile, a, a.k_cache, a.v_cache); }
