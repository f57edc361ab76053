// Termination: workers vote.
#pragma once
#include "queue.cuh"

DEVICE void expect(const Launch& launch, unsigned run, int count) {}
DEVICE void count_off(const Launch& launch, const Item& item) {
  if (!first_lane()) return;
  unsigned long long* const at = launch.queue.votes + launch.programs + blockIdx.x;
  const unsigned long long before = *(volatile unsigned long long*)at;
  store_queue_slot(at, item.run, (unsigned)(before >> 32) == item.run + 1 ? (unsigned)before + 1 : 1);
}
DEVICE bool ended(const Launch& launch, unsigned run, int place, int sent) {
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
