// C[m, n] = A[m, k] * B[n, k]^T: bf16 in and out, fp32 sums. Tiles of 128 x BN, 64 along k, in a ring of STAGES.
// Warpgroup 0 loads; warpgroups 1 and 2 each multiply 64 rows and store them through boxes of 64 x 64.
// Blocks stay and take every gridDim.x-th tile, in panels of GROUP tile rows, column by column.
constexpr unsigned BM = 128, BK = 64;
constexpr unsigned A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, OUT_BYTES = 64 * 64 * 2;
constexpr unsigned BOXES = BN / 64;                          // of a consumer's output
constexpr int RELEASE_LAG = STAGES > 1 ? 1 : 0;              // products in flight while the next stage is awaited

DEVICE void multiply(float (&sum)[128], unsigned long long a, unsigned long long b) { wgmma_m64n256k16(sum, a, b); }
DEVICE void multiply(float (&sum)[64], unsigned long long a, unsigned long long b) { wgmma_m64n128k16(sum, a, b); }

struct Place { int row, column; };
DEVICE Place place(int tile, int down, int across) {
  const int first = tile / (GROUP * across) * GROUP, height = min(GROUP, down - first);
  const int inside = tile - first * across;
  return {(first + inside % height) * (int)BM, inside / height * (int)BN};
}

extern "C" __global__ void __launch_bounds__(384, 1)
    matmul(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
           long long m, long long n, long long k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned a_ring = shared_address(shared), b_ring = a_ring + STAGES * A_BYTES;
  const unsigned out_ring = b_ring + STAGES * B_BYTES;       // [2 consumers][OUT_BUFFERS]
  const unsigned full = out_ring + 2 * OUT_BUFFERS * OUT_BYTES, empty = full + 8 * STAGES;
  const int down = (int)((m + BM - 1) / BM), across = (int)((n + BN - 1) / BN), steps = (int)((k + BK - 1) / BK);
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 8);                       // each consumer warp
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  unsigned stage = 0, phase = 0;
  auto advance = [&] {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  };
  if (warpgroup == 0) {
    registers_lower<40>();
    if (warp == 0 && elect_one()) {
      tma_prefetch(a), tma_prefetch(b), tma_prefetch(c);
      for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
        const Place at = place(tile, down, across);
        for (int step = 0; step < steps; ++step, advance()) {
          mbarrier_wait(empty + 8 * stage, phase ^ 1);       // passes at once the first time round
          mbarrier_arrive_expect_tx(full + 8 * stage, A_BYTES + B_BYTES);
          tma_load_2d(a_ring + stage * A_BYTES, a, step * BK, at.row, full + 8 * stage);
          tma_load_2d(b_ring + stage * B_BYTES, b, step * BK, at.column, full + 8 * stage);
        }
      }
    }
    __syncwarp();
  } else {
    registers_raise<232>();
    const unsigned consumer = warpgroup - 1;
    const unsigned out = out_ring + consumer * OUT_BUFFERS * OUT_BYTES;
    // Where this lane's row of each 8 x 8 matrix goes in a box: its row, and the 16-byte piece before the swizzle.
    const unsigned out_row = warp * 16 + lane % 16, out_piece = lane / 16;
    unsigned buffer = 0;
    for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
      float sum[BN / 2] = {};
      unsigned before = 0;                                   // the stage of the step before
      for (int step = 0; step < steps; ++step, advance()) {
        mbarrier_wait(full + 8 * stage, phase);
        const unsigned long long left = matrix_descriptor(a_ring + stage * A_BYTES + consumer * 64 * BK * 2);
        const unsigned long long right = matrix_descriptor(b_ring + stage * B_BYTES);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply(sum, left + i * 2, right + i * 2);
        wgmma_commit();
        wgmma_wait<RELEASE_LAG>();
        if (lane == 0 && step >= RELEASE_LAG) mbarrier_arrive(empty + 8 * (RELEASE_LAG ? before : stage));
        before = stage;
      }
      wgmma_wait<0>();
      settle(sum);
      if (RELEASE_LAG && lane == 0 && steps > 0) mbarrier_arrive(empty + 8 * before);

      const Place at = place(tile, down, across);
#pragma unroll
      for (unsigned box = 0; box < BOXES; ++box) {
        if (threadIdx.x % 128 == 0) bulk_wait_read<OUT_BUFFERS - 1>();
        named_barrier(1 + consumer, 128);                    // the buffer is free
        const unsigned target = out + buffer * OUT_BYTES + out_row * 128;
#pragma unroll
        for (unsigned piece = 0; piece < 8; piece += 2) {
          const float* v = sum + box * 32 + piece * 4;
          store_matrix_x4(target + ((piece + out_piece) ^ (out_row & 7)) * 16, pack_bf16(v[0], v[1]),
                          pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
        }
        fence_proxy_async();
        named_barrier(1 + consumer, 128);                    // the box is written
        if (threadIdx.x % 128 == 0) {
          tma_store_2d(c, at.column + box * 64, at.row + consumer * 64, out + buffer * OUT_BYTES);
          bulk_commit();
        }
        buffer = (buffer + 1) % OUT_BUFFERS;
      }
    }
    if (threadIdx.x % 128 == 0) bulk_wait<0>();
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s), mbarrier_inval(empty + 8 * s);
}
