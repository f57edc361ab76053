// Termination: an end item for each worker.
#pragma once
#include "counted.cuh"

DEVICE void count_off(const Launch& launch, const Item& item) {
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
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) { return false; }
