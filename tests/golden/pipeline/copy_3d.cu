extern "C" __global__ void __launch_bounds__(128, 1)
    copy_3d_(const fp32* __restrict__ x,
             fp32* __restrict__ y,
             const __grid_constant__ TensorMap x_map_2x8x64,
             const __grid_constant__ TensorMap y_map_2x8x64,
             long long d_,
             long long m_,
             long long n_) {
  const int m = (int)m_;
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 8192);
  const int thread = threadIdx.x;
  const int bm = rest(blockIdx.x, quotient(m + 7, 8));
  const int bd = quotient(blockIdx.x, quotient(m + 7, 8));
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 2; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int i_first = 0; i_first < min(1, quotient(n + 63, 64)); ++i_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(i_first, 2) * 8, 4096);
      tma_load_3d(shared_address(s + rest(i_first, 2) * 4096), x_map_2x8x64, i_first * 64, bm * 8, bd * 2, s_full + rest(i_first, 2) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int i = 0; i < quotient(n + 63, 64) - 1; ++i) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(i + 1, 2) * 8, 4096);
      bulk_wait_read<0>();
      tma_load_3d(shared_address(s + rest(i + 1, 2) * 4096), x_map_2x8x64, (i + 1) * 64, bm * 8, bd * 2, s_full + rest(i + 1, 2) * 8);
    }
    mbarrier_wait(s_full + rest(i, 2) * 8, rest(quotient(i, 2), 2));
    if (thread == 0) {
      tma_store_3d(y_map_2x8x64, i * 64, bm * 8, bd * 2, shared_address(s + rest(i, 2) * 4096));
      bulk_commit();
    }
    __syncthreads();
  }
  if (thread == 0) bulk_wait_read<0>();
  // epilogue
#pragma unroll 1
  for (int i = max(quotient(n + 63, 64) - 1, 0); i < quotient(n + 63, 64); ++i) {
    mbarrier_wait(s_full + rest(i, 2) * 8, rest(quotient(i, 2), 2));
    if (thread == 0) {
      tma_store_3d(y_map_2x8x64, i * 64, bm * 8, bd * 2, shared_address(s + rest(i, 2) * 4096));
      bulk_commit();
    }
  }
  if (thread == 0) bulk_wait_read<0>();
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 2; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
  bulk_wait<0>();
}
