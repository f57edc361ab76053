"""Spawn dispatch as CUDA C++: a queue to which items come when others spawn them, and how workers find that it ended.

A worker draws a place in the queue. The first places are those of the items that run in any case and wait for none that
may not; a further one is a slot, which the warp that posts fills for each item that the one which it posts wants: it
reads the elements that the item wrote (``plan/spawns``). Which are drawn and not filled nobody knows, so a worker polls
its slot, and whether anything is outstanding. When nothing is, it draws the items behind, by ticket and in sequence.

    count         items that came to the queue and are not done: counted before they are put there, counted off behind
                  all that they put. A worker polls the count, too; it never rises again from 0
    done items    the same count; but who counts the last off puts an item for each worker that says so, and a worker
                  polls its slot alone
    votes         no count: a worker that has nothing, whose items are all posted, votes with the number of items that
                  ever came. When all have voted with the same number, no item is held, and none that came is left

What a spawned item reads of those that it descends from, and what items behind read of spawned ones, is ordered by the
queue itself: who puts an item releases, who takes it acquires; whoever is done releases to the count, a done item or a
vote, and who sees the end acquires. Spawned items post no semaphore.

A run uses one of two sets of counters, and clears the other for the next; who takes an item clears its slot. A vote has
the run's number beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from interlace.kernels.abi import Struct

#: Behind the first items' rows those that run behind; of each item (by its number) its children, of these the rows, the
#: element that says whether each is wanted, and the number of that tensor among the addresses behind the operands, of
#: which there are ``ops`` rows; two sets of counters; a slot for each item that may come and for each block; each
#: block's vote, then how many items it has posted; how many items are first, behind, and may come; semaphores.
SPAWN = Struct(
    "Queue",
    (
        *((name, "const int*") for name in ("first", "behind", "children", "rows", "elements", "tensors")),
        ("counters", "unsigned*"),
        ("slots", "unsigned long long*"),
        ("votes", "unsigned long long*"),
        *((name, "int") for name in ("ready", "later", "capacity", "ops", "semaphores")),
    ),
)
#: Counters of a set, and unsigned words from one to the next: each has a line of its own.
COUNTERS, SPREAD = 4, 32
#: What is recorded in place of a semaphore: a place of the queue that nobody fills; an item that found no place; an
#: item that ran, or came, when workers had taken all to be done.
LOST, OVERFLOW, EARLY = -3, -4, -5


class Termination(Enum):
    """How workers find under spawn dispatch that nothing is outstanding."""

    COUNT = "count"
    """A count of what is outstanding, which all poll who have nothing to do."""
    DONE_ITEMS = "done items"
    """The same, but who counts the last off puts an item for each worker that says so."""
    VOTES = "votes"
    """Each worker that has nothing to do votes, and looks at all votes; all must be resident."""


_QUEUE = r"""
constexpr int HEAD = 0, TAIL = 1, OUTSTANDING = 2, LATER = 3;
DEVICE unsigned* counter_of(const Launch& launch, unsigned run, int which) {
  return launch.queue.counters + ((run & 1) * COUNTERS + which) * SPREAD;
}
DEVICE unsigned counted(const Launch& launch, unsigned run, int which) {
  return (unsigned)load_relaxed(reinterpret_cast<const int*>(counter_of(launch, run, which)));
}
DEVICE unsigned long long load_slot(const unsigned long long* at) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
DEVICE void store_slot(unsigned long long* at, unsigned run, unsigned number) {
  const unsigned long long value = (unsigned long long)(run + 1) << 32 | number;
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value) : "memory");
}
"""

_COUNTED = r"""
// By a warp: so many items are about to come.
DEVICE void expect(const Launch& launch, unsigned run, int count) {
  if (first_lane()) atomicAdd(counter_of(launch, run, OUTSTANDING), (unsigned)count);
}
"""

_COUNT = r"""
// By a warp: an item is done, and all that it wants has come.
DEVICE void count_off(const Launch& launch, const Item& item) {
  if (!first_lane()) return;
  int* const at = reinterpret_cast<int*>(counter_of(launch, item.run, OUTSTANDING));
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(-1) : "memory");
}
// By a warp that has nothing: whether nothing is left.
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) {
  return launch.queue.ready + load_acquire(reinterpret_cast<const int*>(counter_of(launch, run, OUTSTANDING))) == 0;
}
"""

_DONE_ITEMS = r"""
DEVICE void count_off(const Launch& launch, const Item& item) {
  unsigned before = 0;
  if (first_lane()) {
    unsigned* const at = counter_of(launch, item.run, OUTSTANDING);
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(__cvta_generic_to_global(at)), "r"(-1) : "memory");
  }
  if (launch.queue.ready + (int)__shfl_sync(0xffffffff, before, 0) != 1) return;
  __syncwarp();
  unsigned place = 0;
  if (first_lane()) place = atomicAdd(counter_of(launch, item.run, TAIL), (unsigned)launch.programs);
  place = __shfl_sync(0xffffffff, place, 0);
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < launch.programs; n += 32) {
    store_slot(launch.queue.slots + place + n, item.run, DONE);
  }
}
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) { return false; }
"""

_VOTES = r"""
DEVICE void expect(const Launch& launch, unsigned run, int count) {}
DEVICE void count_off(const Launch& launch, const Item& item) {
  if (!first_lane()) return;
  unsigned long long* const at = launch.queue.votes + launch.programs + blockIdx.x;
  const unsigned long long before = *(volatile unsigned long long*)at;
  store_slot(at, item.run, (unsigned)(before >> 32) == item.run + 1 ? (unsigned)before + 1 : 1);
}
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) {
  const unsigned long long tag = (unsigned long long)(run + 1) << 32;
  const bool posted = !sent || load_slot(launch.queue.votes + launch.programs + blockIdx.x) == (tag | (unsigned)sent);
  if (!__any_sync(0xffffffff, posted)) return false;
  __syncwarp();
  const unsigned came = counted(launch, run, TAIL);
  if (__any_sync(0xffffffff, place - launch.queue.ready < (int)came)) return false;
  const unsigned mine = __shfl_sync(0xffffffff, came, 0) + 1;  // no vote is 0
  if (first_lane()) store_slot(launch.queue.votes + blockIdx.x, run, mine);
  bool all = true;
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < launch.programs; n += 32) all &= load_slot(launch.queue.votes + n) == (tag | mine);
  all = !__any_sync(0xffffffff, !all);
  __syncwarp();
  return all;
}
"""

_TICKETS = r"""
struct Tickets {
  unsigned run;
  bool over;
  DEVICE unsigned begin(const Launch& launch) {
    const unsigned long long ticket = draw(launch);
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
      const unsigned long long found = __shfl_sync(0xffffffff, load_slot(launch.queue.slots + at), 0);
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
"""

_PUBLISH = r"""
// By a warp: what an item wants comes to the queue. Returns the place of what does not fit there, -1 if all does.
DEVICE int spawn(const Launch& launch, const Item& item) {
  const Queue& queue = launch.queue;
  const int* const* const tensors = reinterpret_cast<const int* const*>(launch.operands + queue.ops * OPERAND_BYTES);
  const int end = queue.children[item.number + 1];
  int beyond = -1;
#pragma unroll 1
  for (int n = queue.children[item.number]; n < end; n += 32) {
    const int child = n + threadIdx.x % 32;
    const bool wanted = child < end && load_relaxed(tensors[queue.tensors[child]] + queue.elements[child]) != 0;
    const unsigned some = __ballot_sync(0xffffffff, wanted);
    const int count = __popc(some);
    if (!count) continue;
    expect(launch, item.run, count);
    if (first_lane()) random_delay(launch, item, 2);
    unsigned place = 0;
    if (first_lane()) place = atomicAdd(counter_of(launch, item.run, TAIL), (unsigned)count);
    place = __shfl_sync(0xffffffff, place, 0) + __popc(some & ((1u << threadIdx.x % 32) - 1));
    if (!wanted) continue;
    if (place < (unsigned)queue.capacity) {
      store_slot(queue.slots + place, item.run, queue.rows[child] + 1u);
    } else {
      beyond = (int)place;
    }
  }
  return __reduce_max_sync(0xffffffff, beyond);
}
// By a warp. Semaphores from that number on, and one more for none, are those of items of the queue.
DEVICE void publish(const Launch& launch, const Item& item, int semaphore) {
  const int count = launch.queue.semaphores, own = semaphore < count ? semaphore : semaphore - count - 1;
  if (first_lane()) {
    random_delay(launch, item, 1);
    if (own >= 0) add_release(launch.semaphores + own);
  }
  if (semaphore < count) return;
  __syncwarp();
  const int beyond = spawn(launch, item), later = (int)counted(launch, item.run, LATER);
  if (__any_sync(0xffffffff, beyond >= 0 || later)) {
    if (first_lane()) give_up(launch, item.number, beyond >= 0 ? OVERFLOW : EARLY, launch.queue.capacity, beyond + 1);
    return;
  }
  count_off(launch, item);
}
"""

_ENDS = {
    Termination.COUNT: _COUNTED + _COUNT,
    Termination.DONE_ITEMS: _COUNTED + _DONE_ITEMS,
    Termination.VOTES: _VOTES,
}
_CONSTANTS = f"""
constexpr int COUNTERS = {COUNTERS}, SPREAD = {SPREAD}, LOST = {LOST}, OVERFLOW = {OVERFLOW}, EARLY = {EARLY};
constexpr unsigned DONE = 0xffffffffu;  // in place of an item's row and 1
"""

#: What stands behind how tickets are drawn, and how a warp waits until what it sent is finished.
SPAWNING: Mapping[Termination, str] = {
    kind: _CONSTANTS + _QUEUE + text + _TICKETS + _PUBLISH for kind, text in _ENDS.items()
}
