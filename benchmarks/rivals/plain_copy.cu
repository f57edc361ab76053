// y = x without shared memory: UNROLL loads of 16 bytes in flight in every thread.
extern "C" __global__ void __launch_bounds__(256) plain_copy(const float4* x, float4* y, long long n) {
  const long long first = (long long)blockIdx.x * 256 * UNROLL + threadIdx.x;
  float4 p[UNROLL];
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n) p[v] = __ldcs(x + first + v * 256);
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n) __stcs(y + first + v * 256, p[v]);
}
