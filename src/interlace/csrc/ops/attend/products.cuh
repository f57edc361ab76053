// Attention over a KV cache on tensor cores (kernels/attend/products_cuda.py).
#pragma once

constexpr int BOX = 32, BLOCK_ROWS = 16;  // positions that come at once, and of a matrix product
// A warp takes so many blocks at once, whose chains do not wait for each other. A split has few.
constexpr int BLOCKS = WHOLE ? BOX / BLOCK_ROWS : 1, AT_ONCE = BLOCKS * BLOCK_ROWS;
constexpr int BLOCK_BYTES = BLOCK_ROWS * 128, PANEL_BYTES = BOX * 128, BOX_BYTES = D / 64 * PANEL_BYTES;
// Nothing else lies in the slot of dependent operands: where it is large, values do.
constexpr int BOXES_TOGETHER = PREFETCH_BYTES / (2 * BOX_BYTES);
constexpr int SMALLER_BYTES = LOAD_BYTES < PREFETCH_BYTES ? LOAD_BYTES : PREFETCH_BYTES;
constexpr int BOXES_APART = LOAD_BYTES % 1024 ? 0 : SMALLER_BYTES / BOX_BYTES;  // slots lie where boxes may
constexpr bool APART = BOXES_APART > BOXES_TOGETHER;
constexpr int BOXES = APART ? BOXES_APART : BOXES_TOGETHER, STAGE_ROWS = BOXES * BOX;
constexpr int HEADS_AT_ONCE = GROUP < 8 ? GROUP : 8;
constexpr int SETS = (GROUP + 7) / 8, WARPS_OF_SET = WARPS / SETS;
constexpr int PIECES = D / 8;   // of a row; a lane has two neighbours of each
constexpr int CHAINS = D / 32;  // of products that do not wait for each other, of two
constexpr int PITCH = D + 4;    // floats of a head in the scratch: lanes that store their sums meet different banks
constexpr int LEFT_FLOATS = WARPS * HEADS_AT_ONCE * PITCH;  // of the scratch, for the sums of all warps
// Of a header: the share, cosines and sines, and each of the rows of q, k and v.
constexpr int SHARE_BYTES = 32, ANGLE_BYTES = 4 * D, ROW_BYTES = 2 * D;
static_assert(sizeof(Share) <= SHARE_BYTES, "a header has room for it");
constexpr float LAG = 8.0f;  // a score is above the peak by at most so much, which 16 bits of a weight have room for

DEVICE unsigned values_in(int slot) {
  return APART ? load_slot(slot) : prefetch_slot(slot) + BOXES_TOGETHER * BOX_BYTES;
}
struct Loads {
  static constexpr int STAGE_BYTES = 2 * STAGE_ROWS / BOX * BOX_BYTES;
  const Arguments& a;
  const int pages;  // of the pool, which each stage would ask memory for anew
  Share share;
  int head;
  // Where caches lie in pages, entries of the table: one in each lane, from a multiple of 32 on, and those of a stage's
  // boxes. An answer takes longer than a stage, so it is for 32 pages.
  mutable int first = -1, mine = 0, entries[PAGE ? BOXES : 1] = {};

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
          mine = first + lane < pages_of_sequence(a) ? entry_of(a, share.sequence, first + lane) : 0;
        }
        entries[b] = __shfl_sync(0xffffffff, mine, page % 32);
      }
    }
  }
  DEVICE int stages() const { return max((share.high - share.low + STAGE_ROWS - 1) / STAGE_ROWS, 1); }
  DEVICE int boxes(int n) const { return (min(share.high - share.low - n * STAGE_ROWS, STAGE_ROWS) + BOX - 1) / BOX; }
  DEVICE unsigned bytes(int n) const {  // all lanes ask, before one loads
    look_up(a, n);
    return 2 * BOX_BYTES * boxes(n);
  }
  DEVICE void load(int n, int slot, unsigned barrier) const {
    // Matrices are caches of one head, or pages of it.
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
#pragma unroll
    for (int d = 0; d < D; d += 64, to_keys += PANEL_BYTES, to_values += PANEL_BYTES) {
      tma_load_3d(to_keys, a.k_cache_boxes, d, row, matrix, barrier, evict_first());
      tma_load_3d(to_values, a.v_cache_boxes, d, row, matrix, barrier, evict_first());
    }
  }
  // Where tokens are no words: what a tile begins with.
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
// Of each 8 elements of a row two neighbours.
template <class T> DEVICE void load_row_pairs(unsigned (&to)[PIECES], const T* row, int which) {
#pragma unroll
  for (int p = 0; p < PIECES; ++p) to[p] = __ldcg(reinterpret_cast<const unsigned*>(row) + p * 4 + which);
}
DEVICE void load_shared_pairs(unsigned (&to)[PIECES], const unsigned char* row, int which) {
#pragma unroll
  for (int p = 0; p < PIECES; ++p) to[p] = reinterpret_cast<const unsigned*>(row)[p * 4 + which];
}
template <bool AS_WORDS, class A> struct Rows {
  DEVICE Rows(const Tile& tile, const A& a, long long head) {}
};
// The same of words, each of two elements, that all threads poll and leave for each other in the scratch: of the heads
// of q, and of those of k and v.
template <class A> struct Rows<true, A> {
  static constexpr int WIDTH = D / 2, PAIRS = (GROUP + 2) * WIDTH / 2, EACH = (PAIRS + THREADS - 1) / THREADS;
  const Tile& tile;
  const A& a;
  const long long head;
  Words<2> pairs[EACH];
  DEVICE Rows(const Tile& tile, const A& a, long long head) : tile(tile), a(a), head(head) {
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
  DEVICE void poll(int set, unsigned (&queries)[PIECES], unsigned (&keys)[PIECES], unsigned (&values)[PIECES]) {
    unsigned* const rows = reinterpret_cast<unsigned*>(scratch<float>() + LEFT_FLOATS);
    Patience patience;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
#pragma unroll 1
      for (; !pairs[n].came(); ask())
        if (patience.over(tile, pairs[n].wanted, number(n))) break;
      if (pair(n) < PAIRS) rows[pair(n) * 2] = pairs[n].data(0), rows[pair(n) * 2 + 1] = pairs[n].data(1);
    }
    synchronise_block();
    const unsigned* const mine = rows + min(set * 8 + lane_of() / 4, GROUP - 1) * WIDTH;
    const unsigned *const key = rows + GROUP * WIDTH, *const value = key + WIDTH;
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      queries[p] = mine[p * 4 + lane_of() % 4];
      keys[p] = key[p * 4 + lane_of() % 4], values[p] = value[p * 4 + lane_of() / 8];
    }
  }
};
// Sums and largest numbers of the four lanes that have a head.
DEVICE float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}
DEVICE float most_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// A lane's cosines and sines.
struct Angles {
  float2 cosines[PIECES / 2], sines[PIECES / 2];
  DEVICE void load(const float* row) {
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) {
      const float2* const at = reinterpret_cast<const float2*>(row) + p * 4 + lane_of() % 4;
      cosines[p] = q_words ? __ldcg(at) : at[0], sines[p] = q_words ? __ldcg(at + D / 4) : at[D / 4];
    }
  }
  DEVICE void rotate(float2& low, float2& high, int p) const {
    const float2 x = low, y = high, c = cosines[p], s = sines[p];
    low = make_float2(turned(x.x, c.x, -y.x, s.x), turned(x.y, c.y, -y.y, s.y));
    high = make_float2(turned(y.x, c.x, x.x, s.x), turned(y.y, c.y, x.y, s.y));
  }
};
// The weight of a norm of heads, if there is one.
template <class T> struct Norm {
  unsigned pairs[PIECES] = {};  // or registers would be kept for what they held an item ago
  const T* weight;
  DEVICE Norm(const T* from) : weight(from) {
    if (weight) load_row_pairs(pairs, weight, lane_of() % 4);
  }
  // Of a head, by which all of its elements are multiplied.
  template <class X> DEVICE float factor(const unsigned (&head)[PIECES], const X* of) const {
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
    const float2 w = widened_pair(pairs[p], weight);
    return make_float2(x.x * factor * w.x, x.y * factor * w.y);
  }
};
template <class T> DEVICE Norm<T> norm_of(const T* weight) { return {weight}; }
// A lane's elements of a head in its place, normalised and rotated, times a factor: f of piece p and of the one that is
// rotated with it. A head is not there as a whole, for which there are no registers.
template <class T, class N, class F>
DEVICE void place(const unsigned (&head)[PIECES], const T* of, const N& norm, const Angles& angles, float by, F f) {
  const float factor = norm.factor(head, of) * by;
#pragma unroll
  for (int p = 0; p < PIECES / 2; ++p) {
    float2 low = norm.apply(widened_pair(head[p], of), p, factor);
    float2 high = norm.apply(widened_pair(head[p + PIECES / 2], of), p + PIECES / 2, factor);
    angles.rotate(low, high, p);
    f(p, low), f(p + PIECES / 2, high);
  }
}

// Where the row of 16 bytes lies that this lane names of the first of a warp's matrices, of positions up to `last`.
DEVICE unsigned row_of_matrix(int last) {
  const int row = min(lane_of() / 16 * 8 + lane_of() % 8, last);
  return row * 128 + ((lane_of() / 8 % 2 ^ row & 7) << 4);
}

// What a warp has of the heads of its set. Peak and total are those of head l / 4; sums are of elements l / 4 and l / 4
// + 8 of each 16, of heads 2 (l % 4) and the next.
struct Sums {
  unsigned queries[PIECES / 2][4];
  float sums[PIECES / 2][4], peak, total;  // the total of this lane's positions
  float largest;                           // score of these

  DEVICE void ask(int p, float2 query) {  // a piece of what rows are multiplied by
    const unsigned pair = as_pair(query.x, query.y);
    const float2 kept = widened_pair(pair, STORED);
    queries[p / 2][p % 2 * 2] = pair;
    queries[p / 2][p % 2 * 2 + 1] = as_pair(query.x - kept.x, query.y - kept.y);
  }
  // Exponents are counted from the largest so far.
  DEVICE void raise(float most) {
    most = most_of_four(fmaxf(peak, most));
    const float fade = power_of_two(peak - most);
    peak = most, total *= fade;
    const int head = lane_of() % 4 * 8;  // the lane of it
    const float even = __shfl_sync(0xffffffff, fade, head), odd = __shfl_sync(0xffffffff, fade, head + 4);
#pragma unroll
    for (int p = 0; p < PIECES / 2; ++p) sums[p][0] *= even, sums[p][1] *= odd, sums[p][2] *= even, sums[p][3] *= odd;
  }
  // Some blocks, `count` of whose positions are the share's, at least one: where their rows begin, and this lane's.
  DEVICE void take(unsigned keys, unsigned values, unsigned at, int count) {
    const int lane = lane_of();
    float weights[BLOCKS][4], most = NOTHING;
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) {
      unsigned rows[PIECES / 2][4];
#pragma unroll
      for (int p = 0; p < PIECES / 2; ++p)
        load_matrices(rows[p], (keys + b * BLOCK_BYTES + at ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
      float scores[CHAINS][2][4] = {};  // of 8 positions each
#pragma unroll
      for (int p = 0; p < PIECES / 2; ++p)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply(scores[p % CHAINS][half], queries[p], rows[p][half * 2], rows[p][half * 2 + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[0][i / 2][i % 2] + scores[0][i / 2][i % 2 + 2];
#pragma unroll
        for (int c = 1; c < CHAINS; ++c) score += scores[c][i / 2][i % 2] + scores[c][i / 2][i % 2 + 2];
        weights[b][i] = b * BLOCK_ROWS + i / 2 * 8 + lane % 4 * 2 + i % 2 < count ? score : NOTHING;
        most = fmaxf(most, weights[b][i]);
      }
    }
    // Scores of what lies behind the last position are not looked at, but a value there may be no number, and no weight
    // makes that nothing: the last one is read again.
    unsigned from[BLOCKS], columns[BLOCKS][PIECES / 2][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) from[b] = b * BLOCK_BYTES + at;
    if (count < AT_ONCE) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const int last = min(count - 1 - b * BLOCK_ROWS, BLOCK_ROWS - 1);
        from[b] = last < 0 ? row_of_matrix(0) : b * BLOCK_BYTES + row_of_matrix(last);
      }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int p = 0; p < PIECES / 2; ++p)
        load_transposed(columns[b][p], (values + from[b] ^ p % 4 << 5) + p / 4 * PANEL_BYTES);
    if (!WHOLE) largest = fmaxf(largest, most);
    if (__any_sync(0xffffffff, most > peak + LAG)) raise(most);
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
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int p = 0; p < PIECES / 2; ++p) multiply(sums[p], columns[b][p], pairs[b][0], pairs[b][1]);
  }
  // Of each head D sums, the peak and the total.
  DEVICE void leave(float* heads) {
    if (!WHOLE) raise(largest);  // sums of a split say what they are counted from, and that is the largest score
    const float whole = sum_of_four(total);
    const int lane = lane_of();
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
  // Words are asked for first, and the sequence is the tile's then. Keys and values by every split, as the access map
  // has it; they count in the last alone.
  Rows<q_words, A> rows(tile, a, (long long)tile.i * HEADS + tile.j);
  const unsigned char* const header = stream.header();
  Share share;
  if constexpr (q_words) share = share_of(tile, a);
  else share = *reinterpret_cast<const Share*>(header);
  const bool own = share.own && which == WARPS_OF_SET - 1;
  Angles angles;
  angles.load(q_words ? a.rope + (long long)share.at * D : reinterpret_cast<const float*>(header + SHARE_BYTES));
  const auto q_norm = norm_of(a.q_norm), k_norm = norm_of(a.k_norm);

  unsigned query_pairs[PIECES], key_pairs[PIECES] = {}, value_pairs[PIECES] = {};
  const int lane = lane_of();
  if constexpr (q_words) rows.poll(set, query_pairs, key_pairs, value_pairs);
  stream.next();
  if constexpr (q_words) {
    if (!own) {
#pragma unroll
      for (int p = 0; p < PIECES; ++p) value_pairs[p] = 0;
    }
  } else {
    const unsigned char* const rows_at = header + SHARE_BYTES + ANGLE_BYTES;
    load_shared_pairs(query_pairs, rows_at + min(set * 8 + lane / 4, GROUP - 1) * ROW_BYTES, lane % 4);
    if (own) {
      load_shared_pairs(key_pairs, rows_at + GROUP * ROW_BYTES, lane % 4);
      load_shared_pairs(value_pairs, rows_at + (GROUP + 1) * ROW_BYTES, lane / 8);
    }
  }
  unsigned key[PIECES] = {};  // as it will be read
  if (own) place(key_pairs, STORED, k_norm, angles, 1.0f, [&](int p, float2 x) { key[p] = as_pair(x.x, x.y); });
  Sums sums;
  float score = 0.0f;
  place(query_pairs, STORED, q_norm, angles, SCALE * rsqrtf((float)D), [&](int p, float2 query) {
    const float2 kept = widened_pair(key[p], STORED);
    score += query.x * kept.x + query.y * kept.y;
    sums.ask(p, query);
  });
  score = sum_of_four(score);
#pragma unroll
  for (int p = 0; p < PIECES; ++p) {
    const float2 value = widened_pair(value_pairs[p], STORED);
    sums.sums[p / 2][p % 2 * 2] = sums.sums[p / 2][p % 2 * 2 + 1] = lane / 4 % 2 ? value.y : value.x;
  }
  sums.largest = sums.peak = own ? score : NOTHING, sums.total = own && lane % 4 == 0 ? 1.0f : 0.0f;
  unsigned row = row_of_matrix(BLOCK_ROWS - 1);
  asm volatile("" : "+r"(row));  // once: it would be made anew for each stage, out of numbers that take long to come
  int turn = which;              // of blocks of the stage, this warp's next
#pragma unroll 1
  for (int low = share.low;;) {
    const int count = min(share.high - low, STAGE_ROWS);
    const unsigned keys = stream.address(), values = values_in(stream.slot());
#pragma unroll 1
    for (; which < WARPS_OF_SET && turn * AT_ONCE < count; turn += WARPS_OF_SET) {
      const unsigned block = (unsigned)turn * BLOCKS, from = block / 2 * BOX_BYTES + block % 2 * BLOCK_BYTES;
      sums.take(keys + from, values + from, row, count - turn * AT_ONCE);
    }
    turn -= STAGE_ROWS / AT_ONCE;
    stream.done();
    low += STAGE_ROWS;
    if (low >= share.high) break;
    stream.next();
  }
  float* const left = scratch<float>();
  constexpr int OF_WARP = HEADS_AT_ONCE * PITCH, STEP = SETS * OF_WARP;  // to the next warp of the same heads
  if (which < WARPS_OF_SET) sums.leave(left + warp_of() * OF_WARP);
  synchronise_block();
  const long long part = (((long long)tile.i * HEADS + tile.j) * SPLITS + tile.l) * GROUP;
#pragma unroll
  for (int n = thread(); n < GROUP * D / 2; n += THREADS) {
    const int g = n / (D / 2), d = n % (D / 2) * 2;
    const float* const of_head = left + g / 8 * OF_WARP + g % 8 * PITCH;
    float peak = NOTHING, total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) peak = fmaxf(peak, of_head[w * STEP + D]);
#pragma unroll
    for (int w = 0; w < WARPS_OF_SET; ++w) {
      const float fade = power_of_two(of_head[w * STEP + D] - peak);
      const float2 more = *reinterpret_cast<const float2*>(of_head + w * STEP + d);
      total += fade * of_head[w * STEP + D + 1];
      sum.x += fade * more.x, sum.y += fade * more.y;
    }
    const float by = WHOLE ? __fdividef(1.0f, total) : 1.0f;
    if constexpr (out_words) {
      const unsigned own = publication(tile, a.out_number, a.publications);
      const long long at = (part + g) * D + d;
      if constexpr (WHOLE) {
        store_word(a.out + at / 2, as_pair(sum.x * by, sum.y * by), own);
      } else {
        store_two_words(a.out + at, sum.x, sum.y, own);
        if (d == 0) {
          store_word(a.peak + part + g, __float_as_uint(total > 0.0f ? peak : __int_as_float(0xff800000)), own);
          store_word(a.total + part + g, __float_as_uint(total), own);
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
