// Tile, wait and post for a launch of one thread block per item (loops/cuda/preamble.py).
#pragma once
#include "../semaphore.cuh"
#include "generated/sync.cuh"

struct Item : ItemRow {
  unsigned long long run, arrived_ns, start_ns;
};
// Called by all threads: returns the item of this block. What the item reads is visible then, to bulk copies too.
DEVICE Item begin_item(const Sync& sync, unsigned long long* shared_run) {
  Item item = {load_row(sync.items + (sync.first + (int)blockIdx.x)), 0, 0, 0};
  if (sync.trace) item.arrived_ns = nanoseconds();
  if (sync.semaphores) {
    if (threadIdx.x == 0) *shared_run = atomicAdd(sync.starts, 1ull) / sync.programs;
    __syncthreads();
    item.run = *shared_run;
    random_delay(sync, item, 0);
    for (int wait = item.wait_lo; wait < item.wait_hi; ++wait) {
      await_posts(sync, item, load_row(sync.waits + wait), threadIdx.x, blockDim.x, 64);
      __syncthreads();
    }
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
    TraceRow& row = sync.trace[item.number];
    row.arrived_ns = item.arrived_ns;
    row.start_ns = item.start_ns;
    row.end_ns = nanoseconds();
    row.place = (long long)blockIdx.x << 32 | multiprocessor();
  }
}
