// Dispatcher dispatch: a warp of the first block knows all dependencies and fills mailboxes of every block.
//
// A block has HELD mailboxes for runs of even number and HELD for runs of odd number, and takes from them in turn. A
// mailbox is one 64-bit word: run + 1 in the upper half; in the lower half an item's row or the word to stop, or, when
// the block has emptied the mailbox, the semaphore that its item posted:
//
//   bit 31 (EMPTIED)   bit 30 (TURN)        bits 29..0
//   0                  flips at each turn   row, or STOP
//   1                  semaphore + 1, 0 for none
//
// The dispatcher fills a mailbox that is empty or was filled in another run; the block's storer empties it when it has
// posted the item. So each word has one writer at a time, and a block never has more items than it takes. The loader
// may read a mailbox again before the storer empties it; the TURN bit tells it that it had this item already.
//
// The dispatcher counts posts of semaphores, and for groups of items (megakernel/ready_queue.py) the semaphores that are
// complete; a group that has all of them is ready. It gives ready items, in the order in which they became ready, to
// blocks that hold nothing, then to blocks that hold one (the last items perhaps not to these: LAST_ALONE). When none
// is left, it tells each block to stop. So an item that was given never waits, and each item is given once. All blocks
// must be resident, since an item that was given to one block runs nowhere else. The dispatcher's list has room for
// every item once a run, so it never overflows.
//
// Mailboxes order nothing: an item's own waits, which it finds met, order what it reads. The dispatcher's own data is
// as the run before left it, since the dispatcher begins to count when that run has ended. Under dependent launch it
// gives the items that are ready from the start while the run before drains, so that their loads go ahead. Blocks of
// that run may not have emptied their mailboxes yet, hence the mailboxes of two runs. A block that is told to stop lets
// the next launch begin only when the launch before has ended, so that the next one finds the mailboxes of that run
// free (tests/protocols/overlapping.py).
#pragma once
#include "common.cuh"

DEVICE volatile unsigned long long* mailbox(const Launch& launch, unsigned run, int block, int n) {
  return reinterpret_cast<volatile unsigned long long*>(launch.heads) + ((run & 1) * launch.programs + block) * HELD +
         n % HELD;
}
DEVICE unsigned turn(int n) { return n / HELD % 2 ? TURN : 0; }
DEVICE unsigned long long mail(unsigned run, unsigned word) { return (unsigned long long)(run + 1) << 32 | word; }
// Ranges of a warp, one a lane, as one sequence whose numbers are dealt to the lanes: a long range takes as long as
// several short ones of the same total.
struct Ranges {
  int upto;    // numbers of this lane and all before it
  int beyond;  // a number of this lane's range less its index in the sequence
  int total;
  DEVICE Ranges(int begin, int end) {
    upto = end - begin;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(0xffffffff, upto, distance);
      if (threadIdx.x % 32 >= distance) upto += before;
    }
    beyond = end - upto;
    total = __shfl_sync(0xffffffff, upto, 31);
  }
  // Returns the n-th number of the sequence.
  DEVICE int at(int n) const {
    int lane = 0;
#pragma unroll
    for (int step = 16; step; step /= 2) {
      if (__shfl_sync(0xffffffff, upto, lane + step - 1) <= n) lane += step;
    }
    return n + __shfl_sync(0xffffffff, beyond, lane);
  }
};
// The ready items, numbered in the order in which they became ready: 0 to `tail`, of which those below `head` are
// given.
struct Dispatcher {
  unsigned run;
  int head, tail;
  DEVICE int row(const Launch& launch, int n) const {
    const int later = n - launch.queue.ready;
    return later < 0 ? launch.queue.first[n] : (int)launch.queue.slots[later];
  }
  // Called by a warp: counts a post of each lane's semaphore, -1 for none.
  DEVICE void count(const Launch& launch, int semaphore) {
    const Queue& queue = launch.queue;
    const int lane = threadIdx.x % 32;
    bool complete = false;
    if (semaphore >= 0)
      complete = atomicAdd(queue.tail + 1 + semaphore, 1u) + 1 == (run + 1) * (unsigned)queue.posts[semaphore];
    const Ranges woken(complete ? queue.wakes[semaphore] : 0, complete ? queue.wakes[semaphore + 1] : 0);
#pragma unroll 1
    for (int n = lane; n - lane < woken.total; n += 32) {
      const int at = woken.at(n), group = n < woken.total ? queue.groups[at] : -1;
      bool met = false;
      if (group >= 0) met = atomicAdd(queue.met + group, 1u) + 1 == (run + 1) * (unsigned)queue.missing[group];
      const Ranges rows(met ? queue.members[group] : 0, met ? queue.members[group + 1] : 0);
#pragma unroll 1
      for (int m = lane; m - lane < rows.total; m += 32) {
        const int row = rows.at(m);
        if (m < rows.total) queue.slots[tail + m - queue.ready] = mail(run, queue.rows[row]);
      }
      tail += rows.total;
    }
    __syncwarp();
  }
};
struct MailboxDispatch : DispatchBase {
  unsigned run;
  int taken;
  DEVICE unsigned begin(const Launch& launch) {
    taken = 0;
    return run = (unsigned)(claim(launch) / launch.programs);
  }
  DEVICE int take(const Launch& launch, int sent) {
    await_finished(launch, sent, HELD - 1);
    volatile unsigned long long* const at = mailbox(launch, run, blockIdx.x, taken);
    const unsigned mine = turn(taken++);
    unsigned long long seen = __shfl_sync(0xffffffff, *at, 0), since = 0;
#pragma unroll 1
    for (unsigned tries = 1; seen >> 32 != run + 1 || ((unsigned)seen & (EMPTIED | TURN)) != mine; ++tries) {
      __nanosleep(32);
      seen = __shfl_sync(0xffffffff, *at, 0);
      if (tries % 64) continue;
      if (!since) since = nanoseconds();
      const bool over = nanoseconds() - since > launch.timeout_ns;
      if (over && first_lane()) give_up(launch, blockIdx.x, EMPTY, launch.count, 0);
      if (__any_sync(0xffffffff, over || load_relaxed(launch.fault))) return -1;
    }
    const unsigned row = (unsigned)seen & STOP;
    if (row != STOP) return (int)row;
    await_launch_before();  // the next launch may begin then, and uses the mailboxes of the launch before
    if (first_lane()) *at = mail(run, EMPTIED);
    return -1;
  }
  // Called by a warp: empties the mailbox of a finished item, the block's `taken`-th.
  DEVICE static void finish(const Launch& launch, const Item& item, int taken, int semaphore) {
    if (!first_lane()) return;
    random_delay(launch, item, 2);
    *mailbox(launch, item.run, blockIdx.x, taken) = mail(item.run, EMPTIED | (unsigned)(semaphore + 1));
  }
  // Called by a warp: each lane serves LOOKS blocks.
  DEVICE static void serve(const Launch& launch) {
    if (blockIdx.x || launch.queue.ready < 0) return;
    unsigned run = 0;
    if (first_lane()) run = atomicAdd(launch.queue.tail, 1u);
    run = __shfl_sync(0xffffffff, run, 0);
    Dispatcher items = {run, 0, launch.queue.ready};
    int given[LOOKS], back[LOOKS];
    unsigned serves = 0;  // a bit for each of the lane's blocks that has not been told to stop
#pragma unroll
    for (int k = 0; k < LOOKS; ++k) {
      given[k] = back[k] = 0;
      if (k * 32 + threadIdx.x % 32 < launch.programs) serves |= 1u << k;
    }
#pragma unroll 1
    for (unsigned sweeps = 1; __any_sync(0xffffffff, serves); ++sweeps) {
      unsigned long long seen[LOOKS];
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) {
        seen[k] = 0;
        if (back[k] < given[k]) seen[k] = *mailbox(launch, run, k * 32 + threadIdx.x % 32, back[k]);
      }
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) {
        const unsigned word = (unsigned)seen[k];
        if (word & EMPTIED) ++back[k];
        const int semaphore = word & EMPTIED ? (int)(word & ~EMPTIED) - 1 : -1;
        if (__any_sync(0xffffffff, semaphore >= 0)) items.count(launch, semaphore);
      }
#pragma unroll
      for (int held = 0; held < HELD; ++held) {
        const int left = launch.count - items.head;
        if (LAST_ALONE && held && left > 0 && left <= launch.programs) break;
        unsigned row[LOOKS];  // all loads are in flight at once
        bool gives[LOOKS];
#pragma unroll
        for (int k = 0; k < LOOKS; ++k) {
          const bool wants = serves >> k & 1 && given[k] - back[k] == held;
          const unsigned asking = __ballot_sync(0xffffffff, wants);
          const int n = items.head + __popc(asking & (1u << threadIdx.x % 32) - 1);
          const bool stops = n >= launch.count;
          gives[k] = wants && (n < items.tail || stops);
          row[k] = gives[k] && !stops ? (unsigned)items.row(launch, n) : STOP;
          if (gives[k] && stops) serves &= ~(1u << k);
          items.head = min(items.head + __popc(asking), items.tail);
        }
#pragma unroll
        for (int k = 0; k < LOOKS; ++k) {
          if (!gives[k]) continue;
          *mailbox(launch, run, k * 32 + threadIdx.x % 32, given[k]) = mail(run, turn(given[k]) | row[k]);
          ++given[k];
        }
      }
      if (sweeps == 1) await_launch_before();
      if (sweeps % 64 == 0 && __any_sync(0xffffffff, load_relaxed(launch.fault))) break;
    }
  }
};
