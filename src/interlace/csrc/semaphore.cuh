// Semaphores in global memory, for kernels in CUDA C++; kernels/primitives/semaphore.py is the same in Triton.
//
// Counters, epochs, watchdog, random delays and memory order are those of that module; the tables are those of
// kernels/abi. The source that follows decides how threads share the work, and where they synchronise:
//
//   ... all threads' stores, a barrier ...
//   if (threadIdx.x == 0) add_release(launch.semaphores + item.post);
//
//   await_posts(launch, item, load_row(launch.waits + wait), threadIdx.x, blockDim.x, 64);
//   ... a barrier; before bulk loads, fence.proxy.async.global ...
//
// `L` is any struct with the fields `semaphores`, `fault`, `record`, `timeout_ns` and `jitter_ns` of `abi.SYNC`; `I` is
// any struct with `number`, as a row of the item table has it, and `run`.
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
// Returns how many posts are missing. Counters wrap. The compiler assumes that signed numbers do not, and would compare
// the two numbers instead of their difference.
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
// Records the first failed wait: item, semaphore, posts expected and seen. Later ones change nothing.
template <class L> DEVICE void give_up(const L& launch, int item, int semaphore, int expected, int seen) {
  if (!atomicCAS(launch.fault, 0, 1)) note(launch, 1, item, semaphore, expected, seen);
}
// Awaits every `step`-th semaphore of a wait from `lane` on, with `nap_ns` between two polls. The threads that share a
// wait must synchronise before they read what it is for.
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
      // Looks for another thread's failure only now and then, since that takes as long as a poll.
      if (waited > launch.timeout_ns || (waited % 16384 >= 12288 && load_relaxed(launch.fault))) break;
    }
    if (behind > 0) give_up(launch, item.number, semaphore, wait.threshold, wait.threshold - behind);
  }
}
