// Warp-level products (mma) from registers, and operands from shared memory (ldmatrix).
#pragma once

// Two neighbours, rounded.
DEVICE unsigned as_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Four 8 x 8 matrices, of which lane l names row l % 8 of matrix l / 8. A lane gets two neighbours of row l / 4 ...
DEVICE void load_matrices(unsigned (&to)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
// ... or of column l / 4.
DEVICE void load_transposed(unsigned (&to)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}
// sums (16 x 8) += first (16 x 16) * second (16 x 8), both contiguous along k.
DEVICE void multiply(float (&sums)[4], const unsigned (&first)[4], unsigned low, unsigned high) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT_PTX "." ELEMENT_PTX
               ".f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(first[0]), "r"(first[1]), "r"(first[2]), "r"(first[3]), "r"(low), "r"(high));
}
