// Reduce to the largest value, and of equal ones to the first.
#pragma once

struct Found {
  float value;
  int at;
};
// The larger, of equal ones the first. Rows of NaN give a place too, so that what reads it stays inside its table.
DEVICE Found first_of(Found a, Found b) { return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a; }
DEVICE Found first_of_block(Found found) {
  for (int distance = 16; distance; distance /= 2) {
    const float value = __shfl_xor_sync(0xffffffff, found.value, distance);
    found = first_of(found, Found{value, __shfl_xor_sync(0xffffffff, found.at, distance)});
  }
  Found* const each = scratch<Found>();
  if (lane_of() == 0) each[warp_of()] = found;
  synchronise_block();
  for (int warp = 0; warp < WARPS; ++warp) found = first_of(found, each[warp]);
  return found;
}
// What a tile of columns leaves, given what each of its threads has.
template <class A> DEVICE void leave_first(const Tile& tile, const A& a, Found mine) {
  const Found found = first_of_block(mine);
  if (thread() == 0) {
    a.best[tile.i * a.TILES + tile.j] = found.value;
    a.at[tile.i * a.TILES + tile.j] = found.at;
  }
}
constexpr unsigned LOWEST = 0xff800000;  // minus infinity
