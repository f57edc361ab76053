// A stream of bulk loads over flat memory, without arithmetic: a lower bound for memory-bound problems.
#pragma once
#include "ring/bulk_load.cuh"
#include "generated/stream.cuh"

extern __shared__ __align__(1024) unsigned char shared_memory[];

// Each block reads an equal share of the boxes into its shared memory and drops them. The next stream may begin as soon
// as an SM has room, because nobody writes what it reads.
extern "C" __global__ void __launch_bounds__(32, 1) stream(const unsigned char* source, long long boxes) {
  const unsigned slots = shared_address(shared_memory), full = slots + STAGES * BOX_BYTES;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x) return;
  for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
  fence_mbarrier_init();
  const long long first = blockIdx.x * boxes / gridDim.x;
  const int mine = (int)((blockIdx.x + 1) * boxes / gridDim.x - first);
  for (int n = 0; n < mine + STAGES; ++n) {
    const int s = n % STAGES;
    if (n >= STAGES && n - STAGES < mine) mbarrier_wait(full + 8 * s, (n / STAGES - 1) & 1);
    if (n < mine) {
      mbarrier_arrive_expect_tx(full + 8 * s, BOX_BYTES);
      bulk_load(slots + s * BOX_BYTES, source + (first + n) * BOX_BYTES, BOX_BYTES, full + 8 * s, evict_first());
    }
  }
}
