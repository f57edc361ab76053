// Queue of spawned items.
#pragma once
#include "../claim.cuh"
#include "../no_dispatcher.cuh"
#include "generated/late.cuh"
#include "generated/spawn.cuh"

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
