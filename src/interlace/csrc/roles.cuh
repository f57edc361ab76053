// The megakernel: roles of the warps of a block, and the loop of each role over items.
//
//   warps                   role
//   first 4 * WARPGROUPS    consumers: warpgroups that multiply, each its part of a tile's rows, and run its epilogue
//   then one                loader: claims items; loads what depends on nothing, as far ahead as the ring is deep,
//                           across items, ops and launches
//   then one                dependent loader: waits on semaphores or polls LL words; loads what earlier items produced
//   then one                storer: posts what consumers have finished, which takes a trip to the L2 and back
//   then one                none, but a dispatcher's in the first block: registers are assigned to whole warpgroups
//
// megakernel/compose.py generates `prefetch`, `look_ahead`, `load` and `compute`, which branch to the code of an item's
// op. The dispatch decides which item is next, and says why there is progress (dispatch/common.cuh). Where blocks have
// queues of their own, all blocks must be resident: no more blocks than SMs, which the executor checks, and no other
// kernel that holds an SM and waits for this one.
//
// Dependent launch: the blocks of the next launch start when every block of this one has seen that no item is left for
// it. All blocks have begun by then, so even with queues of their own no block waits for one that finds no room. The
// loader's loads precede `griddepcontrol.wait`, everything else follows it: the launch before must not write what they
// read.
//
// Watchdog: a wait on a semaphore, or for partial sums of other parts, that takes longer than `timeout_ns` records
// itself and falls through, as do all waits after it. Waits on barriers of the block can last no longer than those, if
// all roles count the same stages. Each message has the position of its item's first stage, also the message after the
// last item. The dependent loader compares it with its own position; the storer compares it with the positions of the
// consumer warpgroups when they have finished. If they differ, or if the other roles keep the storer waiting for twice
// `timeout_ns` and a second, the record names the item, and the launch ends with a trap.
#pragma once
#include "generated/switches.cuh"

DEVICE void run_loader(const Launch& launch) {
  int sent_already = 0, n = 0;
  Stage stage = {0, 0};
  Tickets tickets;
  const unsigned run = tickets.begin(launch);
  int row = tickets.take(launch, 0);
  int word = word_of(launch, max(row, 0));
#pragma unroll 1
  while (row >= 0) {
    const Item item = send(launch, sent_already++, word, run, true, stage);
    // A queue of its own tells the next item before this one is loaded: no load would begin while a row is in flight.
    const int known = tickets.known();
    if (known >= 0) word = word_of(launch, known);
    const Stage first = stage;
    const int before = n;
    prefetch(launch, item, stage, n, tickets);
    // If the item has more stages than the ring, the first one's slot of dependent operands may be two rounds on; the
    // first of the last STAGES stages tells then. Until the item before is finished, slots of dependent operands may be
    // a round behind those of weights, which consumers take into registers.
    if (CLAIMS_AHEAD && item.code & LAST) {
      await_finished(launch, sent_already, 1);
      await_begin(n - before < STAGES ? first : Stage{stage.slot, stage.phase ^ 1});
    }
    row = tickets.take(launch, sent_already);
    if (row >= 0 && row != known) word = word_of(launch, row);
  }
  send(launch, sent_already, 0, run, false, stage);
  launch_dependents();
}
// Called by any thread: ends the launch when the host can read why. The first caller records its reason, also in place
// of a wait that failed before: what that waited for may be missing for this very reason.
DEVICE void end_launch(const Launch& launch, int item, int why, int expected, int seen) {
  const volatile int& failed = launch.record->failed;
  int before = atomicCAS(launch.fault, 0, ENDED);
  if (before == 1) before = atomicCAS(launch.fault, 1, ENDED);
  while (before == 1 && !failed) __nanosleep(1000);
  __threadfence_system();
  if (before != ENDED) note(launch, ENDED, item, why, expected, seen);
  while (failed != ENDED) __nanosleep(1000);
  asm volatile("trap;");
}
// Returns the number of stages from one position to another that is less than a ring before or after it.
DEVICE int stages_between(int place, int later) { return (later - place + 3 * STAGES - 1) % (2 * STAGES) - STAGES + 1; }
DEVICE void run_dependent_loader(const Launch& launch) {
  await_launch_before();
  Stage stage = {0, 0};
  Item item;
  int before = -1, place;
#pragma unroll 1
  for (int taken = 0;; ++taken) {
    const bool any = receive(launch, taken, item, place);
    if (stage.place() != place) end_launch(launch, before, MISCOUNTED, 1, stages_between(place, stage.place()));
    if (!any) return;
    before = item.number;
    TraceRow& entry = launch.trace[item.number];
    if (launch.trace && first_lane()) entry.arrived_ns = nanoseconds();
    look_ahead(launch, item);
    random_delay(launch, item, 0);
    await_rows(launch, item, item.wait_lo, item.wait_mid);
    if (launch.trace && first_lane()) entry.start_ns = nanoseconds();
    int k = item.k_lo, wait = item.wait_mid;
#pragma unroll 1
    for (;;) {
      const int until = wait < item.wait_hi ? load_row(launch.waits + wait).k : item.k_hi;
      asm volatile("fence.proxy.async.global;" ::: "memory");
      load(launch, item, k, until, stage);
      k = until;
      if (wait >= item.wait_hi) break;
      const int end = waits_before(launch, item, wait, k);
      await_rows(launch, item, wait, end);
      wait = end;
    }
  }
}
DEVICE void run_consumer(const Launch& launch) {
  Stage stage = {0, 0};
  Item item;
  int place;
#pragma unroll 1
  for (int taken = 0; receive(launch, taken, item, place); ++taken) {
    compute(launch, item, stage);
    hand_over(launch, item, stage, taken);
  }
}
// Returns false if the wait lasts longer than an item may: its waits on semaphores, which are watched, and its work.
DEVICE bool await_watched(const Launch& launch, unsigned barrier, unsigned parity) {
  unsigned long long since = 0;
#pragma unroll 1
  for (unsigned tries = 1; !mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries % 1024) continue;  // reading the clock takes longer than most waits
    if (!since) since = nanoseconds();
    if (nanoseconds() - since > 2 * launch.timeout_ns + 1000000000ull) return false;
  }
  return true;
}
// Consumers store; the thread that arrives on `finished` sees these stores by their barrier; the storer sees them by
// its wait for that arrival, and releases them. It acknowledges a message after that wait, so consumers are never so
// far ahead that the storer misses a phase.
DEVICE void run_storer(const Launch& launch) {
  await_launch_before();                               // no item ends before
  int before = -1, kept = 0, places[WARPGROUPS] = {};  // the item before, and what its consumers reported
#pragma unroll 1
  for (int taken = 0;; ++taken) {
    const int message = taken % TICKETS;
    const bool came = await_watched(launch, sent(message), taken / TICKETS & 1);
    const int4 last = load_shared_128(last_of(message));
    const Item item = item_of(message, (unsigned)last.x);
    int place = last.z;  // position of a warpgroup that counted otherwise, if there is one
#pragma unroll
    for (int g = 0; g < WARPGROUPS; ++g)
      if (places[g] != last.z) place = places[g];
    const bool begins = came && place == last.z;
    bool ends = begins;
    if (begins && last.y) ends = await_watched(launch, finished(message), taken / TICKETS & 1);
    if (!ends) {
      const int why = came && !begins ? MISCOUNTED : UNFINISHED;
      end_launch(launch, begins ? item.number : before, why, begins, stages_between(last.z, place));
    }
    if (last.y) {
      kept = load_shared_word(kept_at(message));
#pragma unroll
      for (int g = 0; g < WARPGROUPS; ++g) places[g] = load_shared_word(kept_at(message) + 4 + g * 4);
    }
    __syncwarp();
    if (first_lane()) mbarrier_arrive(received(message));
    if (!last.y) return;
    before = item.number;
    const int semaphore = leaves_sums(item) ? item.split : item.post;
    if (semaphore >= 0) Tickets::publish(launch, item, semaphore);
    Tickets::finish(launch, item, taken, semaphore);
    __syncwarp();
    for (int n = threadIdx.x % 32; n < kept >> 16; n += 32) hand_back_kept(((kept & 0xffff) + n) % STAGES);
    if (launch.trace && first_lane()) {
      unsigned sm;
      asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
      TraceRow& entry = launch.trace[item.number];
      entry.end_ns = nanoseconds();
      entry.place = (long long)blockIdx.x << 32 | sm;
    }
  }
}
constexpr int ALL_THREADS = WARPGROUPS * 128 + 128;
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) one_launch(const __grid_constant__ Launch launch) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(prefetch_full(s), 1);
      mbarrier_init(load_full(s), 1);
      mbarrier_init(prefetch_empty(s), CLUSTER * WARPGROUPS * 4);
      mbarrier_init(load_empty(s), CLUSTER_COLUMNS * WARPGROUPS * 4);
    }
    for (int t = 0; t < TICKETS; ++t) {
      mbarrier_init(sent(t), 1);
      mbarrier_init(received(t), WARPGROUPS * 4 + 2);
      mbarrier_init(finished(t), WARPGROUPS);
    }
    for (int w = 0; w < WORDS; ++w) mbarrier_init(heard(w), 1);
    fence_mbarrier_init();
  }
  begin_together();
  if (threadIdx.x < WARPGROUPS * 128) {
    if (WARPGROUPS > 1) registers_raise<CONSUMER_REGISTERS>();
    run_consumer(launch);
  } else {
    if (WARPGROUPS > 1) registers_lower<LOADER_REGISTERS>();
    const int warp = threadIdx.x / 32 - WARPGROUPS * 4;
    if (warp == 0) run_loader(launch);
    if (warp == 1) run_dependent_loader(launch);
    if (warp == 2) run_storer(launch);
    if (warp == 3) Tickets::serve(launch);
  }
  end_together();
}
