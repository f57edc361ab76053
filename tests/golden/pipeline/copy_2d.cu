extern "C" __global__ void __launch_bounds__(128, 1)
    copy_2d_(const fp32* __restrict__ x,
             fp32* __restrict__ y,
             const __grid_constant__ TensorMap x_map_16x256,
             const __grid_constant__ TensorMap y_map_16x256,
             long long m_,
             long long n_) {
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 65536);
  const int thread = threadIdx.x;
  const int b = rest(blockIdx.x, quotient(n + 1023, 1024));
  const int r = quotient(blockIdx.x, quotient(n + 1023, 1024));
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first = 0; c_first < min(2, min(4, quotient(n + 255, 256) - b * 4)); ++c_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(c_first, 4) * 8, 16384);
      tma_load_2d(shared_address(s + rest(c_first, 4) * 16384), x_map_16x256, (b * 4 + c_first) * 256, r * 16, s_full + rest(c_first, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int c = 0; c < min(4, quotient(n + 255, 256) - b * 4) - 2; ++c) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(c + 2, 4) * 8, 16384);
      bulk_wait_read<1>();
      tma_load_2d(shared_address(s + rest(c + 2, 4) * 16384), x_map_16x256, (b * 4 + (c + 2)) * 256, r * 16, s_full + rest(c + 2, 4) * 8);
    }
    mbarrier_wait(s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    if (thread == 0) {
      tma_store_2d(y_map_16x256, (b * 4 + c) * 256, r * 16, shared_address(s + rest(c, 4) * 16384));
      bulk_commit();
    }
    __syncthreads();
  }
  if (thread == 0) bulk_wait_read<0>();
  // epilogue
#pragma unroll 1
  for (int c = max(min(4, quotient(n + 255, 256) - b * 4) - 2, 0); c < min(4, quotient(n + 255, 256) - b * 4); ++c) {
    mbarrier_wait(s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    if (thread == 0) {
      tma_store_2d(y_map_16x256, (b * 4 + c) * 256, r * 16, shared_address(s + rest(c, 4) * 16384));
      bulk_commit();
    }
  }
  if (thread == 0) bulk_wait_read<0>();
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
  bulk_wait<0>();
}
