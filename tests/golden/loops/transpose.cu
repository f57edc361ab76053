extern "C" __global__ void __launch_bounds__(256, 1)
    transpose_(const fp32* __restrict__ x_,
               fp32* __restrict__ y_,
               const __grid_constant__ TensorMap x_map_64x32s,
               long long m_given,
               long long n_given) {
  const int m_ = (int)m_given;
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  const unsigned s_full_ = shared_address(shared + 32768);
  const int thread = threadIdx.x;
  const int b_ = rest(blockIdx.x, quotient(n_ + 127, 128));
  const int r_ = quotient(blockIdx.x, quotient(n_ + 127, 128));
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first_ = 0; c_first_ < min(3, min(4, quotient(n_ + 31, 32) - b_ * 4)); ++c_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(c_first_, 4) * 8, 8192);
      tma_load_2d(shared_address(s_ + rest(c_first_, 4) * 8192), x_map_64x32s, (b_ * 4 + c_first_) * 32, r_ * 64, s_full_ + rest(c_first_, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int c_ = 0; c_ < min(4, quotient(n_ + 31, 32) - b_ * 4) - 3; ++c_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(c_ + 3, 4) * 8, 8192);
      tma_load_2d(shared_address(s_ + rest(c_ + 3, 4) * 8192), x_map_64x32s, (b_ * 4 + (c_ + 3)) * 32, r_ * 64, s_full_ + rest(c_ + 3, 4) * 8);
    }
    mbarrier_wait(s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    for (int t_ = thread; t_ < 2048; t_ += 256) {
      {
        float v0[1];
        read_tile<fp32, 1>(v0, reinterpret_cast<fp32*>(s_ + rest(c_, 4) * 8192 + swizzled(((rest(t_, 64)) * 32 + quotient(t_, 64)) * 4)));
        float out[1];
#pragma unroll
        for (int j = 0; j < 1; ++j) out[j] = v0[0];
        write_clipped<fp32, 1>(y_ + (((long long)((b_ * 4 + c_) * 32 + quotient(t_, 64))) * m_ + r_ * 64 + rest(t_, 64)), out, (b_ * 4 + c_) * 32 + quotient(t_, 64) < n_ ? m_ - (r_ * 64 + rest(t_, 64)) : 0);
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int c_ = max(min(4, quotient(n_ + 31, 32) - b_ * 4) - 3, 0); c_ < min(4, quotient(n_ + 31, 32) - b_ * 4); ++c_) {
    mbarrier_wait(s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    for (int t_ = thread; t_ < 2048; t_ += 256) {
      {
        float v0[1];
        read_tile<fp32, 1>(v0, reinterpret_cast<fp32*>(s_ + rest(c_, 4) * 8192 + swizzled(((rest(t_, 64)) * 32 + quotient(t_, 64)) * 4)));
        float out[1];
#pragma unroll
        for (int j = 0; j < 1; ++j) out[j] = v0[0];
        write_clipped<fp32, 1>(y_ + (((long long)((b_ * 4 + c_) * 32 + quotient(t_, 64))) * m_ + r_ * 64 + rest(t_, 64)), out, (b_ * 4 + c_) * 32 + quotient(t_, 64) < n_ ? m_ - (r_ * 64 + rest(t_, 64)) : 0);
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_inval(s_full_ + s * 8);
  }
}
