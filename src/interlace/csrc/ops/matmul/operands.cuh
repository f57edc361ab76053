// Operands of wgmma: elements, descriptors, fragments in registers (kernels/matmul/operands_cuda.py).
#pragma once

constexpr int HELD_REGISTERS = REGISTERS_TO_HOLD;  // of a thread, for weights and what else an item has
template <int N> struct Product;
// The low word of the descriptor of an operand (``matrix_descriptor``); an address of 16 bytes more is 1 more.
DEVICE unsigned operand(unsigned address) { return uniform((address & 0x3ffff) >> 4 | 1u << 16); }
DEVICE unsigned long long descriptor(unsigned low) { return (unsigned long long)(64u | 1u << 30) << 32 | low; }
DEVICE float as_float(unsigned short bits) {
  float value;
  asm("cvt.f32." ELEMENT_PTX " %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
DEVICE unsigned times(unsigned pair, unsigned other) {
  unsigned both;
  asm("mul.rn." ELEMENT_PTX "x2 %0, %1, %2;" : "=r"(both) : "r"(pair), "r"(other));
  return both;
}
DEVICE unsigned plus(unsigned pair, unsigned other) {
  unsigned both;
  asm("add.rn." ELEMENT_PTX "x2 %0, %1, %2;" : "=r"(both) : "r"(pair), "r"(other));
  return both;
}
// Sums, and to each half the square of a pair's half.
DEVICE unsigned plus_squares(unsigned sums, unsigned pair) {
  unsigned both;
  asm("fma.rn." ELEMENT_PTX "x2 %0, %1, %1, %2;" : "=r"(both) : "r"(pair), "r"(sums));
  return both;
}
DEVICE float low_of(unsigned pair) { return as_float(pair & 0xffff); }
DEVICE float high_of(unsigned pair) { return as_float(pair >> 16); }
// What a warpgroup multiplies of a stage as the 64-row operand, in registers, a warp 16 rows; of so many blocks of 64
// rows, of panels that have PITCH.
template <int PANELS, int GATES, int BLOCKS, int PITCH> struct Tall {
  unsigned pieces[PANELS][GATES][BLOCKS][4][4];
  // Where in a slot a lane has the first piece of a block, of so many rows; lanes whose rows are none read the last.
  DEVICE static unsigned place_of(int block, int rows) {
    const int lane = threadIdx.x % 32, first = WARPGROUPS > 1 ? threadIdx.x / 128 * BLOCKS * 64 : 0;
    const int mine = first + threadIdx.x / 32 % 4 * 16 + lane % 16, row = min(block * 64 + mine, rows - 1);
    return row * 128 + ((lane / 16 ^ row & 7) << 4);
  }
  DEVICE void load(unsigned slot, int rows) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) load_block(b, slot + place_of(b, rows));
  }
  // From the first piece on, of a slot that begins at a multiple of 128 bytes.
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
// By a warp, ahead of tokens: its weights of the next stages, so many rows of them, into registers, so that others may
// have their slots.
template <class WEIGHTS, int COUNT> DEVICE void take_weights(Stage& stage, WEIGHTS (&weights)[COUNT], int rows) {
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
