// Parts that dispatches share. A dispatch decides which block runs which item, and when.
//
// Each dispatch is a struct in a header of its own; a launch calls its own one `Tickets`. The loader warp holds one:
//
//   begin(launch)        starts a run and returns its number
//   take(launch, sent)   claims the next item and returns its row, -1 if none is left; `sent` items were claimed before
//   known()              the row that `take` will return, -1 if it is not known yet
//   look(launch)         is called between two loads of an item
//
// The storer warp calls `publish` to post a finished item and `finish` after it. The fourth warp of the loader
// warpgroup calls `serve`. Only a dispatcher needs the last two.
//
// `launch.starts` counts up and is never reset. Each run adds `launch.programs` to it, whichever block gets which
// number, so a claimed number divided by `launch.programs` is the number of the run. The words that say which block
// takes which item (`starts`, `heads`, the ready queue) order nothing else: an item's own waits order what it reads.
//
// When a block claims an item that is not in its own queue:
//
// - Late, so that another block may take it first. A block holds at most HELD items: one computes, one loads.
// - Tickets are claimed as early as the ring has room (CLAIMS_AHEAD), unless no op has anything to load ahead.
// - After an item that loads nothing ahead, the next ticket is claimed when that item begins: the ring has room for
//   several such items, and the block that starts first would claim them all.
// - After an item that waits and is among the last ones, one for each block (LAST), the next ticket is claimed when the
//   rest of that item fits the ring. Otherwise an early block would hold two items, one after the other, and a late
//   block none. Such a block learns some stages before its end that no item is left, so the next launch is not delayed.
// - Under queue dispatch a block holds one item unless another one is ready. A thief holds one item unless that item
//   waits for nothing, so that it ends whatever follows it, and the queues have more than one item for each block.
// - Where no op has anything to load ahead (LAST_ALONE), the last items, one for each block, go to blocks that hold
//   nothing, if they wait for nothing. After a long item, such an item would begin later than at the block that is free
//   first, by up to a whole item. The price is the latency of the claim, 1 to 2 us, which nothing hides then.
#pragma once
#include "../ring/ring.cuh"

constexpr bool LAST_ALONE = PREFETCH_BYTES == 0;

// Called by a warp: claims a number of the launch.
DEVICE unsigned long long claim(const Launch& launch) {
  unsigned long long ticket = 0;
  if (first_lane()) ticket = atomicAdd(launch.starts, 1ull);
  return __shfl_sync(0xffffffff, ticket, 0);
}
// Returns whether an item waits neither for other items nor for parts of its tile.
DEVICE bool waits_for_none(const Launch& launch, int row) {
  const ItemRow& item = launch.items[row];
  return item.wait_lo == item.wait_hi && (item.parts < 2 || item.split >= 0);
}
// Base of most dispatches.
struct DispatchBase {
  DEVICE int known() { return -1; }
  DEVICE void look(const Launch& launch) {}
  // Called by a warp.
  DEVICE static void publish(const Launch& launch, const Item& item, int semaphore) {
    if (!first_lane()) return;
    random_delay(launch, item, 1);
    add_release(launch.semaphores + semaphore);
  }
  DEVICE static void finish(const Launch& launch, const Item& item, int taken, int semaphore) {}
  DEVICE static void serve(const Launch& launch) {}
};
// Tickets of a run, from 0: `launch.starts` without what earlier runs added to it.
struct TicketCounter : DispatchBase {
  unsigned long long first;  // ticket 0 of this run
  unsigned long long in_sight;
  int next;  // the next ticket, -1 while it is not claimed
  DEVICE unsigned begin(const Launch& launch) {
    const unsigned long long ticket = claim(launch), run = ticket / launch.programs;
    first = run * launch.programs;
    in_sight = 0;
    next = (int)(ticket - first);
    return (unsigned)run;
  }
  DEVICE int ticket(const Launch& launch) {
    const int number = next >= 0 ? next : (int)(claim(launch) - first);
    next = -1;
    return number;
  }
  // A ticket that is claimed late balances the load. Once other blocks have claimed all items, the next ticket has no
  // item whenever it is claimed, and the sooner all blocks know so, the sooner the next launch may begin.
  DEVICE void look(const Launch& launch) {
    if (!DEPENDENT_LAUNCH || next >= 0) return;
    if (__shfl_sync(0xffffffff, in_sight, 0) >= first + launch.count) {
      next = (int)(claim(launch) - first);
      launch_dependents();
    }
    in_sight = *(volatile unsigned long long*)launch.starts;
  }
};
