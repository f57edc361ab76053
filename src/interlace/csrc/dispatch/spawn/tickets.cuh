// Tickets of the queue.
#pragma once
#include "count.cuh"

struct Tickets {
  unsigned run;
  bool over;
  DEVICE unsigned begin(const Launch& launch) {
    const unsigned long long ticket = claim(launch);
    run = (unsigned)(ticket / launch.programs);
    over = false;
    const int lane = threadIdx.x % 32;
    if (ticket % launch.programs == 0 && lane < COUNTERS) *(volatile unsigned*)counter_of(launch, run + 1, lane) = 0;
    return run;
  }
  // By a warp: the row of the item that comes to a place, -1 if none will, or one is lost.
  DEVICE int await_item(const Launch& launch, int place, int sent) {
    const int at = place - launch.queue.ready;
    bool early = false;
    unsigned long long since = 0;
#pragma unroll 1
    for (unsigned tries = 1;; ++tries) {
      const unsigned long long found = __shfl_sync(0xffffffff, load_queue_slot(launch.queue.slots + at), 0);
      __syncwarp();
      if ((unsigned)found) {
        if (first_lane()) *(volatile unsigned long long*)(launch.queue.slots + at) = 0;
        over = (unsigned)found == DONE;
        if (over) return -1;
        const int row = (int)(unsigned)found - 1;
        if (early && first_lane()) give_up(launch, launch.items[row].number, EARLY, 0, 1);
        return early ? -1 : row;
      }
      const bool end = __any_sync(0xffffffff, ended(launch, run, place, sent));
      __syncwarp();
      if (end) {
        // What came although nothing was outstanding is waited for, to be named.
        early = __any_sync(0xffffffff, at < (int)counted(launch, run, TAIL));
        over = !early;
        if (over) return -1;
      }
      __nanosleep(32);
      if (tries % 64) continue;
      if (!since) since = nanoseconds();
      const bool late = __any_sync(0xffffffff, nanoseconds() - since > launch.timeout_ns);
      if (__any_sync(0xffffffff, late || load_relaxed(launch.fault))) {
        if (late && first_lane()) give_up(launch, place, LOST, 0, (int)counted(launch, run, TAIL));
        return -1;
      }
    }
  }
  DEVICE int next(const Launch& launch, int which) {
    unsigned number = 0;
    if (first_lane()) number = atomicAdd(counter_of(launch, run, which), 1u);
    return (int)__shfl_sync(0xffffffff, number, 0);
  }
  DEVICE int take(const Launch& launch, int sent) {
    const Queue& queue = launch.queue;
    if (!over) {
      await_finished(launch, sent, HELD - 1);
      // What is not there yet another block may be the first to have time for.
      if (__any_sync(0xffffffff, counted(launch, run, HEAD) >= queue.ready + counted(launch, run, TAIL))) {
        await_finished(launch, sent, 0);
      }
      const int place = next(launch, HEAD);
      const int row = place < queue.ready ? queue.first[place] : await_item(launch, place, sent);
      asm volatile("fence.proxy.async.global;" ::: "memory");
      if (!over) return row;
    }
    const int number = next(launch, LATER);
    return number < queue.later ? queue.behind[number] : -1;
  }
  DEVICE int known() { return -1; }
  DEVICE void look(const Launch& launch) {}
};
