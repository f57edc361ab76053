// Row groups whose rows come through the ring: their loads, and the loop over the stages of a tile.
#pragma once
#include "of_row.cuh"
#include "row_groups.cuh"
#include "../../ring/fetched.cuh"

// Loads of a tile's rows from OPERANDS matrices (ring/fetched.cuh): `columns` elements of each row, rows `step`
// elements apart. A stage has as many rows as its slot holds, each of all operands in turn. Only the pieces between a
// row's ends are loaded, each row to a multiple of 16 bytes.
template <int OPERANDS> struct RowLoads {
  typedef Element T;
  static constexpr int PITCH = (WIDE * (int)sizeof(T) < 16 ? 1 : WIDE * (int)sizeof(T) / 16) * 16;
  static constexpr int FIT = LOAD_BYTES / (PITCH * OPERANDS), STAGE_ROWS = FIT < BM ? FIT : BM;
  static constexpr int STAGES_OF_TILE = (BM + STAGE_ROWS - 1) / STAGE_ROWS;
  const T* from[OPERANDS];
  int rows, columns;
  long long step;

  DEVICE int count(int n) const { return max(min(rows - n * STAGE_ROWS, STAGE_ROWS), 0); }
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
      for (int o = 0; o < OPERANDS; ++o) sum += between(at(o, n * STAGE_ROWS + row));
    return unlike < here ? sum * here : sum;
  }
  DEVICE void load(int n, unsigned target, unsigned barrier) const {
#pragma unroll 1
    for (int part = lane_of(); part < count(n) * OPERANDS; part += 32) {
      const T* const row = at(part % OPERANDS, n * STAGE_ROWS + part / OPERANDS);
      const unsigned bytes = between(row);
      if (bytes) bulk_load(target + part * PITCH, row + before_pieces(row), bytes, barrier);
    }
  }
  // A row of the tile from an operand; `stage`: the slot of its stage.
  DEVICE Row<T> row(int operand, int row, const unsigned char* stage) const {
    const T* const all = at(operand, row);
    const int part = row % STAGE_ROWS * OPERANDS + operand;
    return {all, reinterpret_cast<const T*>(stage + part * PITCH) - before_pieces(all)};
  }
};
// Calls compute(row, stage) for each row of the tile, by one of the row groups.
template <class L, class F> DEVICE void for_each_row(const L& loads, Fetch& fetch, F compute) {
#pragma unroll 1
  for (int n = 0; n < L::STAGES_OF_TILE; ++n) {
    fetch.next();
    const int first = n * L::STAGE_ROWS, end = first + loads.count(n);
#pragma unroll 1
    for (int row = first + (row_group() + ROW_GROUPS - first % ROW_GROUPS) % ROW_GROUPS; row < end; row += ROW_GROUPS)
      compute(row, fetch.bytes());
    fetch.done();
  }
}
