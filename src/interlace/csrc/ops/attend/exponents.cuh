// Exponents of attention, and the share of cached positions that a tile has.
#pragma once

constexpr float NOTHING = -1e30f;  // below every score; an exponent of it is 0, and of itself 1, times a total of 0
constexpr float SCALE = 1.4426950408889634f;
DEVICE float power_of_two(float x) {  // 0 where it is below the least normal number
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a tile has: positions of a sequence that is at one, from the first to one after the last; and whether this
// step's own key and value are among them.
struct Share {
  int sequence, at, low, high;
  bool own;
};
// Past the nearest cache, which may have what was there a launch ago.
template <class A> DEVICE int position_in(int sequence, const A& a) {
  return min(max(__ldcg(a.position + sequence), 0), a.CAPACITY - 1);
}
