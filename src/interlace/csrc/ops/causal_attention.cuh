// Causal attention of many tokens with wgmma: out[t] = softmax(q[t] . k[first[t] .. t] / sqrt(D)) @ v[first[t] .. t].
//
//   q     (rows, kv_heads * group * D)     k, v   (rows, kv_heads * D)     D is 64 to 256, a multiple of 16
//   first (rows)   the first position that row t sees: the beginning of its sequence; beyond t if t holds no token
//
// A tile (i, j, l) is BM = 64 rows for each consumer warpgroup, KV head j, head l of its group. Tiles count from the
// last rows, which see most. Queries take the first stage of an item, from which they go into registers, or the first
// two, if heads have more than 128 elements; each further stage is a block of BN keys and values. All lie in panels of
// 64 elements (128 bytes, one swizzled line), row after row:
//
//   slot       first stage                       second                further stages
//   prefetch   elements 0 .. 63 of the queries   128 .. 191, if any    keys
//   load       elements 64 .. 127, if any        192 .. 255, if any    values
//
// A head of 80 elements ends inside its second panel, which bulk loads fill with zeros: scores are products of 80
// elements, sums of values have 128 columns, of which 80 are stored.
//
// The loader fills both slots after the item's waits (load); prefetch opens stages with no bytes. All roles compute the
// number of stages from `first`, which no earlier op may write.
//
// First operands of the products are queries and weights in registers, where accumulators have the layout of a first
// operand; heads of more than 192 elements leave no registers for queries, which go into the scratch. Values lie with
// their rows along the reduction (a transposed second operand). While the products with the values of one block run,
// the scores of the next become weights (Shah et al., FlashAttention-3, 2024, section 3.2).
#pragma once
#include "generated/arguments.cuh"
#include "../ring/plain.cuh"

constexpr float LOG2E = 1.4426950408889634f;
constexpr int PITCH = 64 * 2 + 16;  // bytes of a row of the scratch: 64 elements, and 16 bytes against bank conflicts
// Products (kernels/causal_attention/cuda.py generates them): scores = or += q @ k^T, and sums of values += weights @
// v.
template <int BN> struct Scores;
template <int WIDTH> struct Sums;
DEVICE constexpr float root_of(float x) {  // by Newton's method
  float root = x;
  for (int n = 0; n < 20; ++n) root = 0.5f * (root + x / root);
  return root;
}
// Low word of an operand's matrix descriptor; `step`: bytes from 64 columns to the next of a transposed operand, else
// 16.
DEVICE unsigned low_word(unsigned address, unsigned step) {
  return uniform((address & 0x3ffff) >> 4 | step >> 4 << 16);
}
DEVICE unsigned long long descriptor(unsigned low) { return (unsigned long long)(64u | 1u << 30) << 32 | low; }
DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE unsigned as_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE void store_shared_32(unsigned at, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
DEVICE unsigned load_shared_32(unsigned at) {
  unsigned value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
// Keeps arithmetic before the wait that follows. ptxas moves a wait for products ahead of arithmetic that does not need
// them, which then does not overlap them. It leaves a trap in place, and so what the trap depends on: a sum of
// exponentials, which is never negative.
DEVICE void pin_before_wait(float total) {
  asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p trap; }" ::"f"(total) : "memory");
}
DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

template <int D, int BN> struct CausalAttention {
  static constexpr int BM = 64 * WARPGROUPS, PANELS = (D + 63) / 64, PANEL_BYTES = BN * 128;
  static constexpr int WIDTH = PANELS * 64;  // columns of the sums of values
  static constexpr int QUERY_STAGES = (PANELS + 1) / 2;
  static constexpr bool KEEPS_QUERIES = D > 192;  // in the scratch
  typedef unsigned Queries[KEEPS_QUERIES ? 1 : D / 4];

  // Positions that some rows see: low to high (exclusive); all of these rows see those from `full` on. Empty without a
  // token among the rows.
  struct Visible {
    int low, high, full;
  };
  // The first position that each row of a tile sees, the row after it if it holds no token. Lane l has rows l, l + 32
  // ...
  struct Begins {
    int rows[BM / 32];
    int top;  // the tile's first row
    // Keys that rows `from` to `to` of the tile see.
    DEVICE Visible visible(int from, int to) const {
      Visible visible = {1 << 30, 0, 0};
#pragma unroll
      for (int i = 0; i < BM / 32; ++i) {
        const int r = i * 32 + threadIdx.x % 32, row = top + r;
        if (r >= from && r < to && rows[i] <= row)
          visible.low = min(visible.low, rows[i]), visible.high = row + 1, visible.full = max(visible.full, rows[i]);
      }
      return {__reduce_min_sync(0xffffffff, visible.low), __reduce_max_sync(0xffffffff, visible.high),
              __reduce_max_sync(0xffffffff, visible.full)};
    }
    // Keys that the whole tile sees. A tile that sees none still goes through one block: ptxas serialises products
    // after a branch.
    DEVICE Visible visible() const {
      Visible all = visible(0, BM);
      if (all.low >= all.high) all.low = top, all.high = top + 1;
      return all;
    }
    // The first position that row r of the tile sees; r differs from lane to lane.
    DEVICE int row(int r) const {
      int begin = 0;
#pragma unroll
      for (int i = 0; i < BM / 32; ++i) {
        const int found = __shfl_sync(0xffffffff, rows[i], r % 32);
        begin = r / 32 == i ? found : begin;
      }
      return begin;
    }
  };
  DEVICE static int top_of(const Operands& op, const Item& item) {
    return uniform(((op.rows + BM - 1) / BM - 1 - item.i) * BM);
  }
  // Called by a warp.
  DEVICE static Begins begins_of(const Operands& op, int top) {
    Begins begins;
    begins.top = top;
    const int* const first = op.first + top + threadIdx.x % 32;
    const int end = op.rows - top - threadIdx.x % 32, window = op.window;
#pragma unroll
    for (int i = 0; i < BM / 32; ++i) begins.rows[i] = i * 32 < end ? __ldcg(first + i * 32) : 1 << 30;
#pragma unroll
    for (int i = 0; i < BM / 32; ++i) {
      const int row = top + i * 32 + threadIdx.x % 32;
      begins.rows[i] = min(max(max(begins.rows[i], row - window + 1), 0), row + 1);
    }
    return begins;
  }

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    await_launch_before();
    const Visible visible = begins_of(op, top_of(op, item)).visible();
#pragma unroll 1
    for (int row = visible.low - QUERY_STAGES * BN; row < visible.high; row += BN) {
      tickets.look(launch);
      open_prefetch(stage, n, STAGES, 0);
      stage.advance();
      ++n;
    }
  }
  // Where a panel of the queries lies in its stage.
  DEVICE static unsigned query_panel(int slot, int p) { return p % 2 ? load_slot(slot) : prefetch_slot(slot); }
  DEVICE static void load_queries(const Operands& op, const Item& item, int top, Stage& stage) {
    const int head = uniform(item.j * op.group + item.l);
#pragma unroll
    for (int s = 0; s < PANELS; s += 2) {
      open_load(stage, (s + 1 < PANELS ? 2 : 1) * BM * 128);
      if (first_lane())
#pragma unroll
        for (int p = s; p < s + 2 && p < PANELS; ++p)
          tma_load_3d(query_panel(stage.slot, p), op.q, p * 64, head, top, load_full(stage.slot));
      stage.advance();
    }
  }
  // Finds the rows that the tile sees.
  DEVICE static void look_ahead(const Launch& launch, Item& item) {
    const Operands& op = operands_of<Operands>(launch, item);
    const Visible visible = begins_of(op, top_of(op, item)).visible();
    item.given.low = visible.low, item.given.high = visible.high;
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int head = uniform(item.j);
    load_queries(op, item, top_of(op, item), stage);
#pragma unroll 1
    for (int row = item.given.low; row < item.given.high; row += BN) {
      open_load(stage, 2 * PANELS * PANEL_BYTES);
      const unsigned keys = prefetch_slot(stage.slot), values = load_slot(stage.slot);
      const unsigned full = load_full(stage.slot);
      if (first_lane()) {
#pragma unroll
        for (int p = 0; p < PANELS; ++p) tma_load_3d(keys + p * PANEL_BYTES, op.k, p * 64, head, row, full);
#pragma unroll
        for (int p = 0; p < PANELS; ++p) tma_load_3d(values + p * PANEL_BYTES, op.v, p * 64, head, row, full);
      }
      stage.advance();
    }
  }

  // Online softmax of a thread's two rows: the largest score, and this thread's part of the sum of weights.
  struct Rows {
    int row[2], begin[2];
    float peak[2], total[2], fade[2];
  };
  DEVICE static unsigned kept_queries() { return (scratch_of(warpgroup()) + 1023) & ~1023u; }
  // Takes queries of 64 rows into registers: for each 16 elements of a head, 2 elements of a thread's two rows and the
  // 2 that are 8 further. Releases their stages.
  DEVICE static void take_queries(Queries& queries, Stage& stage) {
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int s = 0; s < PANELS; s += 2) {
      await_stage(stage);
      if constexpr (KEEPS_QUERIES) {
#pragma unroll
        for (int p = s; p < s + 2 && p < PANELS; ++p)
#pragma unroll
          for (int at = thread * 16; at < 64 * 128; at += 128 * 16)
            store_shared_128(kept_queries() + p * 64 * 128 + at,
                             load_shared_128(query_panel(stage.slot, p) + warpgroup() * 64 * 128 + at));
      } else {
#pragma unroll
        for (int i = s * 16; i < s * 16 + 32 && i < D / 4; ++i) {
          const int at = row + i % 2 * 8, piece = i / 4 % 4 * 2 + i / 2 % 2;
          const unsigned line = query_panel(stage.slot, i / 16) + (warpgroup() * 64 + at) * 128;
          queries[i] = load_shared_32(line + (piece ^ at % 8) * 16 + thread % 4 * 4);
        }
      }
      __syncwarp();
      release(stage, stage.slot);
      stage.advance();
    }
    if constexpr (KEEPS_QUERIES) {
      fence_proxy_async();
      synchronise();
    }
  }
  DEVICE static void multiply(float (&scores)[BN / 2], const Queries& queries, int slot) {
    const unsigned keys = low_word(prefetch_slot(slot), 16), kept = KEEPS_QUERIES ? low_word(kept_queries(), 16) : 0;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const unsigned long long b = descriptor(keys + i / 4 * (PANEL_BYTES / 16) + i % 4 * 2);
      if constexpr (KEEPS_QUERIES) {
        const unsigned long long a = descriptor(kept + i / 4 * (64 * 128 / 16) + i % 4 * 2);
        if (i == 0) Scores<BN>::set(scores, a, b);
        else Scores<BN>::add(scores, a, b);
      } else {
        const unsigned* const a = queries + i * 4;
        if (i == 0) Scores<BN>::set(scores, a[0], a[1], a[2], a[3], b);
        else Scores<BN>::add(scores, a[0], a[1], a[2], a[3], b);
      }
    }
    wgmma_commit();
  }
  DEVICE static void accumulate(float (&accumulators)[WIDTH / 2], const unsigned (&weights)[BN / 4], int slot) {
    const unsigned values = low_word(load_slot(slot), PANELS > 1 ? PANEL_BYTES : 16);
#pragma unroll
    for (int i = 0; i < BN / 16; ++i)
      Sums<WIDTH>::add(accumulators, weights[i * 4], weights[i * 4 + 1], weights[i * 4 + 2], weights[i * 4 + 3],
                       descriptor(values + i * 128));
    wgmma_commit();
  }
  // Turns scores into weights in place. `whole`: all rows see the whole block.
  DEVICE static void softmax(float (&scores)[BN / 2], Rows& rows, int start, bool fully_visible) {
    constexpr float scale = LOG2E / root_of(D);
    const int column = start + threadIdx.x % 4 * 2;
    if (!fully_visible) {
#pragma unroll
      for (int i = 0; i < BN / 2; ++i) {
        const int at = column + i / 4 * 8 + i % 2, r = i / 2 % 2;
        if (at > rows.row[r] || at < rows.begin[r]) scores[i] = minus_infinity();
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = rows.peak[r];
#pragma unroll
      for (int i = r * 2; i < BN / 2; i += 4) largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
      // A row that has seen nothing yet must not subtract infinity from infinity.
      const float level = largest == minus_infinity() ? 0.0f : largest * scale;
      rows.fade[r] = power_of_two(rows.peak[r] * scale - level);
      rows.peak[r] = largest;
      float total = 0.0f;
#pragma unroll
      for (int i = r * 2; i < BN / 2; i += 4) {
        scores[i] = power_of_two(scores[i] * scale - level);
        scores[i + 1] = power_of_two(scores[i + 1] * scale - level);
        total += scores[i] + scores[i + 1];
      }
      rows.total[r] = rows.total[r] * rows.fade[r] + total;
    }
  }
  DEVICE static void round(unsigned (&weights)[BN / 4], const float (&scores)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 4; ++i) weights[i] = as_pair(scores[i * 2], scores[i * 2 + 1]);
  }
  // Clears values of rows that hold no token: they may be NaN, which a weight of 0 does not make zero. Such rows follow
  // the last visible one and, where sequences begin at different rows, lie between sequences.
  DEVICE static void clear(const Operands& op, int slot, int start, const Visible& visible) {
    const bool gaps = visible.full > visible.low;
    if (start + BN <= visible.high && !gaps) return;
#pragma unroll 1
    for (int piece = threadIdx.x; piece < BN * WIDTH / 8; piece += THREADS) {
      const int r = piece / (WIDTH / 8), c = piece % (WIDTH / 8), row = start + r;
      if (row >= visible.high || (gaps && __ldcg(op.first + row) > row))
        store_shared_128(load_slot(slot) + c / 8 * PANEL_BYTES + r * 128 + c % 8 * 16, make_int4(0, 0, 0, 0));
    }
    fence_proxy_async();
    synchronise_block();
  }

  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    await(prefetch_full(stage.slot), stage.phase);  // from here on, data of the previous launch is visible
    const int top = top_of(op, item), thread = threadIdx.x % 128;
    const int of_warp = uniform(warpgroup() * 64 + thread / 32 * 16);  // the first of its rows in the tile
    const Begins begins = begins_of(op, top);
    const Visible visible = begins.visible(), visible_to_warp = begins.visible(of_warp, of_warp + 16);
    Rows rows;
    bool live[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = of_warp + thread % 32 / 4 + r * 8;
      rows.row[r] = top + at, rows.begin[r] = begins.row(at);
      live[r] = rows.begin[r] <= rows.row[r];
      rows.peak[r] = minus_infinity(), rows.total[r] = 0.0f;
    }
    float accumulators[WIDTH / 2], scores[BN / 2];
    unsigned weights[BN / 4];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) accumulators[i] = 0.0f;
    Queries queries;
    take_queries(queries, stage);
    // All rows of the warp see every position of blocks from `full` to the warp's first row.
    const int full = visible_to_warp.full, until = top + of_warp + 1 - BN;
    const int end = begins.visible(warpgroup() * 64, warpgroup() * 64 + 64).high;
    int start = visible.low, before = stage.slot;
    await_stage(stage);
    clear(op, before, start, visible);
    stage.advance();
    wgmma_fence();
    multiply(scores, queries, before);
    wgmma_wait<0>();
    settle(scores);
    softmax(scores, rows, start, start >= full && start <= until);
    round(weights, scores);
#pragma unroll 1
    for (start += BN; start < end; start += BN) {
      await_stage(stage);
      clear(op, stage.slot, start, visible);
      wgmma_fence();
      multiply(scores, queries, stage.slot);
      accumulate(accumulators, weights, before);
      wgmma_wait<1>();
      settle(scores);
      softmax(scores, rows, start, start >= full && start <= until);
      pin_before_wait(rows.total[0] + rows.total[1]);
      wgmma_wait<0>();
      settle(accumulators);
      release(stage, before);
#pragma unroll
      for (int i = 0; i < WIDTH / 2; ++i) accumulators[i] *= rows.fade[i / 2 % 2];
      round(weights, scores);
      before = stage.slot;
      stage.advance();
    }
    wgmma_fence();
    accumulate(accumulators, weights, before);
    wgmma_wait<0>();
    settle(accumulators);
    release(stage, before);
    // Blocks that only rows of the other warpgroup see.
#pragma unroll 1
    for (; start < visible.high; start += BN) {
      await_stage(stage);
      clear(op, stage.slot, start, visible);
      __syncwarp();
      release(stage, stage.slot);
      stage.advance();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = rows.total[r];
      total += __shfl_xor_sync(0xffffffff, total, 1);
      total += __shfl_xor_sync(0xffffffff, total, 2);
      rows.total[r] = __fdividef(1.0f, total);
    }
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i)
      accumulators[i] = live[i / 2 % 2] ? accumulators[i] * rows.total[i / 2 % 2] : 0.0f;
    store(op, item, top + warpgroup() * 64, accumulators);
  }

  // Stores 64 rows. A scratch of shared memory transposes 64 columns at a time, so that threads store 16-byte pieces.
  DEVICE static void store(const Operands& op, const Item& item, int top, const float (&accumulators)[WIDTH / 2]) {
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    const unsigned scratch = scratch_of(warpgroup());
    const int end = op.rows, wide = op.kv_heads * op.group * D, head = (item.j * op.group + item.l) * D;
    ELEMENT* const out = op.out;
    if (KEEPS_QUERIES) synchronise();  // their products are done
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
#pragma unroll
      for (int i = 0; i < 32; i += 2)
        store_shared_32(scratch + (row + i / 2 % 2 * 8) * PITCH + (i / 4 * 8 + column) * 2,
                        as_pair(accumulators[p * 32 + i], accumulators[p * 32 + i + 1]));
      synchronise();
#pragma unroll
      for (int piece = thread; piece < 64 * 8; piece += 128) {
        const int token = top + piece / 8;
        if (token < end && p * 64 + piece % 8 * 8 < D)
          *reinterpret_cast<int4*>(out + (long long)token * wide + head + p * 64 + piece % 8 * 8) =
              load_shared_128(scratch + piece / 8 * PITCH + piece % 8 * 16);
      }
      if (p + 1 < PANELS) synchronise();
    }
  }
};
