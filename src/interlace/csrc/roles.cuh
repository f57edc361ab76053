// The kernel: loops of the loader, the waiting loader, the consumers and the warp that posts.
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
    // A list tells the next item before this one is loaded, and nothing is loaded while a row is on its way.
    const int known = tickets.known();
    if (known >= 0) word = word_of(launch, known);
    const Stage first = stage;
    const int before = n;
    prefetch(launch, item, stage, n, tickets);
    // Of more stages than a ring has, the first one's slot for tokens may be two turns on; then the first of the last
    // STAGES tells. Until the item before is finished, slots for tokens may be a turn behind those for weights, which
    // consumers take into registers.
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
// By any threads: the launch ends here, when the host can read why. Who is first says that, in place of a wait that
// failed before, which may be for what was never done for this.
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
// How many stages one place is behind another, of up to a ring before it or behind it.
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
// False if it takes longer than an item lasts, whose waits on semaphores are watched, with its work.
DEVICE bool await_watched(const Launch& launch, unsigned barrier, unsigned parity) {
  unsigned long long since = 0;
#pragma unroll 1
  for (unsigned tries = 1; !mbarrier_try_wait(barrier, parity); ++tries) {
    if (tries % 1024) continue;  // reading the clock takes longer than what is mostly waited for
    if (!since) since = nanoseconds();
    if (nanoseconds() - since > 2 * launch.timeout_ns + 1000000000ull) return false;
  }
  return true;
}
// What the consumers stored, and the thread that arrived saw by their barrier, this warp sees by the wait for it, and
// releases. A message is handed back behind that wait, so consumers are never so far ahead that a phase is missed.
DEVICE void run_storer(const Launch& launch) {
  await_launch_before();                               // no item ends before that
  int before = -1, kept = 0, places[WARPGROUPS] = {};  // the item before, and what its consumers told
#pragma unroll 1
  for (int taken = 0;; ++taken) {
    const int message = taken % TICKETS;
    const bool came = await_watched(launch, sent(message), taken / TICKETS & 1);
    const int4 last = load_shared_128(last_of(message));
    const Item item = item_of(message, (unsigned)last.x);
    int place = last.z;  // of a warpgroup that is elsewhere, if one is
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
    if (semaphore >= 0) publish(launch, item, semaphore);
    finish(launch, item, taken, semaphore);
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
    if (warp == 3) serve(launch);
  }
  end_together();
}
