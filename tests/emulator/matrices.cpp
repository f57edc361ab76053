// What a warp does together: matrices out of shared memory (``ldmatrix``), and products of 16 x 16 by 16 x 8 out of
// registers (PTX ISA, "Warp-level matrix load instruction", and the fragments of ``mma.m16n8k16``). Lanes give each
// other what they hold: lane l has of A rows l / 4 and l / 4 + 8, of B and D the columns that l % 4 tells.
#include <cstring>

#include "cuda.h"
#include "shadow.h"

namespace {
// What all lanes of the warp hold, once they have met. A lane is at most one exchange ahead of those that read it.
template <class Fill> int exchange(const char* what, uint32_t line, Fill fill) {
  Thread& self = *machine.current;
  const int turn = self.exchanges++ & 1;
  fill(self.held[turn]);
  meet_lanes(what, line);
  return turn;
}
const unsigned* held(int lane, int turn) {
  return machine.threads[machine.current->number / 32 * 32 + lane].held[turn];
}
// One of the two 16-bit halves of a register.
float half_of(unsigned pair, int which, bool half) {
  const unsigned short bits = static_cast<unsigned short>(pair >> 16 * which);
  return half ? ptx::from_half(bits) : __uint_as_float(unsigned(bits) << 16);
}

void load_matrices(ptx::Matrices to, unsigned at, bool transposed, uint32_t line) {
  Thread& self = *machine.current;
  const uint32_t lane = self.number % 32, rows = static_cast<uint32_t>(to.size()) * 8;
  const int turn = exchange("ldmatrix", line, [&](unsigned (&row)[6]) {
    if (lane >= rows) return;  // its address is not used
    const uint32_t place = at - WINDOW;
    if (place % 16 || uint64_t(place) + 16 > machine.shared_bytes) {
      report(BOUNDS, place, 16, line, 0, "thread %u loads a row of a matrix unaligned or past the end of shared memory",
             self.number);
      give_up();
    }
    shadow.read(place, 16, by_thread(self, line));
    memcpy(row, machine.shared + place, 16);
  });
  int matrix = 0;
  for (unsigned* const value : to) {
    unsigned short pair[2];
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
      memcpy(&pair[e], reinterpret_cast<const char*>(held(matrix * 8 + row, turn)) + column * 2, 2);
    }
    *value = pair[0] | unsigned(pair[1]) << 16;
    ++matrix;
  }
}

void multiply(ptx::Registers to, ptx::Pairs a, ptx::Pairs b, ptx::Registers sums, bool half, uint32_t line) {
  const uint32_t lane = machine.current->number % 32;
  const int turn = exchange("mma", line, [&](unsigned (&pairs)[6]) {
    std::copy(a.begin(), a.end(), pairs);
    std::copy(b.begin(), b.end(), pairs + 4);
  });
  for (uint32_t n = 0; n < 4; ++n) {
    const uint32_t lower = n / 2, column = lane % 4 * 2 + n % 2;
    float sum = *sums.begin()[n];
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t from = k % 8 / 2, upper = k / 8;
      const unsigned of_a = held(lane / 4 * 4 + from, turn)[upper * 2 + lower];
      const unsigned of_b = held(column * 4 + from, turn)[4 + upper];
      sum += half_of(of_a, k % 2, half) * half_of(of_b, k % 2, half);
    }
    *to.begin()[n] = sum;
  }
}
}  // namespace

void ptx::ldmatrix_sync_aligned_m8n8_x2_shared_b16(Matrices to, unsigned at) { load_matrices(to, at, false, LINE); }
void ptx::ldmatrix_sync_aligned_m8n8_x4_shared_b16(Matrices to, unsigned at) { load_matrices(to, at, false, LINE); }
void ptx::ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(Matrices to, unsigned at) { load_matrices(to, at, true, LINE); }
void ptx::ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(Matrices to, unsigned at) { load_matrices(to, at, true, LINE); }
void ptx::mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(Registers to, Pairs a, Pairs b, Registers sums) {
  multiply(to, a, b, sums, false, LINE);
}
void ptx::mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(Registers to, Pairs a, Pairs b, Registers sums) {
  multiply(to, a, b, sums, true, LINE);
}
