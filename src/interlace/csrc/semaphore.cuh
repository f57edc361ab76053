// Semaphores in global memory: release adds, acquire polls, a watchdog.
#pragma once
#include "ptx.cuh"
#include "generated/tables.cuh"

DEVICE int load_acquire(const int* at) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
DEVICE int load_relaxed(const int* at) {
  int value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
  return value;
}
// Counters wrap. Of signed numbers the compiler assumes that they do not, and would compare the two instead of this.
DEVICE int posts_behind(unsigned target, const int* at) { return (int)(target - (unsigned)load_acquire(at)); }
DEVICE void add_release(int* at) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(__cvta_generic_to_global(at)) : "memory");
}
DEVICE unsigned fetch_add_release(int* at) {
  unsigned before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return before;
}
DEVICE unsigned long long add_acquire_release(unsigned long long* at) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return before;
}
template <class L, class I> DEVICE void random_delay(const L& launch, const I& item, int salt) {
  if (!launch.jitter_ns) return;
  unsigned long long mixed = (item.number * 4ull + salt + 1) * 1640531527ull + (item.run + 1ull) * 2246822519ull;
  mixed = (mixed ^ mixed >> 15) * 739982445ull;
  const unsigned long long delay = ((mixed ^ mixed >> 13) & 0x7fffffff) % launch.jitter_ns, since = nanoseconds();
#pragma unroll 1
  while (nanoseconds() - since < delay) {}
}
template <class L> DEVICE void note(const L& launch, int failed, int item, int semaphore, int expected, int seen) {
  Record& record = *launch.record;
  record.item = item;
  record.semaphore = semaphore;
  record.expected = expected;
  record.seen = seen;
  __threadfence_system();
  record.failed = failed;
}
// The first failed wait records itself, with item, semaphore, posts expected and seen; later ones leave it as it is.
template <class L> DEVICE void give_up(const L& launch, int item, int semaphore, int expected, int seen) {
  if (!atomicCAS(launch.fault, 0, 1)) note(launch, 1, item, semaphore, expected, seen);
}
// One wait of an item, by some threads: every `step`-th semaphore from `lane` on. They must meet before they read.
// `nap_ns`: between two polls.
template <class L, class I>
DEVICE void await_posts(const L& launch, const I& item, const WaitRow& wait, int lane, int step, unsigned nap_ns) {
  const unsigned target = (unsigned)(item.run + 1) * (unsigned)wait.threshold;
#pragma unroll 1
  for (int s = lane; s < wait.count; s += step) {
    const int semaphore = wait.first + s * wait.stride;
    const int* const at = launch.semaphores + semaphore;
    int behind = posts_behind(target, at);
    const unsigned long long since = nanoseconds();
#pragma unroll 1
    while (behind > 0) {
      __nanosleep(nap_ns);
      behind = posts_behind(target, at);
      const unsigned long long waited = nanoseconds() - since;
      // Another's failure is looked for now and then, since that takes as long as a poll.
      if (waited > launch.timeout_ns || (waited % 16384 >= 12288 && load_relaxed(launch.fault))) break;
    }
    if (behind > 0) give_up(launch, item.number, semaphore, wait.threshold, wait.threshold - behind);
  }
}
