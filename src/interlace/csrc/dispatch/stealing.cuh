// Stealing dispatch: each block runs its own queue, then takes items from the fronts of other blocks' queues.
//
// `launch.heads` has one 64-bit word for each queue: the rows that are left of it, and the run. A word of another run
// means that the queue is as the plan has it:
//
//   bits 63..48    47..24                 23..0
//   run + 1        first row that is left end
//
// Compare-and-swap changes a word. The exception is a thief that takes several items: the first one runs next, and the
// rest becomes its own queue, by a plain store; its queue is empty before that, and nobody else changes an empty one.
// The first row of a queue from which rows were taken is in no queue any more, so no value of a word recurs in a run
// (no ABA problem).
//
// Progress: a block that is done with its own queue finishes what it holds before it takes from another queue, so it
// never waits in front of an item that others wait for. The smallest unfinished item is then at the front of a queue
// whose block is free to take it, or its holder has finished everything before it. All blocks must be resident.
#pragma once
#include "common.cuh"

struct StealingDispatch : DispatchBase {
  unsigned run, thefts;
  bool thief;
  int latest;  // the row that was taken last
  int left;    // rows in all queues: the last count less what others may have taken since
  DEVICE unsigned begin(const Launch& launch) {
    thief = false;
    thefts = 0;
    left = launch.count;
    return run = (unsigned)(claim(launch) / launch.programs);
  }
  // The word of a queue with these rows.
  DEVICE unsigned long long word(int first, int end) {
    return (unsigned long long)(run + 1 & 0xffff) << 48 | (unsigned long long)first << ROW_BITS | (unsigned)end;
  }
  DEVICE static int first_of(unsigned long long word) { return (int)(word >> ROW_BITS) & (1 << ROW_BITS) - 1; }
  DEVICE static int length(unsigned long long word) { return ((int)word & (1 << ROW_BITS) - 1) - first_of(word); }
  DEVICE static unsigned long long* at(const Launch& launch, int list) {
    return reinterpret_cast<unsigned long long*>(launch.heads) + list;
  }
  // The word of what is left of a queue, given the word in memory.
  DEVICE unsigned long long rest(const Launch& launch, int list, unsigned long long seen) {
    const bool fresh = seen >> 48 != (run + 1 & 0xffff);
    return fresh ? word(launch.lists[list], launch.lists[list + 1]) : seen;
  }
  // Called by a warp: takes up to `most` items, at most half, from the front of a queue and returns the first row, -1
  // if the queue is empty. The other items become this block's queue.
  DEVICE int take_from(const Launch& launch, int list, int most) {
    int row = -1, some = 0;
    if (first_lane()) {
      unsigned long long head = *(volatile unsigned long long*)at(launch, list);
#pragma unroll 1
      for (;;) {
        const unsigned long long rows = rest(launch, list, head);
        some = min((length(rows) + 1) / 2, most);
        if (some == 0) break;
        row = first_of(rows);
        const unsigned long long seen = atomicCAS(at(launch, list), head, word(row + some, row + length(rows)));
        if (seen == head) break;
        head = seen;
        row = -1;
      }
      if (some > 1) *(volatile unsigned long long*)at(launch, blockIdx.x) = word(row + 1, row + some);
    }
    thief = __shfl_sync(0xffffffff, some < 2, 0);
    return latest = __shfl_sync(0xffffffff, row, 0);
  }
  // Called by a warp: returns a queue that is not empty, -1 if all are empty, and counts the rows of all queues.
  DEVICE int victim(const Launch& launch) {
    unsigned least = 0xffffffff, rows = 0;
#pragma unroll 4
    for (int n = threadIdx.x % 32; n < launch.programs; n += 32) {
      const int list = (blockIdx.x + n) % launch.programs;
      const int some = length(rest(launch, list, *(volatile unsigned long long*)at(launch, list)));
      if (some > 0) least = min(least, rank(n));
      rows += some;
    }
    ++thefts;
    left = (int)__reduce_add_sync(0xffffffff, rows);
    least = __reduce_min_sync(0xffffffff, least);
    return least != 0xffffffff ? (int)((blockIdx.x + least % 65536) % launch.programs) : -1;
  }
  // The rank of the n-th queue after this block's own; the least one is taken. Random ranks are mixed by lowbias32
  // (Wellons, 2018).
  DEVICE unsigned rank(unsigned n) {
    if (!RANDOM_VICTIMS) return n;
    unsigned mixed = n + 0x9e3779b9u * thefts + 0x85ebca6bu * blockIdx.x + 0xc2b2ae35u * run;
    mixed = (mixed ^ mixed >> 16) * 0x7feb352du;
    mixed = (mixed ^ mixed >> 15) * 0x846ca68bu;
    return (mixed ^ mixed >> 16) & 0xffff0000u | n;
  }
  // Called by a warp: returns whether to leave the front of the own queue to the block that is free first. Rows are
  // counted only when few may be left: other blocks mostly take no more than two items for one of this block's.
  DEVICE bool leaves(const Launch& launch) {
    left -= 2 * launch.programs;
    if (left <= launch.programs) victim(launch);
    if (left > launch.programs) return false;
    const unsigned long long own = rest(launch, blockIdx.x, *(volatile unsigned long long*)at(launch, blockIdx.x));
    return __any_sync(0xffffffff, length(own) > 0 && waits_for_none(launch, first_of(own)));
  }
  DEVICE int take(const Launch& launch, int sent) {
    int row = -1, list;
    const int held = latest;
    if (!thief) {
      await_finished(launch, sent, HELD - 1);
      if (LAST_ALONE && leaves(launch)) await_finished(launch, sent, 0);
      row = take_from(launch, blockIdx.x, 1);
      thief = row < 0;
    }
    if (row < 0) await_finished(launch, sent, HELD - 1);
#pragma unroll 1
    while (row < 0 && (list = victim(launch)) >= 0) {
      const bool ahead = left > launch.programs && sent > 0 && waits_for_none(launch, held);
      if (!ahead) await_finished(launch, sent, 0);
      row = take_from(launch, list, MOST_STOLEN);
    }
    return row;
  }
};
