// Queue dispatch: tickets are places in a queue of ready items, whose waits are met, in the order in which they became
// ready. An item that was taken never waits.
//
// The block that makes the last post that a group of items waits for (megakernel/ready_queue.py) pushes the group. In some
// order without cycles the first unfinished item is in the queue or taken already, so there is progress for any number
// of blocks. The queue has a slot for each item that is not ready from the start, and a run fills each slot once, so it
// never overflows. A slot holds the run's number and the item's row, and counters of posts only grow, so nothing is
// ever cleared.
#pragma once
#include "common.cuh"

// Called by a warp: pushes the items of a group.
DEVICE void push(const Launch& launch, unsigned run, int group) {
  const Queue& queue = launch.queue;
  const int begin = queue.members[group], count = queue.members[group + 1] - begin;
  unsigned place = 0;
  if (first_lane()) place = atomicAdd(queue.tail, (unsigned)count);
  place = __shfl_sync(0xffffffff, place, 0) - run * (unsigned)(launch.count - queue.ready);
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < count; n += 32) {
    *(volatile unsigned long long*)(queue.slots + place + n) =
        (unsigned long long)(run + 1) << 32 | (unsigned)queue.rows[begin + n];
  }
}
struct QueueDispatch : TicketCounter {
  unsigned run;
  DEVICE unsigned begin(const Launch& launch) { return run = TicketCounter::begin(launch); }
  // Number of items that were ready from the start or pushed in this run.
  DEVICE int filled(const Launch& launch) {
    const int ready = launch.queue.ready;
    return ready + (int)(*(volatile unsigned*)launch.queue.tail - run * (unsigned)(launch.count - ready));
  }
  DEVICE int take(const Launch& launch, int sent) {
    await_finished(launch, sent, HELD - 1);
    const int drawn = (int)(*(volatile unsigned long long*)launch.starts - first);
    // For an item that is not ready yet, another block may be free first.
    if (next < 0 && (drawn >= filled(launch) || LAST_ALONE && drawn + (int)gridDim.x > launch.count)) {
      await_finished(launch, sent, 0);
    }
    const int number = ticket(launch), place = number - launch.queue.ready;
    if (number >= launch.count) return -1;
    if (place < 0) return launch.queue.first[number];
    const volatile unsigned long long* const at = launch.queue.slots + place;
    unsigned long long slot = *at, since = 0;
#pragma unroll 1
    for (unsigned tries = 1; __shfl_sync(0xffffffff, (unsigned)(slot >> 32), 0) != run + 1; ++tries) {
      __nanosleep(32);
      slot = *at;
      if (tries % 64) continue;
      if (!since) since = nanoseconds();
      const bool over = nanoseconds() - since > launch.timeout_ns;
      if (over && first_lane()) give_up(launch, number, EMPTY, launch.count, filled(launch));
      if (__any_sync(0xffffffff, over || load_relaxed(launch.fault))) return -1;
    }
    return __shfl_sync(0xffffffff, (int)slot, 0);
  }
  // Called by a warp.
  DEVICE static void publish(const Launch& launch, const Item& item, int semaphore) {
    const Queue& queue = launch.queue;
    const int lane = threadIdx.x % 32;
    unsigned posts = 0;
    if (first_lane()) {
      random_delay(launch, item, 1);
      posts = fetch_add_release(launch.semaphores + semaphore) + 1;
    }
    if (__shfl_sync(0xffffffff, posts, 0) != (item.run + 1) * (unsigned)queue.posts[semaphore]) return;
    const int end = queue.wakes[semaphore + 1];
#pragma unroll 1
    for (int n = queue.wakes[semaphore]; n < end; n += 32) {
      const int group = n + lane < end ? queue.groups[n + lane] : -1;
      bool met = false;
      if (group >= 0) met = atomicAdd(queue.met + group, 1u) + 1 == (item.run + 1) * (unsigned)queue.missing[group];
      unsigned ready = __ballot_sync(0xffffffff, met);
#pragma unroll 1
      for (; ready; ready &= ready - 1) push(launch, item.run, __shfl_sync(0xffffffff, group, __ffs((int)ready) - 1));
    }
  }
};
