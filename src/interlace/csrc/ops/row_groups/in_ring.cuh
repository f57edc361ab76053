// Rows that row groups take from the ring.
#pragma once

// From the first row of the tile, some columns of OPERANDS matrices, each row `step` elements behind another. A stage
// has as many rows as its slot holds, each of all operands in turn; of a row what lies between its ends comes, at a
// multiple of 16 bytes.
template <int OPERANDS> struct RowLoads {
  typedef Element T;
  static constexpr int PITCH = (WIDE * (int)sizeof(T) < 16 ? 1 : WIDE * (int)sizeof(T) / 16) * 16;
  static constexpr int FIT = LOAD_BYTES / (PITCH * OPERANDS), IN_STAGE = FIT < BM ? FIT : BM;
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
