// y = max(a * b + 1, 0) without shared memory: UNROLL loads of 16 bytes of each input in flight in every thread.
DEVICE float chain(float a, float b) { return fmaxf(a * b + 1.0f, 0.0f); }

extern "C" __global__ void __launch_bounds__(256) plain_chain(const float4* a, const float4* b, float4* y, long long n) {
  const long long first = (long long)blockIdx.x * 256 * UNROLL + threadIdx.x;
  float4 p[UNROLL], q[UNROLL];
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n) p[v] = __ldcs(a + first + v * 256), q[v] = __ldcs(b + first + v * 256);
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n)
      __stcs(y + first + v * 256, make_float4(chain(p[v].x, q[v].x), chain(p[v].y, q[v].y), chain(p[v].z, q[v].z),
                                              chain(p[v].w, q[v].w)));
}
