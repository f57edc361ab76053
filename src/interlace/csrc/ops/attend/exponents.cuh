// Attention over a KV cache: powers of two, and a tile's share of the cached positions.
//
// Softmax uses powers of two: queries are scaled by log2(e) / sqrt(D).
#pragma once
#include "generated/arguments.cuh"

constexpr float NOTHING = -1e30f;             // below every score: its weight is 0; a total counted from it is 0
constexpr float SCALE = 1.4426950408889634f;  // log2(e)
DEVICE float power_of_two(float x) {          // 0 below the least normal number
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A tile's share: positions `low` to `high` (exclusive) of a sequence whose next position is `at`, and whether this
// step's own key and value, which are not in the cache yet, are in it.
struct Share {
  int sequence, at, low, high;
  bool own;
};
// The position of a sequence, clamped to the cache. Loaded past the L1, which may hold that of the previous launch.
template <class A> DEVICE int position_in(int sequence, const A& a) {
  return min(max(__ldcg(a.position + sequence), 0), a.CAPACITY - 1);
}
