// y[r, :] = (x[r, :] - mean) / sqrt(variance + epsilon) * gamma + beta, rows of COLUMNS floats. A stage is a whole row: it
// stays in shared memory for mean, variance (two passes, so that nothing cancels) and the result. gamma and beta stay in
// registers. 16 floats to a thread.
constexpr int THREADS = COLUMNS / 16, WARPS = THREADS / 32;

DEVICE float block_sum(float value, float* partial) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(0xffffffff, value, distance);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = threadIdx.x % 32 < WARPS ? partial[threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int distance = 16; distance; distance /= 2) total += __shfl_xor_sync(0xffffffff, total, distance);
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const float* x, const float* gamma, const float* beta, float* y, long long rows, float epsilon) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * COLUMNS * 4;
  float* partial = reinterpret_cast<float*>(shared + STAGES * COLUMNS * 4 + STAGES * 8);  // [2][32], for two sums
  const int mine = rows > blockIdx.x ? (int)((rows - 1 - blockIdx.x) / gridDim.x + 1) : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
  }
  float4 scale[4], shift[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    scale[v] = reinterpret_cast<const float4*>(gamma)[v * THREADS + threadIdx.x];
    shift[v] = reinterpret_cast<const float4*>(beta)[v * THREADS + threadIdx.x];
  }
  __syncthreads();

  auto row = [&](int i) { return (blockIdx.x + (long long)i * gridDim.x) * COLUMNS; };
  auto load = [&](int i) {
    const unsigned stage = i % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * stage, COLUMNS * 4);
    bulk_load(ring + stage * COLUMNS * 4, x + row(i), COLUMNS * 4, full + 8 * stage);
  };
  if (threadIdx.x == 0)
    for (int i = 0; i < PREFETCH && i < mine; ++i) load(i);
  for (int i = 0; i < mine; ++i) {
    if (threadIdx.x == 0 && i + PREFETCH < mine) load(i + PREFETCH);
    const unsigned stage = i % STAGES;
    const float4* in = reinterpret_cast<const float4*>(shared + stage * COLUMNS * 4) + threadIdx.x;
    mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
    float sum = 0, squares = 0;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float4 p = in[v * THREADS];
      sum += (p.x + p.y) + (p.z + p.w);
    }
    const float mean = block_sum(sum, partial) * (1.0f / COLUMNS);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float4 p = in[v * THREADS];
      const float dx = p.x - mean, dy = p.y - mean, dz = p.z - mean, dw = p.w - mean;
      squares += (dx * dx + dy * dy) + (dz * dz + dw * dw);
    }
    const float factor = rsqrtf(block_sum(squares, partial + 32) * (1.0f / COLUMNS) + epsilon);
    float4* out = reinterpret_cast<float4*>(y + row(i)) + threadIdx.x;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float4 p = in[v * THREADS];
      __stcs(out + v * THREADS, make_float4((p.x - mean) * factor * scale[v].x + shift[v].x,
                                            (p.y - mean) * factor * scale[v].y + shift[v].y,
                                            (p.z - mean) * factor * scale[v].z + shift[v].z,
                                            (p.w - mean) * factor * scale[v].w + shift[v].w));
    }
    __syncthreads();  // all have read the stage
  }
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
