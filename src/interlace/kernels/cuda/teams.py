"""What texts that go through rows have in common, behind ``ROWS``; see ``kernels/teams``. BM is the rows of a tile.

    BM    of 4 warps                     of 8 warps         of 12 warps
    1     a row by all                   a row by all       a row by all
    4     a row by each                  a row by two       a row by three
    8     two rows by each, in turn      a row by each      two rows by three, in turn

From 8 rows on they come through the ring, unless they are longer than a stage should be; then each is for as few warps
as hold it in a few registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS, WORDS
from interlace.kernels.text import TextBody

_MOST_WARPS = 12  # of a block
_LEAST_ROWS = 8  # of a tile whose rows come through the ring
_PIECE_BYTES = 16
_STAGE_BYTES, _MOST_STAGE_BYTES = 16 << 10, 32 << 10  # of short rows; of a row, as of what products have there

#: Bytes of shared memory for two reductions over a block of the most warps.
TEAM_SCRATCH_BYTES = 2 * 4 * _MOST_WARPS

_OF_TILE = r"""
// As many teams as share warps and rows evenly, at most so many.
DEVICE constexpr int even_teams(int most) { return WARPS % most || BM % most ? even_teams(most - 1) : most; }
constexpr int TEAMS = BM < WARPS ? even_teams(BM) : WARPS, TEAM = THREADS / TEAMS;
// All teams reduce at once.
DEVICE float* shared_by_team(int place) { return scratch<float>() + place * WARPS + thread() / TEAM * (TEAM / 32); }
DEVICE void synchronise_team() { synchronise_block(); }
"""

_ROWS_OF_TEAMS = r"""
DEVICE int team() { return thread() / TEAM; }
DEVICE int member() { return thread() % TEAM; }
// Of what all members have. Reductions that follow each other have unlike places, 0 and 1.
template <class F> DEVICE float of_team(float mine, int place, F join) {
  for (int distance = 16; distance; distance /= 2) mine = join(mine, __shfl_xor_sync(0xffffffff, mine, distance));
  if (TEAM == 32) return mine;
  float* const each = shared_by_team(place);
  if (lane_of() == 0) each[member() / 32] = mine;
  synchronise_team();
  float found = each[0];
  for (int warp = 1; warp < TEAM / 32; ++warp) found = join(found, each[warp]);
  return found;
}
// Of what members have in several places each.
constexpr int PLACES = 8;
template <class F> DEVICE float of_places(const float (&values)[PLACES], int place, F join) {
  float found = values[0];
#pragma unroll
  for (int n = 1; n < PLACES; ++n) found = join(found, values[n]);
  return of_team(found, place, join);
}
DEVICE float team_sum(const float (&values)[PLACES], int place) {
  return of_places(values, place, [](float a, float b) { return a + b; });
}
DEVICE float team_most(const float (&values)[PLACES], int place) {
  return of_places(values, place, [](float a, float b) { return fmaxf(a, b); });
}

// Whether rows lie alike, so that where one has a piece all have.
template <class T, class... S> DEVICE bool alike(const T* row, const S*... others) {
  return (... && (((unsigned long long)row ^ (unsigned long long)others) % 16 == 0));
}
// A row: its elements, and where those between its ends are to be taken from, which may be shared memory.
template <class T> struct Row {
  const T *all, *between;
};
template <class T> DEVICE Row<T> row_at(const T* all) { return {all, all}; }
// Each element of a row, by 16 bytes but for its ends, in the same order every time: `look(place, value)`, where
// those of unlike places do not wait for each other.
template <class T, class F> DEVICE void visit(int n, const Row<T>& row, F look) {
  constexpr int EACH = Piece<T>::ELEMENTS;
  const int head = min(n, before_pieces(row.all)), tail = head + (n - head) / EACH * EACH;
#pragma unroll 8
  for (int at = head + member() * EACH; at < tail; at += TEAM * EACH) {
    float values[EACH];
    widen<T>(words_at(row.between + at), values);
#pragma unroll
    for (int e = 0; e < EACH; ++e) look(e, values[e]);
  }
  if (member() < head) look(0, widened(row.all[member()]));
  if (tail + member() < n) look(0, widened(row.all[tail + member()]));
}
template <class T> struct Widened {
  float of[Piece<T>::ELEMENTS];
  DEVICE explicit Widened(const int4& piece) { widen<T>(piece, of); }
};
template <class T, class F, class... W> DEVICE int4 map_values(F made, const W&... values) {
  float result[Piece<T>::ELEMENTS];
#pragma unroll
  for (int e = 0; e < Piece<T>::ELEMENTS; ++e) result[e] = made(values.of[e]...);
  return narrowed<T>(result);
}
template <class T, class F, class... P> DEVICE int4 map_piece(F made, const P&... pieces) {
  return map_values<T>(made, Widened<T>(pieces)...);
}
// Pieces of a row that a thread loads before it stores the first of what it makes of them.
constexpr int AHEAD = 4;
template <class T> struct Ahead {
  int4 pieces[AHEAD];
  DEVICE explicit Ahead(const T* at) {
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) pieces[n] = words_at(at + n * TEAM * Piece<T>::ELEMENTS);
  }
};
template <class T, class F, class... S> DEVICE void map_pieces(T* out, F made, const Ahead<S>&... rows) {
#pragma unroll
  for (int n = 0; n < AHEAD; ++n)
    store_words(out + n * TEAM * Piece<T>::ELEMENTS, map_piece<T>(made, rows.pieces[n]...));
}
// ``out[n] = made(rows[n]...)``, likewise, or one by one if the rows do not lie alike. Loads stand before stores, which
// they do not pass: for all that the compiler knows, those change what is loaded.
template <class T, class F, class... S> DEVICE void map_rows(int n, T* out, F made, const Row<S>&... rows) {
  constexpr int EACH = Piece<T>::ELEMENTS, STEP = TEAM * EACH;
  const int head = alike(out, rows.all...) ? min(n, before_pieces(out)) : n, tail = head + (n - head) / EACH * EACH;
  int at = head + member() * EACH;
#pragma unroll 1
  for (; at + (AHEAD - 1) * STEP < tail; at += AHEAD * STEP) {
    map_pieces(out + at, made, Ahead<S>(rows.between + at)...);
  }
#pragma unroll 1
  for (; at < tail; at += STEP) {
    store_words(out + at, map_piece<T>(made, words_at(rows.between + at)...));
  }
#pragma unroll 1
  for (int at = member(); at < head; at += TEAM) put(out + at, made(widened(rows.all[at])...));
  if (tail + member() < n) put(out + tail + member(), made(widened(rows.all[tail + member()])...));
}

// A row of which each thread has its pieces in registers, or, longer ones, none.
template <class T, int COUNT> struct Held {
  const T* all;
  int n, head, tail, left;  // elements from the first piece of the thread on
  int4 pieces[COUNT];
  DEVICE Held(int n, const Row<T>& row) : all(row.all), n(n), head(min(n, before_pieces(row.all))) {
    tail = head + (n - head) / Piece<T>::ELEMENTS * Piece<T>::ELEMENTS;
    left = tail - place(0);
#pragma unroll
    for (int p = 0; p < COUNT; ++p)
      if (has(p)) pieces[p] = words_at(row.between + place(p));
  }
  DEVICE int place(int p) const { return head + (p * TEAM + member()) * Piece<T>::ELEMENTS; }
  DEVICE bool has(int p) const { return p * TEAM * Piece<T>::ELEMENTS < left; }
};
template <class T> struct Held<T, 0> {
  int n;
  Row<T> row;
  DEVICE Held(int n, const Row<T>& row) : n(n), row(row) {}
};
constexpr int MOST_HELD = 16;
template <int N, class T> DEVICE auto held(const Row<T>& row) {
  constexpr int COUNT = (N + TEAM * Piece<T>::ELEMENTS - 1) / (TEAM * Piece<T>::ELEMENTS);
  return Held<T, COUNT <= MOST_HELD ? COUNT : 0>(N, row);
}
// What all rows have in common, of which some pieces are loaded at once: the first ahead of a row's reductions.
constexpr int AT_ONCE = 8;
template <class T> struct Vector {
  const T* all;
  int4 pieces[AT_ONCE];
  template <int COUNT> DEVICE void load(const Held<T, COUNT>& row, int from) {
    if (!alike(row.all, all)) return;
#pragma unroll
    for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
      if (row.has(from + p)) pieces[p] = words_at(all + row.place(from + p));
  }
  DEVICE void load(const Held<T, 0>& row, int from) {}
};
template <class T, int COUNT, class F> DEVICE void visit(const Held<T, COUNT>& row, F look) {
  if constexpr (COUNT == 0) {
    visit(row.n, row.row, look);
  } else {
#pragma unroll
    for (int p = 0; p < COUNT; ++p) {
      if (!row.has(p)) continue;
      float values[Piece<T>::ELEMENTS];
      widen<T>(row.pieces[p], values);
#pragma unroll
      for (int e = 0; e < Piece<T>::ELEMENTS; ++e) look(e, values[e]);
    }
    if (member() < row.head) look(0, widened(row.all[member()]));
    if (row.tail + member() < row.n) look(0, widened(row.all[row.tail + member()]));
  }
}
template <class T, int COUNT, class F, class... V>
DEVICE void map_rows(T* out, F made, const Held<T, COUNT>& row, Vector<V>&... vectors) {
  if constexpr (COUNT == 0) {
    map_rows(row.n, out, made, row.row, row_at(vectors.all)...);
  } else if (alike(out, row.all, vectors.all...)) {
#pragma unroll
    for (int from = 0; from < COUNT; from += AT_ONCE) {
      if (from) (vectors.load(row, from), ...);
#pragma unroll
      for (int p = 0; p < AT_ONCE && from + p < COUNT; ++p)
        if (row.has(from + p))
          store_words(out + row.place(from + p), map_piece<T>(made, row.pieces[from + p], vectors.pieces[p]...));
    }
    if (member() < row.head) put(out + member(), made(widened(row.all[member()]), widened(vectors.all[member()])...));
    const int last = row.tail + member();
    if (last < row.n) put(out + last, made(widened(row.all[last]), widened(vectors.all[last])...));
  } else {
#pragma unroll 1
    for (int at = member(); at < row.n; at += TEAM)
      put(out + at, made(widened(row.all[at]), widened(vectors.all[at])...));
  }
}
"""

TEAMS = ROWS + WORDS + _OF_TILE + _ROWS_OF_TEAMS

_FETCHED_ROWS = r"""
// From the first row of the tile, some columns of OPERANDS matrices, each row `step` elements behind another. A stage
// has as many rows as its slot holds, each of all operands in turn; of a row what lies between its ends comes, at a
// multiple of 16 bytes.
template <int OPERANDS> struct RowLoads {
  typedef Element T;
  static constexpr int PITCH = (WIDE * (int)sizeof(T) < 16 ? 1 : WIDE * (int)sizeof(T) / 16) * 16;
  static constexpr int FIT = DEPENDENT_BYTES / (PITCH * OPERANDS), IN_STAGE = FIT < BM ? FIT : BM;
  static constexpr int STAGES_OF_TILE = (BM + IN_STAGE - 1) / IN_STAGE;
  const T* from[OPERANDS];
  int rows, columns;
  long long step;

  DEVICE int count(int n) const { return max(min(rows - n * IN_STAGE, IN_STAGE), 0); }
  DEVICE const T* at(int operand, int row) const {
    const T* first = from[0];
#pragma unroll
    for (int o = 1; o < OPERANDS; ++o) first = o == operand ? from[o] : first;
    return first + row * step;
  }
  DEVICE unsigned between(const T* row) const {
    const int head = min(columns, before_pieces(row));
    return (columns - head) / Piece<T>::ELEMENTS * 16;
  }
  DEVICE unsigned bytes(int n) const {
    const int here = count(n), unlike = step % Piece<T>::ELEMENTS == 0 ? min(here, 1) : here;
    unsigned sum = 0;
#pragma unroll 1
    for (int row = 0; row < unlike; ++row)
#pragma unroll
      for (int o = 0; o < OPERANDS; ++o) sum += between(at(o, n * IN_STAGE + row));
    return unlike < here ? sum * here : sum;
  }
  DEVICE void load(int n, unsigned target, unsigned barrier) const {
#pragma unroll 1
    for (int part = lane_of(); part < count(n) * OPERANDS; part += 32) {
      const T* const row = at(part % OPERANDS, n * IN_STAGE + part / OPERANDS);
      const unsigned bytes = between(row);
      if (bytes) bulk_load(target + part * PITCH, row + before_pieces(row), bytes, barrier);
    }
  }
  // An operand's row of the tile, given where those of its stage lie.
  DEVICE Row<T> row(int operand, int row, const unsigned char* stage) const {
    const T* const all = at(operand, row);
    const int part = row % IN_STAGE * OPERANDS + operand;
    return {all, reinterpret_cast<const T*>(stage + part * PITCH) - before_pieces(all)};
  }
};
// `take(row, stage)` of each row of the tile, by one of the warps.
template <class L, class F> DEVICE void take_rows(const L& loads, Fetch& fetch, F take) {
#pragma unroll 1
  for (int n = 0; n < L::STAGES_OF_TILE; ++n) {
    fetch.next();
    const int first = n * L::IN_STAGE, end = first + loads.count(n);
#pragma unroll 1
    for (int row = first + (team() + TEAMS - first % TEAMS) % TEAMS; row < end; row += TEAMS) take(row, fetch.bytes());
    fetch.done();
  }
}
"""
_ELEMENT = r"""
template <class P> struct ElementOf;
template <class T> struct ElementOf<const T*> {
  typedef T Type;
};
typedef ElementOf<decltype(Arguments::x)>::Type Element;
"""
_TEAM_OF_ROW = r"""
// As many warps of a warpgroup as leave each thread of them a few pieces of a row. Teams go their own ways.
constexpr int ROW_PIECES = WIDE * (int)sizeof(Element) / 16;
constexpr int TEAM = ROW_PIECES <= 32 * 4 ? 32 : ROW_PIECES <= 64 * 4 ? 64 : 128, TEAMS = THREADS / TEAM;
DEVICE float* shared_by_team(int place) {
  const int warps = thread() % 128 / TEAM * (TEAM / 32) + place * 4;
  return scratch<float>() + warpgroup() * (SCRATCH_BYTES / 4) + warps;
}
// Barriers of a warpgroup's own, two of them: another one may be at an item whose teams are larger.
DEVICE void synchronise_team() { named_barrier(2 + WARPGROUPS + warpgroup() * 2 + thread() % 128 / TEAM, TEAM); }
"""


def fetched_rows(columns: str) -> str:
    """For tiles of many rows, which come through the ring (``launch/fetched``): in the place of ``TEAMS``.

    Args:
        columns: the constant that has those of a tile.
    """
    wide = f"constexpr int WIDE = {columns};\n"
    return ROWS + WORDS + _ELEMENT + wide + _TEAM_OF_ROW + _ROWS_OF_TEAMS + _FETCHED_ROWS


def in_ring(
    body: TextBody, columns: str, operands: Callable[[Op], int] = lambda op: 1
) -> Callable[[Op, Mapping[str, Tensor]], TextBody | None]:
    """``TextBody.other``: a body whose rows come through the ring, where a tile has eight at least.

    Args:
        body: without ``stage_bytes``.
        columns: the param that has those of a tile.
        operands: op -> matrices of which rows come.
    """

    def other(op: Op, tensors: Mapping[str, Tensor]) -> TextBody | None:
        rows, row = int(op.param("BM")), int(op.param(columns)) * tensors["x"].dtype.itemsize
        pitch = max(row // _PIECE_BYTES, 1) * _PIECE_BYTES * operands(op)
        if rows < _LEAST_ROWS or pitch > _MOST_STAGE_BYTES:
            return None
        return replace(body, stage_bytes=lambda op: pitch * min(rows, max(1, _STAGE_BYTES // pitch)))

    return other


_WHOLE_ROWS = r"""
DEVICE void rows_tile(const Tile& tile, const Arguments& a) {
  for (int own = team(); own < BM; own += TEAMS) {
    const int row = tile.i * BM + own;  // teams whose row is none reduce with the others
    make_row(0, row_at(a.x + (long long)min(row, a.M - 1) * N), a.out + (long long)row * N, row < a.M, a);
  }
}
"""
_WHOLE_ROWS_IN_RING = r"""
typedef RowLoads<1> Rows;
struct Loads : Rows {
  DEVICE Loads(const Tile& tile, const Arguments& a)
      : Rows{{a.x + (long long)tile.i * BM * N}, min(BM, a.M - tile.i * BM), N, N} {}
};
DEVICE void rows_tile(const Tile& tile, const Arguments& a, Fetch& fetch) {
  const Loads loads(tile, a);
  take_rows(loads, fetch, [&](int row, const unsigned char* stage) {
    make_row(row / TEAMS % 2, loads.row(0, row, stage), a.out + ((long long)tile.i * BM + row) * N, true, a);
  });
}
"""


def of_whole_rows(make_row: str) -> TextBody:
    """The body of an op that makes each row of out (M, N) of the one of x, in tiles of BM rows.

    Args:
        make_row: text of ``make_row(turn, row, out, some, a)``, which all of a team call together: ``turn`` is 0 or 1,
            unlike from one row of a team to its next where nothing else keeps their reductions apart, and there is a
            row to store where there is ``some``.
    """

    def body(text: str) -> TextBody:
        return TextBody(
            text,
            "rows_tile",
            constants=("BM", "N"),
            scratch_bytes=lambda op: TEAM_SCRATCH_BYTES,
            proved=True,
            wide=True,
            most_warpgroups=_MOST_WARPS // 4,
            filled=(("x", "M"),),
        )

    fetched = body(fetched_rows("N") + make_row + _WHOLE_ROWS_IN_RING)
    in_stages = in_ring(replace(fetched, late=("x",), loads="Loads"), "N")
    return replace(body(TEAMS + make_row + _WHOLE_ROWS), other=in_stages)
