// Reads n vectors of 16 bytes, UNROLL in flight in every thread: the read ceiling. Writes only what no data gives.
extern "C" __global__ void __launch_bounds__(512) plain_read(const uint4* x, unsigned* y, long long n) {
  const long long step = (long long)gridDim.x * 512 * UNROLL;
  unsigned sum = 0;
  for (long long first = (long long)blockIdx.x * 512 * UNROLL + threadIdx.x; first < n; first += step) {
    uint4 p[UNROLL];
#pragma unroll
    for (int v = 0; v < UNROLL; ++v) p[v] = first + v * 512 < n ? __ldcs(x + first + v * 512) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int v = 0; v < UNROLL; ++v) sum |= p[v].x | p[v].y | p[v].z | p[v].w;
  }
  if (sum == 0x12345677) y[threadIdx.x] = sum;
}
