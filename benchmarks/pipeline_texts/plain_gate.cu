// y = silu(a) * b without shared memory: UNROLL loads of 16 bytes of each input in flight in every thread.
DEVICE float gated(float a, float b) { return __fdividef(a, 1.0f + __expf(-a)) * b; }

extern "C" __global__ void __launch_bounds__(256) plain_gate(const float4* a, const float4* b, float4* y, long long n) {
  const long long first = (long long)blockIdx.x * 256 * UNROLL + threadIdx.x;
  float4 p[UNROLL], q[UNROLL];
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n) p[v] = __ldcs(a + first + v * 256), q[v] = __ldcs(b + first + v * 256);
#pragma unroll
  for (int v = 0; v < UNROLL; ++v)
    if (first + v * 256 < n)
      __stcs(y + first + v * 256, make_float4(gated(p[v].x, q[v].x), gated(p[v].y, q[v].y), gated(p[v].z, q[v].z),
                                              gated(p[v].w, q[v].w)));
}
