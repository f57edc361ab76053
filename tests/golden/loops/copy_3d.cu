extern "C" __global__ void __launch_bounds__(128, 1)
    copy_3d_(const fp32* __restrict__ x_,
             fp32* __restrict__ y_,
             const __grid_constant__ TensorMap x_map_2x8x64,
             const __grid_constant__ TensorMap y_map_2x8x64,
             long long d_given,
             long long m_given,
             long long n_given) {
  const int m_ = (int)m_given;
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  const unsigned s_full_ = shared_address(shared + 8192);
  const int thread = threadIdx.x;
  const int bm_ = rest(blockIdx.x, quotient(m_ + 7, 8));
  const int bd_ = quotient(blockIdx.x, quotient(m_ + 7, 8));
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 2; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int i_first_ = 0; i_first_ < min(1, quotient(n_ + 63, 64)); ++i_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(i_first_, 2) * 8, 4096);
      tma_load_3d(shared_address(s_ + rest(i_first_, 2) * 4096), x_map_2x8x64, i_first_ * 64, bm_ * 8, bd_ * 2, s_full_ + rest(i_first_, 2) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int i_ = 0; i_ < quotient(n_ + 63, 64) - 1; ++i_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(i_ + 1, 2) * 8, 4096);
      bulk_wait_read<0>();
      tma_load_3d(shared_address(s_ + rest(i_ + 1, 2) * 4096), x_map_2x8x64, (i_ + 1) * 64, bm_ * 8, bd_ * 2, s_full_ + rest(i_ + 1, 2) * 8);
    }
    mbarrier_wait(s_full_ + rest(i_, 2) * 8, rest(quotient(i_, 2), 2));
    if (thread == 0) {
      tma_store_3d(y_map_2x8x64, i_ * 64, bm_ * 8, bd_ * 2, shared_address(s_ + rest(i_, 2) * 4096));
      bulk_commit();
    }
    __syncthreads();
  }
  if (thread == 0) bulk_wait_read<0>();
  // epilogue
#pragma unroll 1
  for (int i_ = max(quotient(n_ + 63, 64) - 1, 0); i_ < quotient(n_ + 63, 64); ++i_) {
    mbarrier_wait(s_full_ + rest(i_, 2) * 8, rest(quotient(i_, 2), 2));
    if (thread == 0) {
      tma_store_3d(y_map_2x8x64, i_ * 64, bm_ * 8, bd_ * 2, shared_address(s_ + rest(i_, 2) * 4096));
      bulk_commit();
    }
  }
  if (thread == 0) bulk_wait_read<0>();
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 2; ++s) mbarrier_inval(s_full_ + s * 8);
  }
  bulk_wait<0>();
}
