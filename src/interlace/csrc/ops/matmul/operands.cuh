// Operands of wgmma: matrix descriptors, arithmetic on pairs of elements, and fragments in registers.
//
// Products read the wide operand from shared memory by its descriptor, and the 64-row operand from there or from
// registers. Product<WIDTH>, one struct for each width in use, is generated (kernels/matmul/megakernel_body.py): its `add` is
// accumulators (64 x WIDTH) += A (64 x 16) * B (16 x WIDTH), float32, both operands contiguous along k. Lane l of warp
// w of a warpgroup holds of rows 16 w to 16 w + 15 of A what mma.cuh says of a first operand.
#pragma once
#include "../mma.cuh"
#include "generated/arguments.cuh"

constexpr int HELD_REGISTERS = REGISTERS_TO_HOLD;  // of a thread: held weights and all else that lives with them
template <int N> struct Product;
// Low word of an operand's matrix descriptor (ptx.cuh, matrix_descriptor); 16 bytes further on it is 1 more.
DEVICE unsigned operand(unsigned address) { return uniform((address & 0x3ffff) >> 4 | 1u << 16); }
DEVICE unsigned long long descriptor(unsigned low) { return (unsigned long long)(64u | 1u << 30) << 32 | low; }
DEVICE float as_float(unsigned short bits) {
  float value;
  asm("cvt.f32." ELEMENT_PTX " %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
DEVICE unsigned times(unsigned pair, unsigned other) {
  unsigned result;
  asm("mul.rn." ELEMENT_PTX "x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(other));
  return result;
}
DEVICE unsigned plus(unsigned pair, unsigned other) {
  unsigned result;
  asm("add.rn." ELEMENT_PTX "x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(other));
  return result;
}
// The sums of a pair and of the squares of another one.
DEVICE unsigned plus_squares(unsigned sums, unsigned pair) {
  unsigned result;
  asm("fma.rn." ELEMENT_PTX "x2 %0, %1, %1, %2;" : "=r"(result) : "r"(pair), "r"(sums));
  return result;
}
DEVICE float low_of(unsigned pair) { return as_float(pair & 0xffff); }
DEVICE float high_of(unsigned pair) { return as_float(pair >> 16); }
// The 64-row operand of a stage in registers: PANELS panels of 64 elements of k, BLOCKS blocks of 64 rows for each
// warpgroup, 16 of them for each warp. PITCH: rows from one panel to the next in the slot.
template <int PANELS, int GATES, int BLOCKS, int PITCH> struct Tall {
  unsigned pieces[PANELS][GATES][BLOCKS][4][4];
  // Offset in the slot of the lane's first row of a block. Of `rows` rows in all; a lane beyond them reads the last
  // one.
  DEVICE static unsigned offset_of(int block, int rows) {
    const int lane = threadIdx.x % 32, first = WARPGROUPS > 1 ? threadIdx.x / 128 * BLOCKS * 64 : 0;
    const int own_row = first + threadIdx.x / 32 % 4 * 16 + lane % 16, row = min(block * 64 + own_row, rows - 1);
    return row * 128 + ((lane / 16 ^ row & 7) << 4);
  }
  DEVICE void load(unsigned slot, int rows) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) load_block(b, slot + offset_of(b, rows));
  }
  // `first`: the lane's first 16 bytes of the block; the slot begins at a multiple of 128 bytes.
  DEVICE void load_block(int block, unsigned first) {
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
#pragma unroll
      for (int g = 0; g < GATES; ++g)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          load_matrices(pieces[p][g][block][i], (first ^ i << 5) + (g * PANELS + p) * PITCH * 128);
  }
};
// Called by a warp before the tokens of an item arrive: loads its weights of the next COUNT stages, `rows` rows of
// them, into registers, and releases their slots for later loads.
template <class Weights, int COUNT> DEVICE void hold_weights(Stage& stage, Weights (&weights)[COUNT], int rows) {
  Stage ahead = {stage.slot, stage.phase};
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    await(prefetch_full(ahead.slot), ahead.phase);
    weights[s].load(prefetch_slot(ahead.slot), rows);
    __syncwarp();
    release_prefetch(stage, ahead.slot);
    ahead.advance();
  }
}
