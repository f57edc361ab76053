// Spawn dispatch: a queue to which items come when other items spawn them, and how workers find that it is exhausted.
//
// A worker claims a place of the queue. The first places are those of items that run in any case and wait for no
// spawned item. Each later place is a slot: the storer of a finished item fills one for each item that this one spawns,
// which it finds in the elements that the item wrote (plan/spawns.py). Nobody knows which claimed slots will be filled,
// so a worker polls its slot and whether any item is outstanding. When none is, workers claim the items that wait for
// spawned ones ("later" items), by ticket and in sequence. There are three ways to find the end:
//
//   CountTermination      counts the items that came to the queue and are not done: an item is counted before it is put
//                         there, and counted off after everything that it spawns was put there. Workers poll the count,
//                         which never rises again from 0
//   DoneItemsTermination  the same count, but the worker that counts the last item off puts one end item for each
//                         worker into the queue, so that workers poll only their slots
//   VotesTermination      no count: a worker that has nothing, and whose items are all posted, votes with the number of
//                         items that ever came. When all workers have voted with the same number, no item is held, and
//                         none that came is left. All workers must be resident
//
// The queue orders what a spawned item reads of its ancestors, and what later items read of spawned ones: the put is a
// release, the take is an acquire; whoever is done releases to the count, an end item or a vote, and whoever sees the
// end acquires. Spawned items post no semaphore.
//
// A run uses one of two sets of counters and clears the other one for the next run. The worker that takes an item
// clears its slot. A vote carries the number of its run.
#pragma once
#include "common.cuh"

constexpr unsigned DONE = 0xffffffffu;  // in a slot, in place of row + 1: nothing is left
constexpr int HEAD = 0, TAIL = 1, OUTSTANDING = 2, LATER = 3;
DEVICE unsigned* counter_of(const Launch& launch, unsigned run, int which) {
  return launch.queue.counters + ((run & 1) * COUNTERS + which) * SPREAD;
}
DEVICE unsigned counted(const Launch& launch, unsigned run, int which) {
  return (unsigned)load_relaxed(reinterpret_cast<const int*>(counter_of(launch, run, which)));
}
DEVICE unsigned long long load_queue_slot(const unsigned long long* at) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
DEVICE void store_queue_slot(unsigned long long* at, unsigned run, unsigned number) {
  const unsigned long long value = (unsigned long long)(run + 1) << 32 | number;
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value) : "memory");
}
struct CountTermination {
  // Called by a warp: `count` items are about to come.
  DEVICE static void expect(const Launch& launch, unsigned run, int count) {
    if (first_lane()) atomicAdd(counter_of(launch, run, OUTSTANDING), (unsigned)count);
  }
  // Called by a warp: an item is done, and all that it spawns has come.
  DEVICE static void count_off(const Launch& launch, const Item& item) {
    if (!first_lane()) return;
    int* const at = reinterpret_cast<int*>(counter_of(launch, item.run, OUTSTANDING));
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(-1) : "memory");
  }
  // Called by a warp that has nothing: returns whether no item is outstanding.
  DEVICE static bool ended(const Launch& launch, unsigned run, int place, int sent) {
    return launch.queue.ready + load_acquire(reinterpret_cast<const int*>(counter_of(launch, run, OUTSTANDING))) == 0;
  }
};
struct DoneItemsTermination : CountTermination {
  DEVICE static void count_off(const Launch& launch, const Item& item) {
    unsigned before = 0;
    if (first_lane()) {
      unsigned* const at = counter_of(launch, item.run, OUTSTANDING);
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(__cvta_generic_to_global(at)), "r"(-1)
                   : "memory");
    }
    if (launch.queue.ready + (int)__shfl_sync(0xffffffff, before, 0) != 1) return;
    __syncwarp();
    unsigned place = 0;
    if (first_lane()) place = atomicAdd(counter_of(launch, item.run, TAIL), (unsigned)launch.programs);
    place = __shfl_sync(0xffffffff, place, 0);
#pragma unroll 1
    for (int n = threadIdx.x % 32; n < launch.programs; n += 32) {
      store_queue_slot(launch.queue.slots + place + n, item.run, DONE);
    }
  }
  DEVICE static bool ended(const Launch& launch, unsigned run, int place, int sent) { return false; }
};
struct VotesTermination {
  DEVICE static void expect(const Launch& launch, unsigned run, int count) {}
  DEVICE static void count_off(const Launch& launch, const Item& item) {
    if (!first_lane()) return;
    unsigned long long* const at = launch.queue.votes + launch.programs + blockIdx.x;
    const unsigned long long before = *(volatile unsigned long long*)at;
    store_queue_slot(at, item.run, (unsigned)(before >> 32) == item.run + 1 ? (unsigned)before + 1 : 1);
  }
  DEVICE static bool ended(const Launch& launch, unsigned run, int place, int sent) {
    const unsigned long long tag = (unsigned long long)(run + 1) << 32;
    const bool posted =
        !sent || load_queue_slot(launch.queue.votes + launch.programs + blockIdx.x) == (tag | (unsigned)sent);
    if (!__any_sync(0xffffffff, posted)) return false;
    __syncwarp();
    const unsigned came = counted(launch, run, TAIL);
    if (__any_sync(0xffffffff, place - launch.queue.ready < (int)came)) return false;
    const unsigned mine = __shfl_sync(0xffffffff, came, 0) + 1;  // no vote is 0
    if (first_lane()) store_queue_slot(launch.queue.votes + blockIdx.x, run, mine);
    bool all = true;
#pragma unroll 1
    for (int n = threadIdx.x % 32; n < launch.programs; n += 32)
      all &= load_queue_slot(launch.queue.votes + n) == (tag | mine);
    all = !__any_sync(0xffffffff, !all);
    __syncwarp();
    return all;
  }
};
template <class Termination> struct SpawnDispatch : DispatchBase {
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
  // Called by a warp: returns the row of the item that comes to a place, -1 if none will come or the wait failed.
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
      const bool end = __any_sync(0xffffffff, Termination::ended(launch, run, place, sent));
      __syncwarp();
      if (end) {
        // An item that came although none was outstanding is awaited, so that the error names it.
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
      // For an item that is not there yet, another block may be free first.
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
  // Called by a warp: puts the items that an item spawns. Returns a place beyond the queue if not all fit, else -1.
  DEVICE static int spawn(const Launch& launch, const Item& item) {
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
      Termination::expect(launch, item.run, count);
      if (first_lane()) random_delay(launch, item, 2);
      unsigned place = 0;
      if (first_lane()) place = atomicAdd(counter_of(launch, item.run, TAIL), (unsigned)count);
      place = __shfl_sync(0xffffffff, place, 0) + __popc(some & ((1u << threadIdx.x % 32) - 1));
      if (!wanted) continue;
      if (place < (unsigned)queue.capacity) {
        store_queue_slot(queue.slots + place, item.run, queue.rows[child] + 1u);
      } else {
        beyond = (int)place;
      }
    }
    return __reduce_max_sync(0xffffffff, beyond);
  }
  // Called by a warp. Items of the queue have numbers of semaphores from `queue.semaphores` on, the first one for none
  // (megakernel/spawning.py).
  DEVICE static void publish(const Launch& launch, const Item& item, int semaphore) {
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
    Termination::count_off(launch, item);
  }
};
