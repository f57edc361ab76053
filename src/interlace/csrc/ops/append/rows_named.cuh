// Rows that name their sequences, of which one may have many; -1 for a row of none. Loaded past the L1, which may hold
// the rows of the previous launch.
#pragma once
#include "../../ptx.cuh"

constexpr bool HAS_SEQUENCES = true;
template <class A> DEVICE int sequence_of(const A& a, int row) {
  const int sequence = __ldcg(a.sequence + row);
  return sequence < a.BATCH ? sequence : -1;
}
