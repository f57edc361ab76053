"""Semaphores in global memory as CUDA C++: ``tile``, ``wait`` and ``post`` of ``semaphore`` for kernels that are text.

Tables, counters, epochs, watchdog, trace and memory order are those of ``semaphore``; ``Sync`` here holds what its
``Sync`` holds, without the compile-time switches. A launch has one thread block per item.

    const Item item = begin_item(sync, run);    all threads; ``run`` is 8 bytes of shared memory
    ... tile item.at[0], item.at[1], item.at[2] ...
    end_item(sync, item);                       all threads, once the thread that stored by TMA has awaited that
"""

from __future__ import annotations

SEMAPHORES = r"""
// Pointers are null where there is nothing to do: semaphores if the launch order enforces everything, trace.
struct Sync {
  const int* items;
  const int* waits;
  int* semaphores;
  int* done;
  int* fault;
  int* record;
  long long* trace;
  unsigned long long* starts;
  unsigned long long timeout_ns, jitter_ns;
  int first, programs;
};
struct Item {
  int at[3], wait_lo, wait_hi, post, number;
  unsigned long long run, arrived_ns, start_ns;
};
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
DEVICE void random_delay(const Sync& sync, const Item& item, int salt) {
  if (!sync.jitter_ns) return;
  unsigned long long mixed = (item.number * 2ull + salt + 1) * 1640531527ull + (item.run + 1) * 2246822519ull;
  mixed = (mixed ^ mixed >> 15) * 739982445ull;
  const unsigned long long delay = ((mixed ^ mixed >> 13) & 0x7fffffff) % sync.jitter_ns, since = nanoseconds();
  while (nanoseconds() - since < delay) {
  }
}
// The first failed wait records itself, with item, semaphore, posts expected and seen; later ones leave it as it is.
DEVICE void give_up(const Sync& sync, int item, int semaphore, int expected, int seen) {
  if (atomicCAS(sync.fault, 0, 1)) return;
  sync.record[1] = item;
  sync.record[2] = semaphore;
  sync.record[3] = expected;
  sync.record[4] = seen;
  __threadfence_system();
  sync.record[0] = 1;
}
// A row of the table of waits: a semaphore to each thread, then all threads meet.
DEVICE void await_row(const Sync& sync, const Item& item, const int* row) {
  const int first = row[0], count = row[1], stride = row[2], threshold = row[3];
  const unsigned target = (unsigned)((item.run + 1) * threshold);
  for (int s = threadIdx.x; s < count; s += blockDim.x) {
    const int semaphore = first + s * stride;
    int behind = posts_behind(target, sync.semaphores + semaphore);
    const unsigned long long since = nanoseconds();
    while (behind > 0) {
      __nanosleep(64);
      behind = posts_behind(target, sync.semaphores + semaphore);
      if (behind > 0 && (load_relaxed(sync.fault) || nanoseconds() - since > sync.timeout_ns)) {
        give_up(sync, item.number, semaphore, threshold, threshold - behind);
        behind = 0;
      }
    }
  }
  __syncthreads();
}
// The item of this block; what it reads is visible afterwards, to bulk copies too.
DEVICE Item begin_item(const Sync& sync, unsigned long long* shared_run) {
  const int* const row = sync.items + (long long)(sync.first + (int)blockIdx.x) * 16;
  Item item = {{row[1], row[2], row[3]}, row[6], row[8], row[9], row[14], 0, 0, 0};
  if (sync.trace) item.arrived_ns = nanoseconds();
  if (sync.semaphores) {
    if (threadIdx.x == 0) *shared_run = atomicAdd(sync.starts, 1ull) / sync.programs;
    __syncthreads();
    item.run = *shared_run;
    random_delay(sync, item, 0);
    for (int wait = item.wait_lo; wait < item.wait_hi; ++wait) await_row(sync, item, sync.waits + wait * 8);
    __syncthreads();
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }
  if (sync.trace) item.start_ns = nanoseconds();
  return item;
}
DEVICE void end_item(const Sync& sync, const Item& item) {
  if (sync.semaphores && item.post >= 0) {
    random_delay(sync, item, 1);
    if (threadIdx.x == 0) sync.done[item.number] = (int)(item.run + 1);
    __syncthreads();
    if (threadIdx.x == 0) add_release(sync.semaphores + item.post);
  }
  if (!sync.trace) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long* const entry = sync.trace + (long long)item.number * 4;
    entry[0] = item.arrived_ns;
    entry[1] = item.start_ns;
    entry[2] = nanoseconds();
    entry[3] = (long long)blockIdx.x << 32 | sm;
  }
}
"""
