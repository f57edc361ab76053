"""Who takes which item when, as CUDA C++: what the warp that draws asks for its next item.

A text has a struct ``Tickets``, which that warp holds:

    begin(launch)        once a run; returns the number of the run
    take(launch, sent)   the row of the next item, -1 if none is left; so many are sent already
    known()              the row that it will be, -1 if that is not known yet
    look(launch)         between two loads of an item

``starts`` counts without end and tells the runs apart: each run adds ``programs`` to it, whoever gets which number.

    ticket      items in sequence by one counter. Items wait for smaller tickets only, and a block takes its own in
                order: whoever holds the smallest unfinished ticket never waits, for any number of blocks
    static      a block's list, from front to back
    stealing    the same; then items of other blocks' lists, each from its front, too. A block that is done with its
                list finishes what it holds before it takes from another's, so that it never waits in front of an
                item that others wait for: the smallest unfinished item is at the front of its list, and that block
                is free to take it, or its holder has finished all before it

Under stealing ``heads`` has for each list how many of its items were taken, in all runs, by compare and swap: never
more than there are, so that a run leaves it a list's length further whatever happens in it. It orders nothing else,
what items read is ordered by their own waits. An item is taken late, so that another block may have it: two are held
at most, one that is computed and one that loads.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.plan.plan import Dispatch

_DRAW = r"""
// By a warp.
DEVICE unsigned long long draw(const Launch& launch) {
  unsigned long long ticket = 0;
  if (first_lane()) ticket = atomicAdd(launch.starts, 1ull);
  return __shfl_sync(0xffffffff, ticket, 0);
}
"""

_TICKET = r"""
struct Tickets {
  unsigned long long first;  // of this run
  unsigned long long in_sight;
  int next;  // row of the next item, -1 while it is not drawn
  DEVICE unsigned begin(const Launch& launch) {
    const unsigned long long ticket = draw(launch), run = ticket / launch.programs;
    first = run * launch.programs;
    in_sight = 0;
    next = (int)(ticket - first);
    return (unsigned)run;
  }
  DEVICE int take(const Launch& launch, int sent) {
    const int row = next >= 0 ? next : (int)(draw(launch) - first);
    next = -1;
    return row < launch.count ? row : -1;
  }
  DEVICE int known() { return -1; }
  // A ticket drawn late balances the load. But once others have drawn all items, this block's next ticket is none
  // whenever it is drawn, and the sooner all blocks know, the sooner the next launch may begin.
  DEVICE void look(const Launch& launch) {
    if (!DEPENDENT_LAUNCH || next >= 0) return;
    if (in_sight >= first + launch.count) {
      next = (int)(draw(launch) - first);
      launch_dependents();
    }
    in_sight = *(volatile unsigned long long*)launch.starts;
  }
};
"""

_STATIC = r"""
struct Tickets {
  int next, end;
  DEVICE unsigned begin(const Launch& launch) {
    next = launch.lists[blockIdx.x];
    end = launch.lists[blockIdx.x + 1];
    return (unsigned)(draw(launch) / launch.programs);
  }
  DEVICE int take(const Launch& launch, int sent) { return next < end ? next++ : -1; }
  DEVICE int known() { return next < end ? next : -1; }
  DEVICE void look(const Launch& launch) {}
};
"""

_STEALING = r"""
constexpr int HELD = 2;
struct Tickets {
  unsigned run;
  bool thief;
  DEVICE unsigned begin(const Launch& launch) {
    thief = false;
    return run = (unsigned)(draw(launch) / launch.programs);
  }
  DEVICE static int length(const Launch& launch, int list) { return launch.lists[list + 1] - launch.lists[list]; }
  // Of a list so many items are left, given its head. Both wrap alike.
  DEVICE int left(const Launch& launch, int list, unsigned head) {
    return (int)((run + 1) * (unsigned)length(launch, list) - head);
  }
  // By a warp: the row of the item at the front of a list, -1 if it is empty.
  DEVICE int take_from(const Launch& launch, int list) {
    int row = -1;
    if (first_lane()) {
      unsigned* const at = launch.heads + list;
      unsigned head = (unsigned)load_relaxed((const int*)at);
      int some;
#pragma unroll 1
      while ((some = left(launch, list, head)) > 0) {
        const unsigned seen = atomicCAS(at, head, head + 1);
        if (seen == head) break;
        head = seen;
      }
      if (some > 0) row = launch.lists[list + 1] - some;
    }
    return __shfl_sync(0xffffffff, row, 0);
  }
  // By a warp: a list that is not empty, a near one if there are several; -1 if all are.
  DEVICE int victim(const Launch& launch) {
    int near = launch.programs;
#pragma unroll 4
    for (int n = threadIdx.x % 32; n < launch.programs; n += 32) {
      const int list = (blockIdx.x + n) % launch.programs;
      if (left(launch, list, (unsigned)load_relaxed((const int*)launch.heads + list)) > 0) near = min(near, n);
    }
    near = __reduce_min_sync(0xffffffff, near);
    return near < launch.programs ? (int)((blockIdx.x + near) % launch.programs) : -1;
  }
  // By a warp: until all but so many of the items that were sent are finished.
  DEVICE void settle(const Launch& launch, int sent, int held) {
    const int last = sent - held - 1;
    if (last >= 0) await(received(last % TICKETS), last / TICKETS & 1);
  }
  DEVICE int take(const Launch& launch, int sent) {
    int row = -1, list;
    if (!thief) {
      settle(launch, sent, HELD - 1);
      row = take_from(launch, blockIdx.x);
      thief = row < 0;
    }
#pragma unroll 1
    while (row < 0 && (list = victim(launch)) >= 0) {
      settle(launch, sent, 0);
      row = take_from(launch, list);
    }
    return row;
  }
  DEVICE int known() { return -1; }
  DEVICE void look(const Launch& launch) {}
};
"""

#: What stands behind the walk, by dispatch.
TEXTS: Mapping[Dispatch, str] = {
    Dispatch.TICKET: _DRAW + _TICKET,
    Dispatch.STATIC: _DRAW + _STATIC,
    Dispatch.STEALING: _DRAW + _STEALING,
}
