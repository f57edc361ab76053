// y[c] = sum of x[:, c]. A block owns COLUMNS columns and walks down them in boxes of ROWS x COLUMNS floats. A thread adds
// 4 columns of every GROUPS-th row; the groups meet in shared memory at the end.
extern "C" __global__ void __launch_bounds__(THREADS)
    column_sums(const __grid_constant__ TensorMap x, float* y, long long rows, long long columns) {
  constexpr unsigned BOX_BYTES = ROWS * COLUMNS * 4;
  constexpr int WIDE = COLUMNS / 4, GROUPS = THREADS / WIDE;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * BOX_BYTES;
  const int column = threadIdx.x % WIDE, group = threadIdx.x / WIDE;
  const int boxes = (int)((rows + ROWS - 1) / ROWS);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  __syncthreads();

  auto load = [&](int i) {
    const unsigned stage = i % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * stage, BOX_BYTES);
    tma_load_2d(ring + stage * BOX_BYTES, x, blockIdx.x * COLUMNS, i * ROWS, full + 8 * stage);
  };
  if (threadIdx.x == 0)
    for (int i = 0; i < PREFETCH && i < boxes; ++i) load(i);
  float4 sum = {};
  for (int i = 0; i < boxes; ++i) {
    if (threadIdx.x == 0 && i + PREFETCH < boxes) load(i + PREFETCH);
    const unsigned stage = i % STAGES;
    const float4* box = reinterpret_cast<const float4*>(shared + stage * BOX_BYTES);
    mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
#pragma unroll
    for (int r = 0; r < ROWS / GROUPS; ++r) {
      const float4 p = box[(r * GROUPS + group) * WIDE + column];
      sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
    }
    __syncthreads();  // all have read the stage
  }
  float4* partial = reinterpret_cast<float4*>(shared);  // no load is in flight: the ring is free
  partial[group * WIDE + column] = sum;
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    float total = 0;
    for (int g = 0; g < GROUPS; ++g) total += reinterpret_cast<const float*>(shared)[g * COLUMNS + threadIdx.x];
    const long long at = (long long)blockIdx.x * COLUMNS + threadIdx.x;
    if (at < columns) y[at] = total;
  }
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
