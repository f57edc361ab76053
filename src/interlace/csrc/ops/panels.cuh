// Bulk loads of rows of a matrix with D elements of 16 bits each, by a tensor map of ``encode_row_boxes``
// (kernels/cuda/launcher.py): panels of 64 elements, one after the other, in rows of 128 bytes with the 128-byte
// swizzle. Where a row is several whole panels, one load brings all: loads of 8 KiB are faster than of 4. Otherwise the
// last panel ends with zeros.
#pragma once
#include "../ptx.cuh"

template <int D>
DEVICE void load_panels(unsigned target, unsigned panel_bytes, const TensorMap& map, int row, int matrix,
                        unsigned barrier, unsigned long long policy) {
  if constexpr (D > 64 && D % 64 == 0) {
    tma_load_4d(target, map, 0, row, 0, matrix, barrier, policy);
  } else {
#pragma unroll
    for (int d = 0; d < D; d += 64, target += panel_bytes) tma_load_3d(target, map, d, row, matrix, barrier, policy);
  }
}
