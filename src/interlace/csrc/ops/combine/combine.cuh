// Combine the splits of attention (split-KV reduction): out = sum_s w_s * parts[s] / sum_s w_s * total[s], where w_s is
// 2^(peak[s] - the largest peak). A tile is sequence i, KV head j; GROUP heads of D elements, SPLITS splits at most.
#pragma once
#include "splits_equal.cuh"
#include "../../ll.cuh"
#include "generated/arguments.cuh"

constexpr int PIECE = 64, PIECES = (D + PIECE - 1) / PIECE;  // elements that a warp has of a head, pieces of a head
// Polls AT_ONCE splits that are LL words. A warp has elements of one head, so each lane polls peak and total of one
// split.
template <int AT_ONCE, class A, class W>
DEVICE void poll_splits(const Tile& tile, const A& a, int first, const W* parts, const W* peaks, const W* totals,
                        float2 (&pairs)[AT_ONCE], float (&peak)[AT_ONCE], float (&total)[AT_ONCE]) {
  const unsigned wanted = publication(tile, a.parts_number, a.publications);
  const int own_split = min(first + lane_of() % AT_ONCE, SPLITS - 1) * GROUP;
  Words<2 * AT_ONCE> sums(wanted);
  Words<1> own_peak(wanted), own_total(wanted);
  Patience patience;
#pragma unroll 1
  for (;;) {
    sums.ask_two([&](int n) { return parts + min(first + n / 2, SPLITS - 1) * (GROUP * D); });
    own_peak.ask([&](int) { return peaks + own_split; }), own_total.ask([&](int) { return totals + own_split; });
    if (sums.came() && own_peak.came() && own_total.came()) break;
    if (patience.over(tile, wanted, a.parts_number)) break;
  }
#pragma unroll
  for (int e = 0; e < AT_ONCE; ++e) {
    pairs[e] = make_float2(sums.number(2 * e), sums.number(2 * e + 1));
    peak[e] = __shfl_sync(0xffffffff, own_peak.number(0), e);
    total[e] = __shfl_sync(0xffffffff, own_total.number(0), e);
  }
}
// A thread has two neighbours of out; those beyond a head have its last two, and do not store them. It loads AT_ONCE
// splits at once, and rescales its sums to the largest peak so far.
template <class A> DEVICE void combine_with(const Tile& tile, const A& a) {
  // As few rounds as registers allow, all of one length.
  constexpr int STEP = GROUP * D, ROUNDS = (SPLITS + 23) / 24, AT_ONCE = (SPLITS + ROUNDS - 1) / ROUNDS;
  const long long head = (long long)tile.i * HEADS + tile.j;
  const Splits splits = splits_of(tile, a);
  for (int piece = warp_of(); piece < GROUP * PIECES; piece += WARPS) {
    const int g = piece / PIECES, d = piece % PIECES * PIECE + lane_of() * 2, n = g * D + min(d, D - 2);
    const auto* const parts = a.parts + splits.first(tile, head) * STEP + n;
    const auto *const peaks = a.peak + splits.first(tile, head) * GROUP + g, *const totals = a.total + (peaks - a.peak);
    float peak_so_far = __int_as_float(0xff800000), sum_of_totals = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int s = 0; s < splits.count(); s += AT_ONCE) {
      float2 pairs[AT_ONCE];
      float peak[AT_ONCE], total[AT_ONCE], higher = peak_so_far;
      if constexpr (parts_words) {
        poll_splits(tile, a, s, parts, peaks, totals, pairs, peak, total);
      } else {
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
          // After the last split it is loaded again, with weight 0.
          const int split = splits.place(min(s + e, splits.count() - 1));
          pairs[e] = __ldcg(reinterpret_cast<const float2*>(parts + split * STEP));
          peak[e] = __ldcg(peaks + split * GROUP), total[e] = __ldcg(totals + split * GROUP);
        }
      }
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) higher = fmaxf(higher, peak[e]);
      const float fade = peak_so_far < higher ? exp2f(peak_so_far - higher) : 1.0f;
      sum_of_totals *= fade, sum.x *= fade, sum.y *= fade;
      peak_so_far = higher;
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) {
        const float share =
            s + e < splits.count() ? (peak[e] < peak_so_far ? exp2f(peak[e] - peak_so_far) : 1.0f) : 0.0f;
        sum_of_totals += share * total[e], sum.x += share * pairs[e].x, sum.y += share * pairs[e].y;
      }
    }
    if (D % PIECE && d >= D) continue;
    if constexpr (out_words) {
      const unsigned low = rounded<out_element>(sum.x / sum_of_totals).bits,
                     high = rounded<out_element>(sum.y / sum_of_totals).bits;
      store_word(a.out + (head * STEP + n) / 2, high << 16 | low, publication(tile, a.out_number, a.publications));
    } else {
      put(a.out + head * STEP + n, sum.x / sum_of_totals), put(a.out + head * STEP + n + 1, sum.y / sum_of_totals);
    }
  }
  if constexpr (out_words) note_words(tile, a);
}
DEVICE void combine_tile(const Tile& tile, const Arguments& a) { combine_with(tile, a); }
