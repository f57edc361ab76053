// Warp-level products of 16-bit elements (mma.sync), and their operands from shared memory (ldmatrix).
//
// In a product of 16 x 16 by 16 x 8 elements, lane l holds of each operand what the table says (PTX ISA, "Matrix
// fragments for mma.m16n8k16"); r is l / 4 and c is 2 (l % 4):
//
//   register       0                   1                     2                     3
//   first          row r, k c .. c+1   row r+8, k c .. c+1   row r, k c+8 .. c+9   row r+8, k c+8 .. c+9
//   second         column r, k c, c+1  column r, k c+8, c+9
//   accumulators   row r, column c     row r, column c+1     row r+8, column c     row r+8, column c+1
//
// ELEMENT_PTX is the elements' type in PTX, "bf16" or "f16".
#pragma once
#include "generated/arguments.cuh"

// Two floats, rounded to a pair of elements; `low` is the first in memory.
DEVICE unsigned as_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Loads four 8 x 8 matrices: lane l gives the address of row l % 8 of matrix l / 8, and gets two neighbours of row l /
// 4 of each matrix ...
DEVICE void load_matrices(unsigned (&to)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
// ... or, transposed, two neighbours of column l / 4.
DEVICE void load_transposed(unsigned (&to)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
// accumulators (16 x 8) += first (16 x 16) * second (16 x 8), both operands contiguous along k.
DEVICE void multiply(float (&accumulators)[4], const unsigned (&first)[4], unsigned low, unsigned high) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_PTX "." ELEMENT_PTX
               ".f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(accumulators[0]), "+f"(accumulators[1]), "+f"(accumulators[2]), "+f"(accumulators[3])
               : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(low), "r"(high));
}
