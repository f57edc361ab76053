extern "C" __global__ void __launch_bounds__(128, 1)
    copy_2d_(const fp32* __restrict__ x_,
             fp32* __restrict__ y_,
             const __grid_constant__ TensorMap x_map_16x256,
             const __grid_constant__ TensorMap y_map_16x256,
             long long m_given,
             long long n_given) {
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  const unsigned s_full_ = shared_address(shared + 65536);
  const int thread = threadIdx.x;
  const int b_ = rest(blockIdx.x, quotient(n_ + 1023, 1024));
  const int r_ = quotient(blockIdx.x, quotient(n_ + 1023, 1024));
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first_ = 0; c_first_ < min(2, min(4, quotient(n_ + 255, 256) - b_ * 4)); ++c_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(c_first_, 4) * 8, 16384);
      tma_load_2d(shared_address(s_ + rest(c_first_, 4) * 16384), x_map_16x256, (b_ * 4 + c_first_) * 256, r_ * 16, s_full_ + rest(c_first_, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int c_ = 0; c_ < min(4, quotient(n_ + 255, 256) - b_ * 4) - 2; ++c_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(c_ + 2, 4) * 8, 16384);
      bulk_wait_read<1>();
      tma_load_2d(shared_address(s_ + rest(c_ + 2, 4) * 16384), x_map_16x256, (b_ * 4 + (c_ + 2)) * 256, r_ * 16, s_full_ + rest(c_ + 2, 4) * 8);
    }
    mbarrier_wait(s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    if (thread == 0) {
      tma_store_2d(y_map_16x256, (b_ * 4 + c_) * 256, r_ * 16, shared_address(s_ + rest(c_, 4) * 16384));
      bulk_commit();
    }
    __syncthreads();
  }
  if (thread == 0) bulk_wait_read<0>();
  // epilogue
#pragma unroll 1
  for (int c_ = max(min(4, quotient(n_ + 255, 256) - b_ * 4) - 2, 0); c_ < min(4, quotient(n_ + 255, 256) - b_ * 4); ++c_) {
    mbarrier_wait(s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    if (thread == 0) {
      tma_store_2d(y_map_16x256, (b_ * 4 + c_) * 256, r_ * 16, shared_address(s_ + rest(c_, 4) * 16384));
      bulk_commit();
    }
  }
  if (thread == 0) bulk_wait_read<0>();
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_inval(s_full_ + s * 8);
  }
  bulk_wait<0>();
}
