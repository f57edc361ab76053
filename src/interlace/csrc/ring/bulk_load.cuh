// Bulk copies of consecutive bytes, without a tensor map.
#pragma once
#include "../ptx.cuh"

// Source and target are at multiples of 16 bytes, and `bytes` is a multiple of 16.
DEVICE void bulk_load(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier)
               : "memory");
}
DEVICE void bulk_load(unsigned target, const void* source, unsigned bytes, unsigned barrier,
                      unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(target),
      "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
