// Loads of attention on tensor cores (products.cuh): boxes of keys and values, and a header with what comes first.
#pragma once
#include "share_equal.cuh"
#include "../pages.cuh"
#include "../panels.cuh"
#include "../../ring/streamed.cuh"

constexpr int BOX = D > 64 || PAGE % 64 || BLOCK % 64 ? 32 : 64;  // positions of a bulk load
constexpr int PANEL_BYTES = BOX * 128, BOX_BYTES = (D + 63) / 64 * PANEL_BYTES;
// Boxes of a stage: with keys and values in the prefetch slot, or, where load slots are large, with values there.
constexpr int BOXES_TOGETHER = PREFETCH_BYTES / (2 * BOX_BYTES);
constexpr int SMALLER_BYTES = LOAD_BYTES < PREFETCH_BYTES ? LOAD_BYTES : PREFETCH_BYTES;
constexpr int BOXES_APART = LOAD_BYTES % 1024 ? 0 : SMALLER_BYTES / BOX_BYTES;  // boxes begin at multiples of 1024
constexpr bool APART = BOXES_APART > BOXES_TOGETHER;
constexpr int BOXES = APART ? BOXES_APART : BOXES_TOGETHER, STAGE_ROWS = BOXES * BOX;
// A header of a stage: the share, cosines and sines, the rows of q, k and v, then the weights of norms of q and k.
constexpr int SHARE_BYTES = 32, ANGLE_BYTES = 4 * D, ROW_BYTES = 2 * D;
constexpr int ROWS_BEGIN = SHARE_BYTES + ANGLE_BYTES, NORMS_BEGIN = ROWS_BEGIN + (GROUP + 2) * ROW_BYTES;
// True if heads are normalised: an argument that an op lacks is no member of its arguments, but static.
template <class P> constexpr bool is_member = false;
template <class T, class A> constexpr bool is_member<T A::*> = true;
constexpr bool NORMED = is_member<decltype(&Arguments::q_norm)>;
static_assert(sizeof(Share) <= SHARE_BYTES, "a header has room for it");

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
  DEVICE unsigned early_bytes() const { return ANGLE_BYTES + NORMED * 2 * ROW_BYTES; }
  DEVICE void load_early(unsigned header, unsigned barrier) const {
    bulk_load(header + SHARE_BYTES, a.rope + (long long)share.at * D, ANGLE_BYTES, barrier);
    if constexpr (NORMED) {
      bulk_load(header + NORMS_BEGIN, a.q_norm, ROW_BYTES, barrier);
      bulk_load(header + NORMS_BEGIN + ROW_BYTES, a.k_norm, ROW_BYTES, barrier);
    }
  }
  static constexpr int LATE = 3, LATE_BEGIN = ROWS_BEGIN;
  DEVICE static constexpr unsigned late_bytes(int n) { return n == 0 ? GROUP * ROW_BYTES : ROW_BYTES; }
  DEVICE const void* late_at(int n) const {
    const long long row = ((long long)share.sequence * HEADS + head) * D;
    return n == 0 ? a.q + row * GROUP : n == 1 ? a.k + row : a.v + row;
  }
};
