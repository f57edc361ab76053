// What the text of a kernel uses of CUDA C++, for a C++ compiler: keywords, built-in variables and functions, and the
// PTX instructions as ``translate.py`` calls them. Shared memory is the array ``shared`` of a kernel's own namespace.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

struct Dim3 {
  unsigned x, y, z;
};
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;
struct uint4 {
  unsigned x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

void __syncthreads();
void __syncwarp(unsigned lanes = 0xffffffff);
unsigned long long shuffle(unsigned lanes, unsigned long long value, int from);  // the value of a lane
template <class T> __forceinline__ T __shfl_sync(unsigned lanes, T value, int from) {
  return static_cast<T>(shuffle(lanes, value, from));
}
__forceinline__ float __shfl_sync(unsigned lanes, float value, int from) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  return __builtin_bit_cast(float, static_cast<unsigned>(shuffle(lanes, bits, from)));
}
__forceinline__ float __shfl_xor_sync(unsigned lanes, float value, int distance) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  return __builtin_bit_cast(float, static_cast<unsigned>(shuffle(lanes, bits, (threadIdx.x % 32) ^ distance)));
}
__forceinline__ int __shfl_up_sync(unsigned lanes, int value, int distance) {
  const int from = static_cast<int>(threadIdx.x % 32) - distance;
  return static_cast<int>(shuffle(lanes, static_cast<unsigned>(value), from < 0 ? threadIdx.x % 32 : from));
}
__forceinline__ int __shfl_xor_sync(unsigned lanes, int value, int distance) {
  return static_cast<int>(shuffle(lanes, static_cast<unsigned>(value), (threadIdx.x % 32) ^ distance));
}
// What all lanes say, by one meeting of them.
unsigned __ballot_sync(unsigned lanes, bool holds);
unsigned __reduce_min_sync(unsigned lanes, unsigned value);
unsigned __reduce_add_sync(unsigned lanes, unsigned value);
inline bool __any_sync(unsigned lanes, bool holds) { return __ballot_sync(lanes, holds); }
inline int __reduce_min_sync(unsigned lanes, int value) {
  return static_cast<int>(__reduce_min_sync(lanes, static_cast<unsigned>(value) ^ 1u << 31) ^ 1u << 31);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(static_cast<unsigned>(bits)) : 32; }
inline int __reduce_max_sync(unsigned lanes, int value) { return -__reduce_min_sync(lanes, -value); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
unsigned long long __cvta_generic_to_shared(const void* pointer);
inline const void* __cvta_generic_to_global(const void* pointer) { return pointer; }
void __nanosleep(unsigned nanoseconds);
inline void __threadfence_system() {}
// Of 4 or 8 bytes; atomic for blocks that run at once, too.
unsigned long long atomic_add(void* at, unsigned bytes, unsigned long long more);
unsigned long long atomic_swap(void* at, unsigned bytes, unsigned long long expected, unsigned long long wanted);
template <class T> __forceinline__ T atomicAdd(T* at, T more) {
  return static_cast<T>(atomic_add(at, sizeof(T), static_cast<unsigned long long>(more)));
}
template <class T> __forceinline__ T atomicCAS(T* at, T expected, T wanted) {
  const auto old = static_cast<unsigned long long>(expected), made = static_cast<unsigned long long>(wanted);
  return static_cast<T>(atomic_swap(at, sizeof(T), old, made));
}
inline void __stcs(uint4* at, uint4 value) { *at = value; }
template <class T> __forceinline__ void __stcg(T* at, T value) { *at = value; }
template <class T> __forceinline__ T __ldcg(const T* at) { return *at; }
void check_read_only(const void* at, unsigned bytes);
template <class T> __forceinline__ T __ldg(const T* at) {
  check_read_only(at, sizeof(T));
  return *at;
}
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
extern "C" {
float expf(float x) noexcept;
float exp2f(float x) noexcept;
float tanhf(float x) noexcept;
float sqrtf(float x) noexcept;
float logf(float x) noexcept;
float fmaf(float x, float y, float z) noexcept;
float fmaxf(float x, float y) noexcept;
float fminf(float x, float y) noexcept;
}
#define __logf logf
#define __expf expf  // the C library has one of its own, which it does not show
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }

namespace ptx {
using Coordinates = std::initializer_list<int>;
using Registers = std::initializer_list<float*>;
using Words = std::initializer_list<int>;
using WordsOut = std::initializer_list<int*>;
using Longs = std::initializer_list<unsigned long long>;
using LongsOut = std::initializer_list<unsigned long long*>;
using Pairs = std::initializer_list<unsigned>;
using Matrices = std::initializer_list<unsigned*>;

void mov_u64_globaltimer(unsigned long long& now);
void mov_u32_smid(unsigned& sm);
[[noreturn]] void trap();

void bar_sync(unsigned name, unsigned threads);
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
void setmaxnreg_inc_sync_aligned_u32(int registers);
void setmaxnreg_dec_sync_aligned_u32(int registers);

void mbarrier_init_shared_cta_b64(unsigned barrier, unsigned arrivals);
void mbarrier_inval_shared_cta_b64(unsigned barrier);
void fence_mbarrier_init_release_cluster();
void mbarrier_arrive_shared_cta_b64(unsigned barrier, unsigned arrivals = 1);
void mbarrier_arrive_expect_tx_shared_cta_b64(unsigned barrier, unsigned bytes);
void mbarrier_try_wait_parity_shared_cta_b64(unsigned barrier, unsigned parity, unsigned& done);
void mbarrier_test_wait_parity_shared_cta_b64(unsigned barrier, unsigned parity, unsigned& done);

void fence_proxy_async_shared_cta();
void fence_proxy_async_global();
void bulk_load(unsigned target, const void* map, Coordinates at, unsigned barrier);
void bulk_store(const void* map, Coordinates at, unsigned source);
inline void cp_async_bulk_tensor_1d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* map, Coordinates at, unsigned barrier) { bulk_load(target, map, at, barrier); }
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* map, Coordinates at, unsigned barrier) { bulk_load(target, map, at, barrier); }
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* map, Coordinates at, unsigned barrier) { bulk_load(target, map, at, barrier); }
inline void cp_async_bulk_tensor_4d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* map, Coordinates at, unsigned barrier) { bulk_load(target, map, at, barrier); }
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned target, const void* source, unsigned bytes, unsigned barrier);
// What the L2 gives up first changes no result.
inline void createpolicy_fractional_L2_evict_first_b64(unsigned long long& policy) { policy = 1; }
inline void createpolicy_fractional_L2_evict_normal_b64(unsigned long long& policy) { policy = 0; }
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    unsigned target, const void* map, Coordinates at, unsigned barrier, unsigned long long) {
  bulk_load(target, map, at, barrier);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    unsigned target, const void* map, Coordinates at, unsigned barrier, unsigned long long) {
  bulk_load(target, map, at, barrier);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    unsigned target, const void* source, unsigned bytes, unsigned barrier, unsigned long long) {
  cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(target, source, bytes, barrier);
}
inline void cp_async_bulk_tensor_4d_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    unsigned target, const void* map, Coordinates at, unsigned barrier, unsigned long long policy) {
  cp_async_bulk_tensor_4d_shared_cluster_global_mbarrier_complete_tx_bytes(target, map, at, barrier);
}
inline void cp_async_bulk_tensor_1d_global_shared_cta_bulk_group(const void* map, Coordinates at, unsigned source) {
  bulk_store(map, at, source);
}
inline void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void* map, Coordinates at, unsigned source) {
  bulk_store(map, at, source);
}
inline void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, Coordinates at, unsigned source) {
  bulk_store(map, at, source);
}
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group_read(int pending);
void cp_async_bulk_wait_group(int pending);

void cp_async(unsigned target, const void* source, int size, int bytes);
inline void cp_async_cg_shared_global(unsigned target, const void* source, int size, int bytes) {
  cp_async(target, source, size, bytes);
}
inline void cp_async_ca_shared_global(unsigned target, const void* source, int size, int bytes) {
  cp_async(target, source, size, bytes);
}
void cp_async_mbarrier_arrive_noinc_shared_cta_b64(unsigned barrier);

void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int pending);
// Both operands in shared memory, or the first in registers and the second along k or, transposed, along its columns.
using Pairs = std::initializer_list<unsigned>;
void product(Registers sum, unsigned long long a, unsigned long long b, int n, bool half, bool adds);
void product(Registers sum, Pairs a, unsigned long long b, int n, bool half, bool adds, bool transposed);
#define PRODUCT(n)                                                                                               \
  inline void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_bf16_bf16(                                           \
      Registers sum, unsigned long long a, unsigned long long b, int adds, int, int, int, int) {                 \
    product(sum, a, b, n, false, adds);                                                                          \
  }                                                                                                              \
  inline void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_f16_f16(                                             \
      Registers sum, unsigned long long a, unsigned long long b, int adds, int, int, int, int) {                 \
    product(sum, a, b, n, true, adds);                                                                           \
  }                                                                                                              \
  inline void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_bf16_bf16(                                           \
      Registers sum, Pairs a, unsigned long long b, int adds, int, int, int transposed) {                        \
    product(sum, a, b, n, false, adds, transposed);                                                              \
  }                                                                                                              \
  inline void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_f16_f16(                                             \
      Registers sum, Pairs a, unsigned long long b, int adds, int, int, int transposed) {                        \
    product(sum, a, b, n, true, adds, transposed);                                                               \
  }
PRODUCT(8) PRODUCT(16) PRODUCT(24) PRODUCT(32) PRODUCT(40) PRODUCT(48) PRODUCT(56) PRODUCT(64)
PRODUCT(72) PRODUCT(80) PRODUCT(88) PRODUCT(96) PRODUCT(104) PRODUCT(112) PRODUCT(120) PRODUCT(128)
PRODUCT(136) PRODUCT(144) PRODUCT(152) PRODUCT(160) PRODUCT(168) PRODUCT(176) PRODUCT(184) PRODUCT(192)
PRODUCT(200) PRODUCT(208) PRODUCT(216) PRODUCT(224) PRODUCT(232) PRODUCT(240) PRODUCT(248) PRODUCT(256)
#undef PRODUCT

// By a warp, all of its lanes.
void ldmatrix_sync_aligned_m8n8_x2_shared_b16(Matrices to, unsigned at);
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(Matrices to, unsigned at);
void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(Matrices to, unsigned at);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(Matrices to, unsigned at);
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(Registers to, Pairs a, Pairs b, Registers sums);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(Registers to, Pairs a, Pairs b, Registers sums);
inline void prefetch_tensormap(const void* map) {}

float from_half(unsigned short bits);
unsigned short to_half(float x);
inline void cvt_rn_bf16_f32(unsigned short& y, float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  y = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void cvt_rn_f16_f32(unsigned short& y, float x) { y = to_half(x); }
inline void cvt_rn_bf16x2_f32(unsigned& pair, float high, float low) {
  unsigned short halves[2];
  cvt_rn_bf16_f32(halves[0], low);
  cvt_rn_bf16_f32(halves[1], high);
  pair = halves[0] | unsigned(halves[1]) << 16;
}
inline void cvt_rn_f16x2_f32(unsigned& pair, float high, float low) {
  pair = to_half(low) | unsigned(to_half(high)) << 16;
}
inline void cvt_f32_bf16(float& y, unsigned short x) { y = __uint_as_float(unsigned(x) << 16); }
inline void cvt_f32_f16(float& y, unsigned short x) { y = from_half(x); }
// Of two elements each: a product of two is a float, so it is rounded once.
inline void mul_rn_bf16x2(unsigned& both, unsigned a, unsigned b) {
  const float low = __uint_as_float(a << 16) * __uint_as_float(b << 16);
  cvt_rn_bf16x2_f32(both, __uint_as_float(a & 0xffff0000) * __uint_as_float(b & 0xffff0000), low);
}
inline void mul_rn_f16x2(unsigned& both, unsigned a, unsigned b) {
  cvt_rn_f16x2_f32(both, from_half(a >> 16) * from_half(b >> 16), from_half(a) * from_half(b));
}
inline void add_rn_bf16x2(unsigned& both, unsigned a, unsigned b) {
  const float low = __uint_as_float(a << 16) + __uint_as_float(b << 16);
  cvt_rn_bf16x2_f32(both, __uint_as_float(a & 0xffff0000) + __uint_as_float(b & 0xffff0000), low);
}
inline void add_rn_f16x2(unsigned& both, unsigned a, unsigned b) {
  cvt_rn_f16x2_f32(both, from_half(a >> 16) + from_half(b >> 16), from_half(a) + from_half(b));
}
// Fused: a product of two elements is a float, and the sum is rounded to one before it is an element.
inline void fma_rn_bf16x2(unsigned& both, unsigned a, unsigned b, unsigned c) {
  const auto high = [](unsigned bits) { return __uint_as_float(bits & 0xffff0000); };
  const float low = high(a << 16) * high(b << 16) + high(c << 16);
  cvt_rn_bf16x2_f32(both, high(a) * high(b) + high(c), low);
}
inline void fma_rn_f16x2(unsigned& both, unsigned a, unsigned b, unsigned c) {
  const float low = from_half(a) * from_half(b) + from_half(c);
  cvt_rn_f16x2_f32(both, from_half(a >> 16) * from_half(b >> 16) + from_half(c >> 16), low);
}
inline void setp_lt_f32(float) {}  // and a trap that its predicate guards
inline void ex2_approx_ftz_f32(float& y, float x) { y = exp2f(x); }
inline void rcp_approx_ftz_f32(float& y, float x) { y = 1.0f / x; }
inline void max_NaN_f32(float& c, float a, float b) { c = a != a || b != b ? __builtin_nanf("") : a > b ? a : b; }
inline void min_NaN_f32(float& c, float a, float b) { c = a != a || b != b ? __builtin_nanf("") : a < b ? a : b; }

void st_shared_b16(unsigned at, unsigned short value);
void st_shared_b32(unsigned at, unsigned value);
void st_shared_v2_b32(unsigned at, Words words);
void st_shared_v4_b32(unsigned at, Words words);
void ld_shared_b32(unsigned& value, unsigned at);
void ld_shared_v4_b32(WordsOut words, unsigned at);

inline void st_global_v4_b32(const void* at, Words words) {
  int* to = static_cast<int*>(const_cast<void*>(at));
  for (int word : words) *to++ = word;
}
inline void ld_global_cg_b16(unsigned short& value, const void* at) { value = *static_cast<const unsigned short*>(at); }
inline void ld_global_cg_b32(unsigned& value, const void* at) { value = *static_cast<const unsigned*>(at); }
inline void ld_global_cg_v4_f32(Registers values, const float* at) {
  for (float* value : values) *value = *at++;
}
inline void ld_global_nc_v4_b32(WordsOut words, const void* at) {
  check_read_only(at, 16);
  const int* from = static_cast<const int*>(at);
  for (int* word : words) *word = *from++;
}
// Words that say themselves whether they are there: each is ordered by itself, and orders nothing else.
void ld_relaxed_gpu_global_v4_f32(Registers values, const void* at);
void st_relaxed_gpu_global_v2_b32(const void* at, Words words);
void st_relaxed_gpu_global_v4_b32(const void* at, Words words);
void ld_acquire_gpu_global_b32(int& value, const void* at);
void ld_relaxed_gpu_global_b32(int& value, const void* at);
// Tagged words: each is there as a whole, and orders nothing else. Who polls them sleeps, so others go on.
void ld_relaxed_gpu_global_b64(unsigned long long& word, const void* at);
void ld_relaxed_gpu_global_v2_b64(LongsOut words, const void* at);
void st_relaxed_gpu_global_b64(const void* at, unsigned long long word);
void st_relaxed_gpu_global_v2_b64(const void* at, Longs words);
void ld_acquire_gpu_global_b64(unsigned long long& value, const void* at);
void st_release_gpu_global_b64(const void* at, unsigned long long value);
void atom_acq_rel_gpu_global_add_u32(unsigned& before, const void* at, int more);
void red_release_gpu_global_add_s32(const void* at, int more);
void atom_release_gpu_global_add_u32(unsigned& before, const void* at, unsigned more);
void atom_acq_rel_gpu_global_add_u64(unsigned long long& before, const void* at, unsigned long long more);
}  // namespace ptx

// How the emulator calls a kernel: its parameters from pointers to them.
// They lie outside of the kernel's memory, so these reads are not looked at.
template <class... Parameters, std::size_t... N>
__attribute__((noinline, no_sanitize_thread)) inline void call_with(void (*kernel)(Parameters...), void** parameters, std::index_sequence<N...>) {
  kernel(*static_cast<Parameters*>(parameters[N])...);
}
template <class... Parameters> inline void call(void (*kernel)(Parameters...), void** parameters) {
  call_with(kernel, parameters, std::index_sequence_for<Parameters...>());
}
