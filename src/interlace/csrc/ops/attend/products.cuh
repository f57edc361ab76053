// Attention of one new token a sequence over its KV cache on tensor cores: 16-bit elements, heads of 64 to 256 elements.
//
// As attend.cuh, keys and values of a tile's share come through the ring, some positions to a stage. Here tensor maps
// load them, in panels of 64 elements: rows of 128 bytes with the 128-byte swizzle, so that eight rows of a matrix lie in
// different banks. A box has 32 positions and all panels of a head, or 64 of one panel, which are 8 KiB; smaller loads
// are slower. A head of 80 elements ends inside its second panel, of which nothing is read after it, and has a load for
// each panel. Positions of a box after the share's last one do not count. Where other ops of the launch have large load slots, of which attention loads nothing, values go there (APART), and the ring holds more
// of the cache while queries are awaited.
//
// A warp has up to eight heads of the group and takes 16 positions at a time; it keeps an online softmax of its own and
// waits only for the stage. All that it does with 16 positions is one chain of dependent instructions; where a share is
// the whole cache, two such chains run side by side:
//
//   matrices of keys and values    about 35 cycles, from shared memory into registers
//   products with the queries      70: two products one after the other. The second eight rows of queries are what
//                                  rounding took from the first, and the sum of both is as exact as float32
//   weights                        80: sums, the largest of a lane, a vote, exponents, pairs
//   products with the values       nothing waits for their accumulators
//
// In products with values heads are columns: weights lie as scores did, rounded as in FlashAttention (their total is
// not), and 16 elements of a value are rows. Exponents are counted from a peak that may be out of date by LAG, so that
// lanes seldom exchange theirs and sums are seldom rescaled (as in FlashAttention-4; Dao, Hot Chips 2025).
//
// Heads of more than 128 elements (WIDE) leave no registers for anything but sums: a warp keeps its queries in the part
// of the scratch that later takes its sums, loads a block's matrices by fours, and reads rows where they are used.
//
// The warp with the fewest positions begins with this step's own key and value, which were never in the cache. At the
// end the warps are joined through shared memory, once.
#pragma once
#include "share_equal.cuh"
#include "../mma.cuh"
#include "../pages.cuh"
#include "../panels.cuh"
#include "../rows.cuh"
#include "../../ring/streamed.cuh"
#include "../../ll.cuh"

constexpr int BOX = D > 64 || PAGE % 64 || BLOCK % 64 ? 32 : 64;  // positions of a bulk load
constexpr int BLOCK_ROWS = 16;                                    // of a matrix product
// Blocks that a warp takes at once, as independent chains of instructions; a split has few.
constexpr bool WIDE = D > 128;
constexpr int BLOCKS = WHOLE && !WIDE ? 2 : 1, AT_ONCE = BLOCKS * BLOCK_ROWS;
constexpr int BLOCK_BYTES = BLOCK_ROWS * 128, PANEL_BYTES = BOX * 128, BOX_BYTES = (D + 63) / 64 * PANEL_BYTES;
// Boxes of a stage: with keys and values in the prefetch slot, or, where load slots are large, with values there.
constexpr int BOXES_TOGETHER = PREFETCH_BYTES / (2 * BOX_BYTES);
constexpr int SMALLER_BYTES = LOAD_BYTES < PREFETCH_BYTES ? LOAD_BYTES : PREFETCH_BYTES;
constexpr int BOXES_APART = LOAD_BYTES % 1024 ? 0 : SMALLER_BYTES / BOX_BYTES;  // boxes begin at multiples of 1024
constexpr bool APART = BOXES_APART > BOXES_TOGETHER;
constexpr int BOXES = APART ? BOXES_APART : BOXES_TOGETHER, STAGE_ROWS = BOXES * BOX;
constexpr int HEADS_AT_ONCE = GROUP < 8 ? GROUP : 8;
constexpr int SETS = (GROUP + 7) / 8, WARPS_PER_SET = WARPS / SETS;
constexpr int PIECES = D / 8;  // of a row, 8 elements each; a lane has two neighbours of a piece
constexpr int STEPS = D / 16, STEPS_AT_ONCE = WIDE ? 4 : STEPS;  // products along a head, and matrices loaded for them
constexpr int CHAINS = WIDE ? 2 : D / 32;                        // independent chains of two products
constexpr int PITCH = D + 4;  // floats of a head in the scratch, such that lanes store to different banks
constexpr int PARTIAL_FLOATS = WARPS * HEADS_AT_ONCE * PITCH;  // of the scratch, for the partial sums of all warps
// A header of a stage: the share, cosines and sines, then the rows of q, k and v.
constexpr int SHARE_BYTES = 32, ANGLE_BYTES = 4 * D, ROW_BYTES = 2 * D;
static_assert(sizeof(Share) <= SHARE_BYTES, "a header has room for it");
constexpr float LAG = 8.0f;  // most that a score exceeds the peak by; 16-bit weights have room for it

DEVICE unsigned values_in(int slot) {
  return APART ? load_slot(slot) : prefetch_slot(slot) + BOXES_TOGETHER * BOX_BYTES;
}
// Loads of an item for the ring (ring/streamed.cuh): boxes of keys and values, and the header.
struct Loads {
  static constexpr int STAGE_BYTES = 2 * STAGE_ROWS / BOX * BOX_BYTES;
  const Arguments& a;
  const int pages;  // of the pool, loaded once
  Share share;
  int head;
  // Paged caches: entries of the block table, one in each lane from `first` on, a multiple of 32, and those of a
  // stage's boxes. A load takes longer than a stage, so it is for 32 pages.
  mutable int first = -1, entry = 0, entries[PAGE ? BOXES : 1] = {};

  DEVICE Loads(const Tile& tile, const Arguments& a)
      : a(a), pages(PAGE ? a.PAGES : 0), share(share_of(tile, a)), head(tile.j) {}
  template <class A>
  DEVICE Loads(const Tile& tile, const A& a, int at)
      : a(a), pages(PAGE ? a.PAGES : 0), share(share_of(tile, a, at)), head(tile.j) {}
  DEVICE static int known(int sequence, const Arguments& a) { return position_in(sequence, a); }
  template <class A> DEVICE void look_up(const A& a, int n) const {
    if constexpr (PAGE > 0) {
#pragma unroll
      for (int b = 0; b < BOXES; ++b) {
        const int page = (share.low + n * STAGE_ROWS + b * BOX) / max(PAGE, 1), lane = threadIdx.x % 32;
        if (b >= boxes(n)) continue;
        if (first != page / 32 * 32) {
          first = page / 32 * 32;
          entry = first + lane < pages_of_sequence(a) ? entry_of(a, share.sequence, first + lane) : 0;
        }
        entries[b] = __shfl_sync(0xffffffff, entry, page % 32);
      }
    }
  }
  DEVICE int stages() const { return max((share.high - share.low + STAGE_ROWS - 1) / STAGE_ROWS, 1); }
  DEVICE int boxes(int n) const { return (min(share.high - share.low - n * STAGE_ROWS, STAGE_ROWS) + BOX - 1) / BOX; }
  DEVICE unsigned bytes(int n) const {  // called by all lanes, before one of them loads
    look_up(a, n);
    return 2 * BOX_BYTES * boxes(n);
  }
  DEVICE void load(int n, int slot, unsigned barrier) const {
    // A matrix of the tensor map is the cache of one head, or a page of it.
    const int count = boxes(n), low = share.low + n * STAGE_ROWS;
    unsigned to_keys = prefetch_slot(slot), to_values = values_in(slot);
    if constexpr (PAGE == 0) {
#pragma unroll 1
      for (int b = 0; b < count; ++b)
        load_box(to_keys, to_values, low + b * BOX, share.sequence * HEADS + head, barrier);
    } else {
#pragma unroll
      for (int b = 0; b < BOXES; ++b)
        if (b < count) {
          const int page = max(min(entries[b], pages - 1), 0);
          load_box(to_keys, to_values, (low + b * BOX) % max(PAGE, 1), page * HEADS + head, barrier);
        }
    }
  }
  DEVICE void load_box(unsigned& to_keys, unsigned& to_values, int row, int matrix, unsigned barrier) const {
    load_panels<D>(to_keys, PANEL_BYTES, a.k_cache_boxes, row, matrix, barrier, evict_first());
    load_panels<D>(to_values, PANEL_BYTES, a.v_cache_boxes, row, matrix, barrier, evict_first());
    to_keys += BOX_BYTES, to_values += BOX_BYTES;
  }
  // The header, unless q, k and v are LL tensors.
  DEVICE void note(unsigned header) const {
    store_shared_128(header, make_int4(share.sequence, share.at, share.low, share.high));
    store_shared_word(header + 16, share.own);
  }
  DEVICE unsigned early_bytes() const { return ANGLE_BYTES; }
  DEVICE void load_early(unsigned header, unsigned barrier) const {
    bulk_load(header + SHARE_BYTES, a.rope + (long long)share.at * D, ANGLE_BYTES, barrier);
  }
  static constexpr int LATE = 3, LATE_BEGIN = SHARE_BYTES + ANGLE_BYTES;  // rows of q, k and v
  DEVICE static constexpr unsigned late_bytes(int n) { return n == 0 ? GROUP * ROW_BYTES : ROW_BYTES; }
  DEVICE const void* late_at(int n) const {
    const long long row = ((long long)share.sequence * HEADS + head) * D;
    return n == 0 ? a.q + row * GROUP : n == 1 ? a.k + row : a.v + row;
  }
};

constexpr decltype(Arguments::k_cache) STORED = nullptr;  // an element of the cache's type
template <class T> DEVICE float2 widened_pair(unsigned pair, const T*) {
  return make_float2(widened(T{(unsigned short)pair}), widened(T{(unsigned short)(pair >> 16)}));
}
// Loads two neighbours of each 8 elements of a row.
template <class T> DEVICE void load_row_pairs(unsigned (&to)[PIECES], const T* row, int which) {
#pragma unroll
  for (int p = 0; p < PIECES; ++p) to[p] = __ldcg(reinterpret_cast<const unsigned*>(row) + p * 4 + which);
}
// Two neighbours of each 8 elements of a row of shared memory: in registers, or, if WIDE, where they are.
struct RowPairs {
  const unsigned* row;
  unsigned held[WIDE ? 1 : PIECES];
  DEVICE void load(const void* from, int which) {
    row = static_cast<const unsigned*>(from) + which;
    if constexpr (!WIDE) {
#pragma unroll
      for (int p = 0; p < PIECES; ++p) held[p] = row[p * 4];
    }
  }
  DEVICE unsigned operator[](int p) const {
    if constexpr (WIDE) return row[p * 4];
    else return held[p];
  }
};
template <bool IS_LL, class A> struct LLRows {
  DEVICE LLRows(const Tile& tile, const A& a, long long head) {}
};
// Rows of q, k and v that are LL words of two elements: all threads poll them, and store them to the scratch.
template <class A> struct LLRows<true, A> {
  static constexpr int WIDTH = D / 2, PAIRS = (GROUP + 2) * WIDTH / 2, EACH = (PAIRS + THREADS - 1) / THREADS;
  const Tile& tile;
  const A& a;
  const long long head;
  Words<2> pairs[EACH];
  DEVICE LLRows(const Tile& tile, const A& a, long long head) : tile(tile), a(a), head(head) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      pairs[n].wanted = publication(tile, number(n), a.publications);
      pairs[n].forget();
      if (pair(n) >= PAIRS) pairs[n].skip(0), pairs[n].skip(1);
    }
    ask();
  }
  DEVICE static int pair(int n) { return n * THREADS + thread(); }
  DEVICE static int row(int n) { return pair(n) / (WIDTH / 2); }
  DEVICE unsigned number(int n) const {
    return row(n) < GROUP ? a.q_number : row(n) == GROUP ? a.k_number : a.v_number;
  }
  DEVICE void ask() {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const auto* const of =
          row(n) < GROUP ? a.q + (head * GROUP + row(n)) * WIDTH : (row(n) == GROUP ? a.k : a.v) + head * WIDTH;
      pairs[n].ask_two([&](int) { return of + pair(n) % (WIDTH / 2) * 2; });
    }
  }
  DEVICE void poll(int set, RowPairs& query, RowPairs& key, RowPairs& value) {
    unsigned* const rows = reinterpret_cast<unsigned*>(scratch<float>() + PARTIAL_FLOATS);
    Patience patience;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
#pragma unroll 1
      for (; !pairs[n].came(); ask())
        if (patience.over(tile, pairs[n].wanted, number(n))) break;
      if (pair(n) < PAIRS) rows[pair(n) * 2] = pairs[n].data(0), rows[pair(n) * 2 + 1] = pairs[n].data(1);
    }
    synchronise_block();
    query.load(rows + min(set * 8 + lane_of() / 4, GROUP - 1) * WIDTH, lane_of() % 4);
    key.load(rows + GROUP * WIDTH, lane_of() % 4), value.load(rows + (GROUP + 1) * WIDTH, lane_of() / 8);
  }
};
// Sum and maximum over the four lanes that have a head.
DEVICE float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
DEVICE float max_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// A lane's cosines and sines of the rotary embedding.
struct Angles {
  const float2* row;
  float2 cosines[WIDE ? 1 : PIECES / 2], sines[WIDE ? 1 : PIECES / 2];
  DEVICE void load(const float* from) {
    row = reinterpret_cast<const float2*>(from) + lane_of() % 4;
    if constexpr (!WIDE) {
#pragma unroll
      for (int p = 0; p < PIECES / 2; ++p) cosines[p] = at(p), sines[p] = at(p + PIECES / 2);
    }
  }
  DEVICE float2 at(int p) const { return q_words ? __ldcg(row + p * 4) : row[p * 4]; }
  DEVICE void rotate(float2& low, float2& high, int p) const {
    const float2 x = low, y = high, c = WIDE ? at(p) : cosines[p], s = WIDE ? at(p + PIECES / 2) : sines[p];
    low = make_float2(rotate_part(x.x, c.x, -y.x, s.x), rotate_part(x.y, c.y, -y.y, s.y));
    high = make_float2(rotate_part(y.x, c.x, x.x, s.x), rotate_part(y.y, c.y, x.y, s.y));
  }
};
// RMS norm of a head with a weight, if the model has one.
template <class T> struct Norm {
  unsigned pairs[WIDE ? 1 : PIECES] = {};  // initialised, or their values would stay live from item to item
  const T* weight;
  DEVICE Norm(const T* from) : weight(from) {
    if constexpr (!WIDE) {
      if (weight) load_row_pairs(pairs, weight, lane_of() % 4);
    }
  }
  // The factor of all elements of a head.
  template <class X> DEVICE float factor(const RowPairs& head, const X* of) const {
    if (!weight) return 1.0f;
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      const float2 x = widened_pair(head[p], of);
      squares += x.x * x.x + x.y * x.y;
    }
    return rsqrtf(sum_of_four(squares) / D + EPS);
  }
  DEVICE float2 apply(float2 x, int p, float factor) const {
    if (!weight) return make_float2(x.x * factor, x.y * factor);
    const unsigned pair =
        WIDE ? __ldcg(reinterpret_cast<const unsigned*>(weight) + p * 4 + lane_of() % 4) : pairs[WIDE ? 0 : p];
    const float2 w = widened_pair(pair, weight);
    return make_float2(x.x * factor * w.x, x.y * factor * w.y);
  }
};
template <class T> DEVICE Norm<T> norm_of(const T* weight) { return {weight}; }
// Normalises and rotates a lane's elements of a head, times a factor, and calls f with piece p and with the piece that
// is rotated together with it. The result has no array: there are no registers for it.
template <class T, class N, class F>
DEVICE void transform(const RowPairs& head, const T* of, const N& norm, const Angles& angles, float by, F f) {
  const float factor = norm.factor(head, of) * by;
#pragma unroll
  for (int p = 0; p < PIECES / 2; ++p) {
    float2 low = norm.apply(widened_pair(head[p], of), p, factor);
    float2 high = norm.apply(widened_pair(head[p + PIECES / 2], of), p + PIECES / 2, factor);
    angles.rotate(low, high, p);
    f(p, low), f(p + PIECES / 2, high);
  }
}

// Offset of the 16-byte row that this lane addresses for ldmatrix, of a block's positions up to `last`.
DEVICE unsigned matrix_row(int last) {
  const int row = min(lane_of() / 16 * 8 + lane_of() % 8, last);
  return row * 128 + ((lane_of() / 8 % 2 ^ row & 7) << 4);
}

// Online softmax of a warp for the heads of its set. Lane l has peak and total of head l / 4, and sums of weighted
// values of elements l / 4 and l / 4 + 8 of each 16, of heads 2 (l % 4) and the next one.
struct OnlineSoftmax {
  unsigned queries[WIDE ? 1 : STEPS][4];
  unsigned* kept;                     // this lane's queries, if WIDE: 16 bytes a step, next to those of other lanes
  float sums[STEPS][4], peak, total;  // of this lane's positions
  float largest;                      // score of this lane's positions

  // Lanes without a head have the last one's queries.
  DEVICE OnlineSoftmax() {
    if constexpr (WIDE) {
      unsigned* const of_warp = scratch<unsigned>() + warp_of() * HEADS_AT_ONCE * PITCH;
      kept = of_warp + (min(lane_of() / 4, HEADS_AT_ONCE - 1) * 4 + lane_of() % 4) * 4;
    }
  }
  DEVICE void set_query(int p, float2 query) {  // two elements of piece p, and their rounding errors
    const unsigned pair = as_pair(query.x, query.y);
    const float2 stored = widened_pair(pair, STORED);
    const unsigned error = as_pair(query.x - stored.x, query.y - stored.y);
    if constexpr (!WIDE) {
      queries[p / 2][p % 2 * 2] = pair, queries[p / 2][p % 2 * 2 + 1] = error;
    } else if (lane_of() / 4 < HEADS_AT_ONCE) {
      *reinterpret_cast<unsigned long long*>(kept + p / 2 * HEADS_AT_ONCE * 16 + p % 2 * 2) =
          (unsigned long long)error << 32 | pair;
    }
  }
  DEVICE void load_queries(unsigned (&to)[4], int step) const {
    const uint4 pairs = *reinterpret_cast<const uint4*>(kept + step * HEADS_AT_ONCE * 16);
    to[0] = pairs.x, to[1] = pairs.y, to[2] = pairs.z, to[3] = pairs.w;
  }
  // Counts exponents from the largest score so far.
  DEVICE void raise(float new_peak) {
    new_peak = max_of_four(fmaxf(peak, new_peak));
    const float fade = power_of_two(peak - new_peak);
    peak = new_peak, total *= fade;
    const int head = lane_of() % 4 * 8;  // the lane that has its peak
    const float even = __shfl_sync(0xffffffff, fade, head), odd = __shfl_sync(0xffffffff, fade, head + 4);
#pragma unroll
    for (int p = 0; p < STEPS; ++p) sums[p][0] *= even, sums[p][1] *= odd, sums[p][2] *= even, sums[p][3] *= odd;
  }
  // Adds BLOCKS blocks of keys and values, the first `count` of whose positions are the share's, at least one. `at`:
  // this lane's row of a block.
  DEVICE void add(unsigned keys, unsigned values, unsigned at, int count) {
    const int lane = lane_of();
    float weights[BLOCKS][4], block_peak = NOTHING;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      float scores[CHAINS][2][4] = {};  // 8 positions each
#pragma unroll
      for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
        unsigned rows[STEPS_AT_ONCE][4];
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS)
            load_matrices(rows[n], (keys + b * BLOCK_BYTES + at ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS) {
            if constexpr (WIDE) load_queries(queries[0], p);
#pragma unroll
            for (int half = 0; half < 2; ++half)
              multiply(scores[p % CHAINS][half], queries[WIDE ? 0 : p], rows[n][half * 2], rows[n][half * 2 + 1]);
          }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[0][i / 2][i % 2] + scores[0][i / 2][i % 2 + 2];
#pragma unroll
        for (int c = 1; c < CHAINS; ++c) score += scores[c][i / 2][i % 2] + scores[c][i / 2][i % 2 + 2];
        weights[b][i] = b * BLOCK_ROWS + i / 2 * 8 + lane % 4 * 2 + i % 2 < count ? score : NOTHING;
        block_peak = fmaxf(block_peak, weights[b][i]);
      }
    }
    // Scores after the last position do not count, but a value there may be NaN, which no weight makes zero: the last
    // value is read again instead.
    unsigned from[BLOCKS], columns[BLOCKS][STEPS_AT_ONCE][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) from[b] = b * BLOCK_BYTES + at;
    if (count < AT_ONCE) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const int last = min(count - 1 - b * BLOCK_ROWS, BLOCK_ROWS - 1);
        from[b] = last < 0 ? matrix_row(0) : b * BLOCK_BYTES + matrix_row(last);
      }
    }
    const auto load_columns = [&](int first) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS)
            load_transposed(columns[b][n], (values + from[b] ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
    };
    load_columns(0);
    if (!WHOLE) largest = fmaxf(largest, block_peak);
    if (__any_sync(0xffffffff, block_peak > peak + LAG)) raise(block_peak);
    unsigned pairs[BLOCKS][2];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float first = power_of_two(weights[b][i] - peak), second = power_of_two(weights[b][i + 1] - peak);
        total += first + second;
        pairs[b][i / 2] = as_pair(first, second);
      }
#pragma unroll
    for (int first = 0; first < STEPS; first += STEPS_AT_ONCE) {
      if (first) load_columns(first);
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
        for (int n = 0; n < STEPS_AT_ONCE; ++n)
          if (const int p = first + n; p < STEPS) multiply(sums[p], columns[b][n], pairs[b][0], pairs[b][1]);
    }
  }
  // Stores for each head D sums, the peak and the total.
  DEVICE void store(float* heads) {
    if (!WHOLE) raise(largest);  // combine.cuh expects the largest score as the peak of a split
    const float whole = sum_of_four(total);
    const int lane = lane_of();
    if constexpr (WIDE) __syncwarp();  // sums go where queries were
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int head = lane % 4 * 2 + odd;
      if (head >= HEADS_AT_ONCE) continue;
#pragma unroll
      for (int p = 0; p < PIECES; ++p) heads[head * PITCH + p * 8 + lane / 4] = sums[p / 2][p % 2 * 2 + odd];
    }
    if (lane % 4 || lane / 4 >= HEADS_AT_ONCE) return;
    heads[lane / 4 * PITCH + D] = peak, heads[lane / 4 * PITCH + D + 1] = whole;
  }
};

DEVICE void put_pair(float* at, float low, float high) { *reinterpret_cast<float2*>(at) = make_float2(low, high); }
template <class T> DEVICE void put_pair(T* at, float low, float high) {
  *reinterpret_cast<unsigned*>(at) = as_pair(low, high);
}

template <class A> DEVICE void attend_with(const Tile& tile, const A& a, Stream& stream) {
  const int set = warp_of() % SETS, which = warp_of() / SETS;
  // LL words are polled from here on; the tile's sequence is i then. Every split loads the own key and value, as the
  // access map says, but only the last one uses them.
  LLRows<q_words, A> rows(tile, a, (long long)tile.i * HEADS + tile.j);
  const unsigned char* const header = stream.header();
  Share share;
  if constexpr (q_words) share = share_of(tile, a);
  else share = *reinterpret_cast<const Share*>(header);
  const bool own = share.own && which == WARPS_PER_SET - 1;
  Angles angles;
  angles.load(q_words ? a.rope + (long long)share.at * D : reinterpret_cast<const float*>(header + SHARE_BYTES));
  const auto q_norm = norm_of(a.q_norm), k_norm = norm_of(a.k_norm);

  RowPairs query_pairs, key_pairs = {}, value_pairs = {};
  const int lane = lane_of();
  if constexpr (q_words) rows.poll(set, query_pairs, key_pairs, value_pairs);
  stream.next();
  if constexpr (q_words) {
    if (!own) value_pairs = {};
  } else {
    const unsigned char* const rows_at = header + SHARE_BYTES + ANGLE_BYTES;
    query_pairs.load(rows_at + min(set * 8 + lane / 4, GROUP - 1) * ROW_BYTES, lane % 4);
    if (own) {
      key_pairs.load(rows_at + GROUP * ROW_BYTES, lane % 4);
      value_pairs.load(rows_at + (GROUP + 1) * ROW_BYTES, lane / 8);
    }
  }
  unsigned key[PIECES] = {};  // as later steps will read it
  if (own) transform(key_pairs, STORED, k_norm, angles, 1.0f, [&](int p, float2 x) { key[p] = as_pair(x.x, x.y); });
  OnlineSoftmax softmax;
  float score = 0.0f;
  transform(query_pairs, STORED, q_norm, angles, SCALE * rsqrtf((float)D), [&](int p, float2 query) {
    const float2 stored = widened_pair(key[p], STORED);
    score += query.x * stored.x + query.y * stored.y;
    softmax.set_query(p, query);
  });
  score = sum_of_four(score);
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const float2 value = widened_pair(WIDE && !own ? 0 : value_pairs[p], STORED);
    softmax.sums[p / 2][p % 2 * 2] = softmax.sums[p / 2][p % 2 * 2 + 1] = lane / 4 % 2 ? value.y : value.x;
  }
  softmax.largest = softmax.peak = own ? score : NOTHING, softmax.total = own && lane % 4 == 0 ? 1.0f : 0.0f;
  if constexpr (WIDE) __syncwarp();  // other lanes read queries
  unsigned row = matrix_row(BLOCK_ROWS - 1);
  asm volatile("" : "+r"(row));  // once: the compiler would compute it anew for each stage
  int turn = which;              // this warp's next block of the stage
#pragma unroll 1
  for (int low = share.low;;) {
    const int count = min(share.high - low, STAGE_ROWS);
    const unsigned keys = stream.address(), values = values_in(stream.slot());
#pragma unroll 1
    for (; which < WARPS_PER_SET && turn * AT_ONCE < count; turn += WARPS_PER_SET) {
      const unsigned block = (unsigned)turn * BLOCKS, of_box = BOX / BLOCK_ROWS;
      const unsigned from = block / of_box * BOX_BYTES + block % of_box * BLOCK_BYTES;
      softmax.add(keys + from, values + from, row, count - turn * AT_ONCE);
    }
    turn -= STAGE_ROWS / AT_ONCE;
    stream.done();
    low += STAGE_ROWS;
    if (low >= share.high) break;
    stream.next();
  }
  float* const partials = scratch<float>();
  constexpr int WARP_FLOATS = HEADS_AT_ONCE * PITCH, STEP = SETS * WARP_FLOATS;  // to the next warp of the same heads
  if (which < WARPS_PER_SET) softmax.store(partials + warp_of() * WARP_FLOATS);
  synchronise_block();
  const long long part = (((long long)tile.i * HEADS + tile.j) * SPLITS + tile.l) * GROUP;
#pragma unroll
  for (int n = thread(); n < GROUP * D / 2; n += THREADS) {
    const int g = n / (D / 2), d = n % (D / 2) * 2;
    const float* const of_head = partials + g / 8 * WARP_FLOATS + g % 8 * PITCH;
    float peak = NOTHING, total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS_PER_SET; ++w) peak = fmaxf(peak, of_head[w * STEP + D]);
#pragma unroll
    for (int w = 0; w < WARPS_PER_SET; ++w) {
      const float fade = power_of_two(of_head[w * STEP + D] - peak);
      const float2 more = *reinterpret_cast<const float2*>(of_head + w * STEP + d);
      total += fade * of_head[w * STEP + D + 1];
      sum.x += fade * more.x, sum.y += fade * more.y;
    }
    const float by = WHOLE ? __fdividef(1.0f, total) : 1.0f;
    if constexpr (out_words) {
      const unsigned epoch = publication(tile, a.out_number, a.publications);
      const long long at = (part + g) * D + d;
      if constexpr (WHOLE) {
        store_word(a.out + at / 2, as_pair(sum.x * by, sum.y * by), epoch);
      } else {
        store_two_words(a.out + at, sum.x, sum.y, epoch);
        if (d == 0) {
          store_word(a.peak + part + g, __float_as_uint(total > 0.0f ? peak : __int_as_float(0xff800000)), epoch);
          store_word(a.total + part + g, __float_as_uint(total), epoch);
        }
      }
    } else {
      put_pair(a.out + (part + g) * D + d, sum.x * by, sum.y * by);
    }
    if constexpr (!WHOLE && !out_words) {
      if (d == 0) {
        a.peak[part + g] = total > 0.0f ? peak : __int_as_float(0xff800000);  // minus infinity
        a.total[part + g] = total;
      }
    }
  }
  if constexpr (out_words) note_words(tile, a);
}
DEVICE void attend_tile(const Tile& tile, const Arguments& a, Stream& stream) { attend_with(tile, a, stream); }
