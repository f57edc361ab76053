// y = silu(a) * b, n floats. Tiles of a come by bulk copies through a ring of STAGES; b by plain loads, issued before the
// wait for a. Each of the THREADS threads takes TILE / THREADS floats of a tile, 16 bytes at a time.
DEVICE float gated(float a, float b) { return __fdividef(a, 1.0f + __expf(-a)) * b; }

extern "C" __global__ void __launch_bounds__(THREADS) gate(const float* a, const float* b, float* y, long long n) {
  constexpr int VECTORS = TILE / 4 / THREADS;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * TILE * 4;
  const long long tiles = (n + TILE - 1) / TILE;
  const int mine = tiles > blockIdx.x ? (int)((tiles - 1 - blockIdx.x) / gridDim.x + 1) : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  auto start = [&](int i) { return (blockIdx.x + (long long)i * gridDim.x) * TILE; };
  auto load = [&](int i) {
    const unsigned stage = i % STAGES, bytes = (unsigned)(min((long long)TILE, n - start(i)) & ~3ll) * 4;
    mbarrier_arrive_expect_tx(full + 8 * stage, bytes);
    if (bytes) bulk_load(ring + stage * TILE * 4, a + start(i), bytes, full + 8 * stage);
  };
  if (threadIdx.x == 0)
    for (int i = 0; i < PREFETCH && i < mine; ++i) load(i);
  for (int i = 0; i < mine; ++i) {
    if (threadIdx.x == 0 && i + PREFETCH < mine) load(i + PREFETCH);
    const unsigned stage = i % STAGES;
    const float4* tile = reinterpret_cast<const float4*>(shared + stage * TILE * 4);
    if (n - start(i) >= TILE) {
      const float4* other = reinterpret_cast<const float4*>(b + start(i));
      float4* out = reinterpret_cast<float4*>(y + start(i));
      float4 q[VECTORS];
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) q[v] = __ldcs(other + v * THREADS + threadIdx.x);
      mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        const float4 p = tile[v * THREADS + threadIdx.x];
        __stcs(out + v * THREADS + threadIdx.x,
               make_float4(gated(p.x, q[v].x), gated(p.y, q[v].y), gated(p.z, q[v].z), gated(p.w, q[v].w)));
      }
    } else {  // the tail: the 1 to 3 floats beyond a multiple of 16 bytes are not in the tile
      const int left = (int)(n - start(i)), loaded = left & ~3;
      mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
      for (int e = threadIdx.x; e < left; e += THREADS) {
        const float p = e < loaded ? reinterpret_cast<const float*>(tile)[e] : a[start(i) + e];
        y[start(i) + e] = gated(p, b[start(i) + e]);
      }
    }
    __syncthreads();  // all have read the stage
  }
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
