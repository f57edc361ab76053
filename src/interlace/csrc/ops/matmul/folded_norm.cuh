// RMS normalisation folded into matmuls (kernels/primitives/squares.py).
#pragma once

// Loads that are made where they stand: the compiler puts others off until their values are needed.
DEVICE float load_now(const float* at) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}
DEVICE float4 load_four_now(const float* at) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
DEVICE int4 load_constant_now(const void* at) {
  int4 v;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
DEVICE float load_shared_float(unsigned at) {
  unsigned bits;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits) : "r"(at) : "memory");
  return __uint_as_float(bits);
}
// By so many threads next to each other, equal in all of them.
template <int THREADS_> DEVICE float sum_of(float value) {
#pragma unroll
  for (int distance = THREADS_ / 2; distance; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

// What products of so many rows of K elements are multiplied by: 8 threads of a warpgroup add up the sums of squares of
// a row, of 16 rows at a time. If these are few all are loaded at once, and added up at the end. Of many a piece is
// loaded in each of the last stages, and added two stages later; in the first ones a block catches up with its ring.
template <int ROWS, int K, int SQUARED, unsigned EPS_BITS> struct Factors {
  static constexpr int ROUNDS = (ROWS + 15) / 16, OF_ROW = SQUARED > 0 ? (K + SQUARED - 1) / SQUARED : 1;
  static constexpr int OF_THREAD = K > 0 ? (OF_ROW + 7) / 8 : 1;
  static constexpr bool EARLY = ROUNDS * OF_THREAD <= 16;
  static constexpr int MOST = WARPGROUPS > 2 ? 8 : 16, PIECES = (OF_THREAD + MOST - 1) / MOST;
  static constexpr int OF_PIECE = ((OF_THREAD + PIECES - 1) / PIECES + 3) / 4 * 4;  // loaded by four
  static constexpr int UNDER_WAY = 2, STEPS = ROUNDS * PIECES + UNDER_WAY;
  float squares[EARLY ? ROUNDS : UNDER_WAY][EARLY ? OF_THREAD : OF_PIECE];
  float sum = 0.0f;
  int next = 0;  // piece to load

  DEVICE static int row_of(int round) { return round * 16 + threadIdx.x % 128 / 8; }
  // From the first row on.
  DEVICE void load(const Epilogue& op, int first) {
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
      for (int e = 0; e < OF_THREAD; ++e) {
        const int row = first + row_of(r), at = e * 8 + threadIdx.x % 8;
        squares[r][e] = 0.0f;
        if (row_of(r) < ROWS && row < op.m && at < OF_ROW)
          squares[r][e] = load_now(op.x_squares + (long long)row * OF_ROW + at);
      }
  }
  // Of all that were loaded: to shared memory, a float for each row.
  DEVICE void leave(unsigned factors) {
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      sum = 0.0f;
#pragma unroll
      for (int e = 0; e < OF_THREAD; ++e) sum += squares[r][e];
      leave_factor(r, factors);
    }
  }
  // Adds the oldest piece that is under way, and loads the next; a row that is whole goes to shared memory.
  DEVICE void go_on(const Epilogue& op, int first, unsigned factors) {
#pragma unroll
    for (int n = 0; n < UNDER_WAY; ++n)  // registers have no index
      if (next % UNDER_WAY == n) {
        if (next >= UNDER_WAY) add_piece(squares[n], factors);
        load_piece(op, first, squares[n]);
      }
    ++next;
  }
  DEVICE void go_on_to_end(const Epilogue& op, int first, unsigned factors) {
#pragma unroll 1
    while (next < STEPS) go_on(op, first, factors);
  }
  DEVICE void load_piece(const Epilogue& op, int first, float (&values)[OF_PIECE]) const {
    const int round = next / PIECES, row = row_of(round);
    const float* const of_row = op.x_squares + (long long)(first + row) * OF_ROW;
    const bool inside = round < ROUNDS && row < ROWS && first + row < op.m;
#pragma unroll
    for (int e = 0; e < OF_PIECE; e += 4) {
      const int at = (next % PIECES * OF_PIECE + e) * 8 + threadIdx.x % 8 * 4;
      float4 four = make_float4(0, 0, 0, 0);
      if constexpr (OF_ROW % 4 == 0) {
        if (inside && at < OF_ROW) four = load_four_now(of_row + at);
      } else {
        if (inside && at < OF_ROW) four.x = load_now(of_row + at);
        if (inside && at + 1 < OF_ROW) four.y = load_now(of_row + at + 1);
        if (inside && at + 2 < OF_ROW) four.z = load_now(of_row + at + 2);
        if (inside && at + 3 < OF_ROW) four.w = load_now(of_row + at + 3);
      }
      values[e] = four.x, values[e + 1] = four.y, values[e + 2] = four.z, values[e + 3] = four.w;
    }
  }
  DEVICE void add_piece(const float (&values)[OF_PIECE], unsigned factors) {
    const int piece = next - UNDER_WAY;
#pragma unroll
    for (int e = 0; e < OF_PIECE; ++e) sum += values[e];
    if (piece % PIECES < PIECES - 1) return;
    leave_factor(piece / PIECES, factors);
    sum = 0.0f;
  }
  DEVICE void leave_factor(int round, unsigned factors) const {
    const float factor = rsqrtf(sum_of<8>(sum) / K + __uint_as_float(EPS_BITS));
    const int row = row_of(round);
    if (threadIdx.x % 8 == 0 && row < ROWS) store_shared_32(factors + row * 4, __float_as_uint(factor));
  }
};

// Tokens of a stage that are normalised here, in registers: what is multiplied in their place.
template <int PANELS, int BLOCKS, int PITCH> struct Scaled : Tall<PANELS, 1, BLOCKS, PITCH> {
  // Of an item's rows, so many: where in a slot a lane has what it reads of them and of gains, which lie in lines of a
  // panel each, without a swizzle; and squares of the two rows of each 64 that a thread has, as its quad does.
  struct Rows {
    unsigned places[BLOCKS], gains = threadIdx.x % 32 / 8 * 16;
    float squares[BLOCKS][2] = {};

    DEVICE explicit Rows(int count) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        places[b] = Scaled::place_of(b, count);
        keep(places[b]);
      }
      keep(gains);
    }
    // With three warpgroups there are no registers for it, and it is made anew for each panel.
    DEVICE static void keep(unsigned& place) {
      if (WARPGROUPS < 3) asm volatile("" : "+r"(place));
    }
  };
  // Of a row of a panel a thread adds 8 pairs of squares as pairs of bf16: four, the other four, and these two sums, in
  // 26 instructions for 64. Five roundings are behind each, so it is off by 5 / 256 at the very worst; sums of
  // thousands by 2e-4 to 8e-4, and of rows whose elements are all of one magnitude by 5.3e-3 at most
  // (benchmarks/notes/norms.md).
  DEVICE void load(unsigned slot, unsigned gains, Rows& rows) {
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) this->load_block(b, slot + rows.places[b]);
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
      unsigned gain[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) load_matrices(gain[half], gains + rows.gains + p * 128 + half * 64);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        unsigned squares[2][2] = {};
#pragma unroll
        for (int n = 0; n < 16; ++n) {
          unsigned& pair = this->pieces[p][0][b][n / 4][n % 4];
          squares[n % 2][n / 8] = plus_squares(squares[n % 2][n / 8], pair);
          pair = times(pair, gain[n / 8][n / 2 % 4]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned sum = plus(squares[r][0], squares[r][1]);
          rows.squares[b][r] += low_of(sum) + high_of(sum);
        }
      }
    }
  }
};
// Sums of rows, of some columns, times the factors of these, given a thread's sums of their squares.
template <int K, unsigned EPS_BITS, int GATES, int BLOCKS, int COUNT>
DEVICE void normalise_rows(float (&sums)[GATES][BLOCKS][COUNT], const float (&squares)[BLOCKS][2]) {
#pragma unroll
  for (int b = 0; b < BLOCKS; ++b) {
    float factors[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factors[r] = rsqrtf(sum_of<4>(squares[b][r]) / K + __uint_as_float(EPS_BITS));
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int t = 0; t < COUNT; ++t) sums[g][b][t] *= factors[t / 2 % 2];
  }
}

// A thread stores the same 8 of each 64 features: their scale, from the first feature on.
template <int COUNT> DEVICE void load_gains(const Epilogue& op, int first, int4 (&gains)[COUNT]) {
  const int own = first + threadIdx.x % 8 * 8;
#pragma unroll
  for (int g = 0; g < COUNT; ++g) {
    gains[g] = make_int4(0, 0, 0, 0);
    if (own + g * 64 < op.n) gains[g] = load_constant_now(op.scale + own + g * 64);
  }
}
// 8 features of a token, where 8 threads next to each other have 64: `piece` is what out has of them.
template <int SQUARED> DEVICE void leave_scaled(const Epilogue& op, int token, int feature, int4 piece, int4 gain) {
  const unsigned values[4] = {(unsigned)piece.x, (unsigned)piece.y, (unsigned)piece.z, (unsigned)piece.w};
  const unsigned scales[4] = {(unsigned)gain.x, (unsigned)gain.y, (unsigned)gain.z, (unsigned)gain.w};
  const bool inside = token < op.m && feature < op.n;
  int scaled[4];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = as_float(values[i] & 0xffff), high = as_float(values[i] >> 16);
    sum += low * low + high * high;
    scaled[i] = (int)as_pair(low * as_float(scales[i] & 0xffff), high * as_float(scales[i] >> 16));
  }
  sum = sum_of<SQUARED / 8>(inside ? sum : 0.0f);
  if (!inside) return;
  *reinterpret_cast<int4*>(op.scaled + (long long)token * op.n + feature) =
      make_int4(scaled[0], scaled[1], scaled[2], scaled[3]);
  if (feature % SQUARED == 0) op.squares[(long long)token * ((op.n + SQUARED - 1) / SQUARED) + feature / SQUARED] = sum;
}
