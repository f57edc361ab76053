// PTX instructions as functions. Addresses of shared memory are 32-bit, in the shared window (`shared_address`).
//
// Each load creates its L2 policy in place: ptxas makes constants of these, whereas a policy that all loads share takes
// registers from end to end and made a launch spill. Hence `volatile`.
#pragma once
#include "offsetof.cuh"
#include "generated/tensor_map.cuh"

#define WATCHDOG 2000000000ull
#define DEVICE __device__ __forceinline__

DEVICE unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }
DEVICE unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
DEVICE unsigned multiprocessor() {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}
// Volatile loads, issued where they stand: the compiler would postpone others until their values are used.
DEVICE unsigned load_32_now(const void* at) {
  unsigned bits;
  asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
  return bits;
}
DEVICE float load_now(const float* at) { return __uint_as_float(load_32_now(at)); }
DEVICE float4 load_four_now(const float* at) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
DEVICE int4 load_constant_now(const void* at) {
  int4 v;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}

// Barriers in shared memory. A new one is in phase 0; a wait names the parity of the phase that must have ended. A wait
// traps after WATCHDOG nanoseconds.
DEVICE void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void mbarrier_inval(unsigned barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Makes initialised barriers visible to the async proxy.
DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void mbarrier_arrive_many(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}
// The same without suspending the thread.
DEVICE bool mbarrier_passed(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}
DEVICE void mbarrier_wait(unsigned barrier, unsigned parity) {
  if (mbarrier_try_wait(barrier, parity)) return;
  const unsigned long long start = nanoseconds();
  while (!mbarrier_try_wait(barrier, parity))
    if (nanoseconds() - start > WATCHDOG) asm volatile("trap;");
}
// Makes ordinary writes to shared memory visible to bulk copies and tensor cores; call it before the barrier that these
// follow.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Bulk copies of a box of a tensor, innermost coordinate first.
DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
DEVICE void tma_load_1d(unsigned target, const TensorMap& map, int x, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
          target),
      "l"(&map), "r"(x), "r"(barrier)
      : "memory");
}
DEVICE void tma_load_2d(unsigned target, const TensorMap& map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          target),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
DEVICE void tma_load_3d(unsigned target, const TensorMap& map, int x, int y, int z, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
DEVICE void tma_load_4d(unsigned target, const TensorMap& map, int x, int y, int z, int w, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
// Eviction policies of the L2: data that is read once makes room for data that is read again (PTX ISA, "createpolicy").
DEVICE unsigned long long evict_first() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
DEVICE unsigned long long evict_normal() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  return policy;
}
DEVICE void tma_load_2d(unsigned target, const TensorMap& map, int x, int y, unsigned barrier,
                        unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}
DEVICE void tma_load_3d(unsigned target, const TensorMap& map, int x, int y, int z, unsigned barrier,
                        unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
      : "memory");
}
DEVICE void tma_load_4d(unsigned target, const TensorMap& map, int x, int y, int z, int w, unsigned barrier,
                        unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(target),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
}
DEVICE void tma_store_1d(const TensorMap& map, int x, unsigned source) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];" ::"l"(&map), "r"(x),
               "r"(source)
               : "memory");
}
DEVICE void tma_store_2d(const TensorMap& map, int x, int y, unsigned source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(source)
               : "memory");
}
DEVICE void tma_store_3d(const TensorMap& map, int x, int y, int z, unsigned source) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(source)
               : "memory");
}
// Bulk stores of this thread, in groups: `read` waits until all but the newest PENDING groups left shared memory.
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING> DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Copies 16 bytes asynchronously; the first `bytes` exist, the rest becomes zeros. If fewer than 16 exist, only their
// words are read; if none exists, the address is `base`.
DEVICE void copy_async_16(unsigned target, const void* source, const void* base, int bytes) {
  if (bytes <= 0 || bytes >= 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(__cvta_generic_to_global(bytes > 0 ? source : base)), "r"(bytes > 0 ? 16 : 0)
                 : "memory");
    return;
  }
#pragma unroll
  for (int at = 0; at < 16; at += 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target + at),
                 "l"(__cvta_generic_to_global(at < bytes ? static_cast<const char*>(source) + at : base)),
                 "r"(min(max(bytes - at, 0), 4))
                 : "memory");
}
// Arrives on a barrier when this thread's copies have landed; the barrier counts it as one of its arrivals.
DEVICE void copy_async_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Warp specialisation: registers of a warpgroup, barriers of some of the threads.
template <int REGISTERS> DEVICE void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
DEVICE void named_barrier(unsigned name, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Matrix products of a warpgroup. An operand is stored in shared memory as rows of 64 elements along k (128 bytes),
// with the 128-byte swizzle, aligned to 1024 bytes, in groups of 8 rows. The address advances 32 bytes for 16 elements
// along k.
DEVICE unsigned long long matrix_descriptor(unsigned address) {
  return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps reads of accumulators after the wait that precedes this.
template <int COUNT> DEVICE void settle(float (&values)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
