// Combine the splits of attention (split-KV reduction).
#pragma once

// Of words, from split `first` on: those of a warp are of one head, so a lane has the peak and the total of a split.
template <int AT_ONCE, class A, class W>
DEVICE void poll_splits(const Tile& tile, const A& a, int first, const W* parts, const W* peaks, const W* totals,
                        float2 (&pairs)[AT_ONCE], float (&peak)[AT_ONCE], float (&total)[AT_ONCE]) {
  const unsigned wanted = publication(tile, a.parts_number, a.publications);
  const int mine = min(first + lane_of() % AT_ONCE, SPLITS - 1) * GROUP;
  Words<2 * AT_ONCE> sums(wanted);
  Words<1> own_peak(wanted), own_total(wanted);
  Patience patience;
#pragma unroll 1
  for (;;) {
    sums.ask_two([&](int n) { return parts + min(first + n / 2, SPLITS - 1) * (GROUP * D); });
    own_peak.ask([&](int) { return peaks + mine; }), own_total.ask([&](int) { return totals + mine; });
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
// Two neighbours a thread; what it needs of some splits is under way at once, and all sums stay with their peak.
template <class A> DEVICE void combine_with(const Tile& tile, const A& a) {
  // As few rounds as registers allow, and all alike.
  constexpr int STEP = GROUP * D, ROUNDS = (SPLITS + 23) / 24, AT_ONCE = (SPLITS + ROUNDS - 1) / ROUNDS;
  const long long head = (long long)tile.i * HEADS + tile.j;
  const Splits own = splits_of(tile, a);
  for (int n = thread() * 2; n < STEP; n += THREADS * 2) {
    const auto* const parts = a.parts + own.first(tile, head) * STEP + n;
    const auto *const peaks = a.peak + own.first(tile, head) * GROUP + n / D, *const totals =
                                                                                  a.total + (peaks - a.peak);
    float most = __int_as_float(0xff800000), whole = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int s = 0; s < own.count(); s += AT_ONCE) {
      float2 pairs[AT_ONCE];
      float peak[AT_ONCE], total[AT_ONCE], higher = most;
      if constexpr (parts_words) {
        poll_splits(tile, a, s, parts, peaks, totals, pairs, peak, total);
      } else {
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
          // After the last split it is loaded again, with weight 0.
          const int split = own.place(min(s + e, own.count() - 1));
          pairs[e] = __ldcg(reinterpret_cast<const float2*>(parts + split * STEP));
          peak[e] = __ldcg(peaks + split * GROUP), total[e] = __ldcg(totals + split * GROUP);
        }
      }
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) higher = fmaxf(higher, peak[e]);
      const float fade = most < higher ? exp2f(most - higher) : 1.0f;
      whole *= fade, sum.x *= fade, sum.y *= fade;
      most = higher;
#pragma unroll
      for (int e = 0; e < AT_ONCE; ++e) {
        const float share = s + e < own.count() ? (peak[e] < most ? exp2f(peak[e] - most) : 1.0f) : 0.0f;
        whole += share * total[e], sum.x += share * pairs[e].x, sum.y += share * pairs[e].y;
      }
    }
    if constexpr (out_words) {
      const unsigned low = rounded<out_element>(sum.x / whole).bits, high = rounded<out_element>(sum.y / whole).bits;
      store_word(a.out + (head * STEP + n) / 2, high << 16 | low, publication(tile, a.out_number, a.publications));
    } else {
      put(a.out + head * STEP + n, sum.x / whole), put(a.out + head * STEP + n + 1, sum.y / whole);
    }
  }
  if constexpr (out_words) note_words(tile, a);
}
DEVICE void combine_tile(const Tile& tile, const Arguments& a) { combine_with(tile, a); }
