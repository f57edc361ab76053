// Attention of one new token a sequence over its KV cache on tensor cores: 16-bit elements, heads of 64 to 256.
//
// As attend.cuh, keys and values of a tile's share come through the ring, some positions to a stage. Here tensor maps
// load them (loads.cuh), in panels of 64 elements: rows of 128 bytes with the 128-byte swizzle, so that eight rows of a
// matrix lie in different banks. A box has 32 positions and all panels of a head, or 64 of one panel, which are 8 KiB;
// smaller loads are slower. A head of 80 elements ends inside its second panel, of which nothing is read after it, and
// has a load for each panel. Positions of a box after the share's last one do not count. Where other ops of the launch
// have large load slots, of which attention loads nothing, values go there (APART), and the ring holds more of the
// cache while queries are awaited.
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
#include "warp_softmax.cuh"

constexpr int SETS = (GROUP + 7) / 8, WARPS_PER_SET = WARPS / SETS;

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
  if constexpr (q_words) share = share_of(tile, a), rows.load_given(share.at);
  else share = *reinterpret_cast<const Share*>(header);
  const bool own = share.own && which == WARPS_PER_SET - 1;
  Angles angles;
  RowPairs query_pairs, key_pairs = {}, value_pairs = {};
  const int lane = lane_of();
  const void* norms = header + NORMS_BEGIN;
  if constexpr (q_words) {
    rows.poll(set, query_pairs, key_pairs, value_pairs);
    norms = rows.norms();
    angles.load(rows.angles());
  } else {
    angles.load(header + SHARE_BYTES);
  }
  const Norm q_norm(norms), k_norm(static_cast<const char*>(norms) + ROW_BYTES);
  stream.next();
  if constexpr (q_words) {
    if (!own) value_pairs = {};
  } else {
    const unsigned char* const rows_at = header + ROWS_BEGIN;
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
