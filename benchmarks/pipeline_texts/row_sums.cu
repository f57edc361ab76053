// y[r] = sum of x[r, :]. A block walks bands of ROWS rows, each in boxes of ROWS x COLUMNS floats; the ring runs on from
// band to band. A warp keeps ROWS / WARPS rows; zeros beyond the edge add nothing.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    row_sums(const __grid_constant__ TensorMap x, float* y, long long rows, long long columns) {
  constexpr unsigned BOX_BYTES = ROWS * COLUMNS * 4;
  constexpr int MINE = ROWS / WARPS, VECTORS = COLUMNS / 128;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * BOX_BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int across = (int)((columns + COLUMNS - 1) / COLUMNS), bands = (int)((rows + ROWS - 1) / ROWS);
  const int my_bands = bands > (int)blockIdx.x ? (bands - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0;
  const int mine = my_bands * across;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  auto load = [&](int i) {
    const unsigned stage = i % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * stage, BOX_BYTES);
    const int band = blockIdx.x + i / across * gridDim.x;
    tma_load_2d(ring + stage * BOX_BYTES, x, i % across * COLUMNS, band * ROWS, full + 8 * stage);
  };
  if (threadIdx.x == 0)
    for (int i = 0; i < PREFETCH && i < mine; ++i) load(i);
  int i = 0;
  for (int band = blockIdx.x; band < bands; band += gridDim.x) {
    float4 sum[MINE] = {};
    for (int column = 0; column < across; ++column, ++i) {
      if (threadIdx.x == 0 && i + PREFETCH < mine) load(i + PREFETCH);
      const unsigned stage = i % STAGES;
      const float4* box = reinterpret_cast<const float4*>(shared + stage * BOX_BYTES);
      mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
#pragma unroll
      for (int r = 0; r < MINE; ++r)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
          const float4 p = box[(warp * MINE + r) * (COLUMNS / 4) + v * 32 + lane];
          sum[r].x += p.x, sum[r].y += p.y, sum[r].z += p.z, sum[r].w += p.w;
        }
      __syncthreads();  // all have read the stage
    }
#pragma unroll
    for (int r = 0; r < MINE; ++r) {
      float total = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
#pragma unroll
      for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(0xffffffff, total, distance);
      const long long row = (long long)band * ROWS + warp * MINE + r;
      if (lane == 0 && row < rows) y[row] = total;
    }
  }
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
