"""What texts that go through rows have in common, behind ``ROWS``; see ``kernels/teams``. BM is the rows of a tile.

    BM    of 4 warps                     of 8 warps
    1     a row by all                   a row by all
    4     a row by each                  a row by two
    8     two rows by each, in turn      a row by each
"""

from __future__ import annotations

from interlace.kernels.cuda.rows import ROWS

#: Bytes of shared memory for two reductions over a block of the most warps.
TEAM_SCRATCH_BYTES = 2 * 4 * 8

TEAMS = (
    ROWS
    + r"""
constexpr int TEAMS = BM < WARPS ? BM : WARPS, TEAM = THREADS / TEAMS;
DEVICE int team() { return thread() / TEAM; }
DEVICE int member() { return thread() % TEAM; }
// Of what all members have; the two reductions of a row each have a place of their own. All teams reduce at once.
template <class F> DEVICE float of_team(float mine, int place, F join) {
  for (int distance = 16; distance; distance /= 2) mine = join(mine, __shfl_xor_sync(0xffffffff, mine, distance));
  if (TEAM == 32) return mine;
  float* const each = scratch<float>() + place * WARPS;
  if (lane_of() == 0) each[warp_of()] = mine;
  synchronise_block();
  const int first = team() * (TEAM / 32);
  float found = each[first];
  for (int warp = 1; warp < TEAM / 32; ++warp) found = join(found, each[first + warp]);
  return found;
}
DEVICE float team_sum(float mine, int place) {
  return of_team(mine, place, [](float a, float b) { return a + b; });
}
DEVICE float team_most(float mine, int place) {
  return of_team(mine, place, [](float a, float b) { return fmaxf(a, b); });
}

// Elements before the first that lies at a multiple of 16 bytes.
template <class T> DEVICE int before_pieces(const T* row) {
  return (int)((16 - (unsigned long long)row % 16) % 16 / sizeof(T));
}
// Whether rows lie alike, so that where one has a piece all have.
template <class T, class... S> DEVICE bool alike(const T* row, const S*... others) {
  return (... && (((unsigned long long)row ^ (unsigned long long)others) % 16 == 0));
}
// Each element of a row, by 16 bytes but for its ends, in the same order every time.
template <class T, class F> DEVICE void visit(int n, const T* row, F look) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const int head = min(n, before_pieces(row)), tail = head + (n - head) / EACH * EACH;
#pragma unroll 8
  for (int at = head + member() * EACH; at < tail; at += TEAM * EACH) {
    const Elements<T> piece = piece_at(row + at, true);
#pragma unroll
    for (int e = 0; e < EACH; ++e) look(widened(piece.items[e]));
  }
  if (member() < head) look(widened(row[member()]));
  if (tail + member() < n) look(widened(row[tail + member()]));
}
template <class T, class F, class... P> DEVICE void map_piece(T* out, F made, const P&... pieces) {
  Elements<T> result;
#pragma unroll
  for (int e = 0; e < Piece<T>::ELEMENTS; ++e) put(result.items + e, made(widened(pieces.items[e])...));
  *reinterpret_cast<Elements<T>*>(out) = result;
}
// ``out[n] = made(rows[n]...)``, likewise, or one by one if the rows do not lie alike.
template <class T, class F, class... S> DEVICE void map_rows(int n, T* out, F made, const S*... rows) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const int head = alike(out, rows...) ? min(n, before_pieces(out)) : n, tail = head + (n - head) / EACH * EACH;
#pragma unroll 4
  for (int at = head + member() * EACH; at < tail; at += TEAM * EACH) {
    map_piece(out + at, made, piece_at(rows + at, true)...);
  }
#pragma unroll 1
  for (int at = member(); at < head; at += TEAM) put(out + at, made(widened(rows[at])...));
  if (tail + member() < n) put(out + tail + member(), made(widened(rows[tail + member()])...));
}
"""
)
