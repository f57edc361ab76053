// Attention of chunks of prompts with wgmma: rows attend to the cache of their sequence, and causally to their chunk.
//
//   q         (rows, kv_heads * group * D)    k   (rows, kv_heads * D)  rotated    v   (rows, kv_heads * D)
//   rope      (capacity, D)  cosines, then sines; q_norm   (D)  if queries are normalised; D is 64 to 256, by 16
//   k_cache   matrices of D columns: a head of a sequence, or of a page
//   first     (rows)   the first row of each row's segment; beyond the row if it holds no token
//   position, sequence (rows)
//
// Tiles, slots and products are those of causal_attention.cuh. Queries are normalised and rotated in registers, where a
// thread has both halves of each pair (or in the scratch, where they are kept there). Between a tile's queries and the
// keys of its chunk come blocks of caches, segment by segment of those that have rows in the tile:
//
//   rows of the tile      0 .. 29          30 .. 63
//   segment               3, 130 cached    5, 64 cached
//   stages                queries | 3: 0 .. 63, 64 .. 127, 128 .. 129 | 5: 0 .. 63 | rows of the chunk, 64 at a time
//
// No op that comes before writes what is cached, so the loader of prefetchable data loads these blocks, keys and
// values, before the item's waits. All roles compute the blocks from `first`, `position` and `sequence`, which no op
// may write.
#pragma once
#include "causal_attention.cuh"
#include "panels.cuh"
#include "rows.cuh"

DEVICE float2 as_floats(unsigned pair) {
  float2 values;
  asm("cvt.f32." ELEMENT_PTX " %0, %1;" : "=f"(values.x) : "h"((unsigned short)pair));
  asm("cvt.f32." ELEMENT_PTX " %0, %1;" : "=f"(values.y) : "h"((unsigned short)(pair >> 16)));
  return values;
}
template <int D, int BN, int PAGE, bool NORMED> struct ChunkAttention : CausalAttention<D, BN> {
  typedef CausalAttention<D, BN> Base;
  typedef typename Base::Begins Begins;
  typedef typename Base::Visible Visible;
  static constexpr int BM = Base::BM, PANELS = Base::PANELS, PANEL_BYTES = Base::PANEL_BYTES;
  static constexpr int BLOCK_BYTES = 2 * PANELS * PANEL_BYTES;
  static constexpr int IN_FLIGHT = (IN_FLIGHT_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES;

  // Called by a warp. A row of no sequence holds no token.
  DEVICE static Begins begins_of(const Operands& op, int top) {
    Begins begins = Base::begins_of(op, top);
#pragma unroll
    for (int i = 0; i < BM / 32; ++i) {
      const int row = top + i * 32 + threadIdx.x % 32;
      if (!is_named(op, min(row, op.rows - 1))) begins.rows[i] = row + 1;
    }
    return begins;
  }
  DEVICE static bool is_named(const Operands& op, int row) {
    const int sequence = __ldcg(op.sequence + row);
    return sequence >= 0 && sequence < op.batch;
  }
  // The first row of the tile, from `from` on, that begins a segment or is the tile's first of one; BM if none is.
  DEVICE static int leader_from(const Begins& begins, int from) {
    int found = BM;
#pragma unroll
    for (int i = BM / 32 - 1; i >= 0; --i) {
      const int r = i * 32 + threadIdx.x % 32, row = begins.top + r, begin = begins.rows[i];
      const unsigned leads = __ballot_sync(0xffffffff, r >= from && begin <= row && (begin == row || r == 0));
      found = leads ? i * 32 + __ffs(leads) - 1 : found;
    }
    return found;
  }

  // A tile's blocks of keys and values, one after another; all lanes of a warp have the same. They begin at the end of
  // an empty segment before the tile's first, so that `advance` finds the first block too: each call is a copy of it.
  struct Blocks {
    int start = 0;    // first position, or row of the chunk
    int begin = 0;    // first row of the segment whose cache it is of; -1 for rows of the chunk
    int cached = 0;   // number of cached positions
    int leader = -1;  // the segment's first row in the tile
    // Goes to the next block: of this cache, of that of the next segment that has one, or of the chunk.
    DEVICE void advance(const Operands& op, const Begins& begins, const Visible& visible) {
      start += BN;
      if (!is_cached() || start < cached) return;
#pragma unroll 1
      for (;;) {
        leader = leader_from(begins, leader + 1);
        if (leader == BM) break;
        begin = uniform(begins.row(leader));
        cached = uniform(min(max(__ldcg(op.position + begin), 0), op.capacity));
        start = 0;
        if (cached > 0) return;
      }
      begin = -1, start = visible.low;
    }
    DEVICE bool is_cached() const { return begin >= 0; }
    DEVICE bool is_end(const Visible& visible) const { return begin < 0 && start >= visible.high; }
  };

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    await_launch_before();
    asm volatile("fence.proxy.async.global;" ::: "memory");
    const Begins begins = begins_of(op, Base::top_of(op, item));
    const Visible visible = begins.visible();
    tickets.look(launch);
#pragma unroll
    for (int s = 0; s < Base::QUERY_STAGES; ++s) {
      open_prefetch(stage, n, STAGES, 0);
      stage.advance();
      ++n;
    }
    Blocks blocks;
#pragma unroll 1
    for (;;) {
      blocks.advance(op, begins, visible);
      if (blocks.is_end(visible)) break;
      tickets.look(launch);
      if (blocks.is_cached()) {
        const int matrix = matrix_of(op, item, __ldcg(op.sequence + begins.top + blocks.leader), blocks.start);
        // Bytes go into both slots, as in ring/streamed.cuh.
        await(prefetch_empty(stage.slot), stage.phase ^ 1);
        await(load_empty(stage.slot), stage.phase ^ 1);
        open_prefetch(stage, n, IN_FLIGHT, BLOCK_BYTES);
        const int row = PAGE ? blocks.start % max(PAGE, 1) : blocks.start;
        const unsigned keys = prefetch_slot(stage.slot), values = load_slot(stage.slot),
                       full = prefetch_full(stage.slot);
        if (first_lane()) {
          load_panels<D>(keys, PANEL_BYTES, op.k_cache, row, matrix, full, evict_first());
          load_panels<D>(values, PANEL_BYTES, op.v_cache, row, matrix, full, evict_first());
        }
      } else {
        open_prefetch(stage, n, STAGES, 0);
      }
      stage.advance();
      ++n;
    }
  }
  // The matrix of a cache that has a position of a sequence.
  DEVICE static int matrix_of(const Operands& op, const Item& item, int sequence, int at) {
    int matrix = sequence;
    if (PAGE)
      matrix = max(min(__ldcg(op.table + (long long)sequence * op.table_pages + at / max(PAGE, 1)), op.pages - 1), 0);
    return matrix * op.kv_heads + item.j;
  }
  // Counts blocks of caches, and finds the rows of the chunk that the tile sees.
  DEVICE static void look_ahead(const Launch& launch, Item& item) {
    const Operands& op = operands_of<Operands>(launch, item);
    const Begins begins = begins_of(op, Base::top_of(op, item));
    const Visible visible = begins.visible();
    Blocks blocks;
    item.given.count = -1;
#pragma unroll 1
    for (; blocks.is_cached(); ++item.given.count) blocks.advance(op, begins, visible);
    item.given.low = blocks.start, item.given.high = visible.high;
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int head = uniform(item.j);
    Base::load_queries(op, item, Base::top_of(op, item), stage);
#pragma unroll 1
    for (int n = 0; n < item.given.count; ++n) {
      open_load(stage, 0);
      stage.advance();
    }
#pragma unroll 1
    for (int start = item.given.low; start < item.given.high; start += BN) {
      open_load(stage, BLOCK_BYTES);
      const unsigned keys = prefetch_slot(stage.slot), values = load_slot(stage.slot), full = load_full(stage.slot);
      if (first_lane()) {
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          tma_load_3d(keys + p * PANEL_BYTES, op.k, p * 64, head, start, full);
          tma_load_3d(values + p * PANEL_BYTES, op.v, p * 64, head, start, full);
        }
      }
      stage.advance();
    }
  }

  // Two neighbours of the low half of a head's norm weight, and those of its high half.
  struct Gains {
    unsigned low, high;
    DEVICE void load(const Operands& op, int pair) {
      const unsigned* const at = reinterpret_cast<const unsigned*>(op.q_norm) + pair;
      low = __ldcg(at), high = __ldcg(at + D / 4);
    }
  };
  // Normalises, if the op has a norm, and rotates two neighbours of the low half of a query, and two of its high half.
  DEVICE static void rotate(unsigned& low, unsigned& high, float2 cosines, float2 sines, const Gains& gains,
                            float factor) {
    float2 x = as_floats(low), y = as_floats(high);
    if (NORMED) {
      const float2 of_low = as_floats(gains.low), of_high = as_floats(gains.high);
      x = make_float2(x.x * factor * of_low.x, x.y * factor * of_low.y);
      y = make_float2(y.x * factor * of_high.x, y.y * factor * of_high.y);
    }
    low = as_pair(rotate_part(x.x, cosines.x, -y.x, sines.x), rotate_part(x.y, cosines.y, -y.y, sines.y));
    high = as_pair(rotate_part(y.x, cosines.x, x.x, sines.x), rotate_part(y.y, cosines.y, x.y, sines.y));
  }
  // Rotation of the queries of 64 rows. Made before they arrive, since all that it takes is there before the item.
  struct Rotation {
    static constexpr bool KEPT = Base::KEEPS_QUERIES;
    static constexpr int PIECES = D / 16;  // of 8 elements, of a half
    const float* angles[2];                // of a thread's two rows; of the row that it shares, if queries are kept
    float2 cosines[KEPT ? 1 : PIECES][2], sines[KEPT ? 1 : PIECES][2];
    Gains gains[KEPT ? 1 : PIECES] = {};

    DEVICE Rotation(const Operands& op, int first) {
      const int thread = threadIdx.x % 128, own = KEPT ? thread / 2 : thread / 32 * 16 + thread % 32 / 4;
      if (!KEPT && NORMED)
#pragma unroll
        for (int p = 0; p < PIECES; ++p) gains[p].load(op, p * 4 + thread % 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = min(first + own + r * 8, op.rows - 1);
        angles[r] = op.rope + (long long)min(max(__ldcg(op.position + row), 0), op.angles - 1) * D;
        if constexpr (!KEPT)
#pragma unroll
          for (int p = 0; p < PIECES; ++p) {
            const float2* const at = reinterpret_cast<const float2*>(angles[r] + p * 8) + thread % 4;
            cosines[p][r] = __ldcg(at), sines[p][r] = __ldcg(at + D / 4);
          }
      }
    }
    DEVICE void apply(const Operands& op, typename Base::Queries& queries) const {
      if constexpr (KEPT) {
        apply_kept(op);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float factor = 1.0f;
          if (NORMED) {
            float squares = 0.0f;
#pragma unroll
            for (int p = 0; p < 2 * PIECES; ++p) {
              const float2 x = as_floats(queries[p * 2 + r]);
              squares += x.x * x.x + x.y * x.y;
            }
            squares += __shfl_xor_sync(0xffffffff, squares, 1);
            squares += __shfl_xor_sync(0xffffffff, squares, 2);
            factor = rsqrtf(squares / D + op.eps);
          }
#pragma unroll
          for (int p = 0; p < PIECES; ++p)
            rotate(queries[p * 2 + r], queries[(p + PIECES) * 2 + r], cosines[p][r], sines[p][r], gains[p], factor);
        }
      }
    }
    // The same in the scratch: two threads share a row, and take its pieces in turn.
    DEVICE void apply_kept(const Operands& op) const {
      const int thread = threadIdx.x % 128, row = thread / 2;
      const auto address = [&](int piece) {
        return Base::kept_queries() + piece / 8 * 64 * 128 + row * 128 + (piece % 8 ^ row % 8) * 16;
      };
      float factor = 1.0f;
      if (NORMED) {
        float squares = 0.0f;
#pragma unroll 1
        for (int p = thread % 2; p < 2 * PIECES; p += 2) {
          const int4 bits = load_shared_128(address(p));
          const unsigned pairs[4] = {(unsigned)bits.x, (unsigned)bits.y, (unsigned)bits.z, (unsigned)bits.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 x = as_floats(pairs[i]);
            squares += x.x * x.x + x.y * x.y;
          }
        }
        squares += __shfl_xor_sync(0xffffffff, squares, 1);
        factor = rsqrtf(squares / D + op.eps);
      }
#pragma unroll 1
      for (int p = thread % 2; p < PIECES; p += 2) {
        int4 low = load_shared_128(address(p)), high = load_shared_128(address(p + PIECES));
        unsigned lows[4] = {(unsigned)low.x, (unsigned)low.y, (unsigned)low.z, (unsigned)low.w};
        unsigned highs[4] = {(unsigned)high.x, (unsigned)high.y, (unsigned)high.z, (unsigned)high.w};
        const float2* const at = reinterpret_cast<const float2*>(angles[0] + p * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Gains of_pair = {};
          if (NORMED) of_pair.load(op, p * 4 + i);
          rotate(lows[i], highs[i], __ldcg(at + i), __ldcg(at + i + D / 4), of_pair, factor);
        }
        store_shared_128(address(p), make_int4((int)lows[0], (int)lows[1], (int)lows[2], (int)lows[3]));
        store_shared_128(address(p + PIECES), make_int4((int)highs[0], (int)highs[1], (int)highs[2], (int)highs[3]));
      }
      fence_proxy_async();
      synchronise();
    }
  };

  // Clears values that do not count: they may be NaN, which a weight of 0 does not make zero.
  DEVICE static void clear(const Operands& op, int slot, const Blocks& blocks, const Visible& visible) {
    const int end = blocks.is_cached() ? blocks.cached : visible.high;
    const bool gaps = !blocks.is_cached() && visible.full > visible.low;
    if (blocks.start + BN <= end && !gaps) return;
#pragma unroll 1
    for (int piece = threadIdx.x; piece < BN * Base::WIDTH / 8; piece += THREADS) {
      const int r = piece / (Base::WIDTH / 8), c = piece % (Base::WIDTH / 8), row = blocks.start + r;
      if (row >= end || (gaps && (__ldcg(op.first + row) > row || !is_named(op, row))))
        store_shared_128(load_slot(slot) + c / 8 * PANEL_BYTES + r * 128 + c % 8 * 16, make_int4(0, 0, 0, 0));
    }
    fence_proxy_async();
    synchronise_block();
  }

  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    await(prefetch_full(stage.slot), stage.phase);  // from here on, data of the previous launch is visible
    const int top = Base::top_of(op, item), thread = threadIdx.x % 128;
    const int of_warp = uniform(warpgroup() * 64 + thread / 32 * 16);  // the first of its rows in the tile
    const Begins begins = begins_of(op, top);
    const Visible visible = begins.visible(), visible_to_warp = begins.visible(of_warp, of_warp + 16);
    typename Base::Rows rows;
    int begin[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      begin[r] = begins.row(of_warp + thread % 32 / 4 + r * 8);
      rows.peak[r] = minus_infinity(), rows.total[r] = 0.0f;
    }
    float accumulators[Base::WIDTH / 2], scores[BN / 2];
    unsigned weights[BN / 4];
#pragma unroll
    for (int i = 0; i < Base::WIDTH / 2; ++i) accumulators[i] = 0.0f;
    typename Base::Queries queries;
    const Rotation rotation(op, top + warpgroup() * 64);
    Base::take_queries(queries, stage);
    rotation.apply(op, queries);
    const int end = WARPGROUPS > 1 ? begins.visible(warpgroup() * 64, warpgroup() * 64 + 64).high : visible.high;
    // Turns scores of a block into weights: positions of a cache count for rows of its segment, rows of the chunk for
    // those from each row's first one to itself.
    const auto weigh = [&](const Blocks& blocks) {
      const int row = top + of_warp + thread % 32 / 4, start = blocks.start;
      bool all = start >= visible_to_warp.full && start <= top + of_warp + 1 - BN;
      if (blocks.is_cached())
        all =
            visible_to_warp.low == blocks.begin && visible_to_warp.full == blocks.begin && start + BN <= blocks.cached;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.row[r] = !blocks.is_cached() ? row + r * 8 : begin[r] == blocks.begin ? blocks.cached - 1 : -1;
        rows.begin[r] = blocks.is_cached() ? 0 : begin[r];
      }
      Base::softmax(scores, rows, start, all);
    };
    Blocks blocks;
    blocks.advance(op, begins, visible);
    int before = stage.slot;
    await_stage(stage);
    clear(op, before, blocks, visible);
    stage.advance();
    wgmma_fence();
    Base::multiply(scores, queries, before);
    wgmma_wait<0>();
    settle(scores);
    weigh(blocks);
    Base::round(weights, scores);
    // The step stands in the loop's head: with a break instead, ptxas takes all consumers of a launch for divergent,
    // and branches around each load of products' epilogues (benchmarks/notes/decode.md).
    blocks.advance(op, begins, visible);
#pragma unroll 1
    for (; blocks.is_cached() || blocks.start < end; blocks.advance(op, begins, visible)) {
      await_stage(stage);
      clear(op, stage.slot, blocks, visible);
      wgmma_fence();
      Base::multiply(scores, queries, stage.slot);
      Base::accumulate(accumulators, weights, before);
      wgmma_wait<1>();
      settle(scores);
      weigh(blocks);
      // With one warpgroup ptxas takes the trap for a divergent path, and serialises all products (warning C7518).
      if (WARPGROUPS > 1) pin_before_wait(rows.total[0] + rows.total[1]);
      wgmma_wait<0>();
      settle(accumulators);
      release(stage, before);
#pragma unroll
      for (int i = 0; i < Base::WIDTH / 2; ++i) accumulators[i] *= rows.fade[i / 2 % 2];
      Base::round(weights, scores);
      before = stage.slot;
      stage.advance();
    }
    wgmma_fence();
    Base::accumulate(accumulators, weights, before);
    wgmma_wait<0>();
    settle(accumulators);
    release(stage, before);
    // Blocks that only rows of the other warpgroup see.
#pragma unroll 1
    for (; WARPGROUPS > 1 && !blocks.is_end(visible); blocks.advance(op, begins, visible)) {
      await_stage(stage);
      clear(op, stage.slot, blocks, visible);
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
    const int row = top + of_warp + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < Base::WIDTH / 2; ++i) {
      const int r = i / 2 % 2;
      accumulators[i] = begin[r] <= row + r * 8 ? accumulators[i] * rows.total[r] : 0.0f;
    }
    Base::store(op, item, top + warpgroup() * 64, accumulators);
  }
};
