extern "C" __global__ void __launch_bounds__(256, 1)
    transpose_(const fp32* __restrict__ x,
               fp32* __restrict__ y,
               const __grid_constant__ TensorMap x_map_64x32s,
               long long m_,
               long long n_) {
  const int m = (int)m_;
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 32768);
  const int thread = threadIdx.x;
  const int b = rest(blockIdx.x, quotient(n + 127, 128));
  const int r = quotient(blockIdx.x, quotient(n + 127, 128));
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first = 0; c_first < min(3, min(4, quotient(n + 31, 32) - b * 4)); ++c_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(c_first, 4) * 8, 8192);
      tma_load_2d(shared_address(s + rest(c_first, 4) * 8192), x_map_64x32s, (b * 4 + c_first) * 32, r * 64, s_full + rest(c_first, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int c = 0; c < min(4, quotient(n + 31, 32) - b * 4) - 3; ++c) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(c + 3, 4) * 8, 8192);
      tma_load_2d(shared_address(s + rest(c + 3, 4) * 8192), x_map_64x32s, (b * 4 + (c + 3)) * 32, r * 64, s_full + rest(c + 3, 4) * 8);
    }
    mbarrier_wait(s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    for (int t = thread; t < 2048; t += 256) {
      {
        float v0_[1];
        read_tile<fp32, 1>(v0_, reinterpret_cast<fp32*>(s + rest(c, 4) * 8192 + swizzled(((rest(t, 64)) * 32 + quotient(t, 64)) * 4)));
        float out_[1];
#pragma unroll
        for (int j_ = 0; j_ < 1; ++j_) out_[j_] = v0_[0];
        write_clipped<fp32, 1>(y + (((long long)((b * 4 + c) * 32 + quotient(t, 64))) * m + r * 64 + rest(t, 64)), out_, (b * 4 + c) * 32 + quotient(t, 64) < n ? m - (r * 64 + rest(t, 64)) : 0);
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int c = max(min(4, quotient(n + 31, 32) - b * 4) - 3, 0); c < min(4, quotient(n + 31, 32) - b * 4); ++c) {
    mbarrier_wait(s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    for (int t = thread; t < 2048; t += 256) {
      {
        float v0_[1];
        read_tile<fp32, 1>(v0_, reinterpret_cast<fp32*>(s + rest(c, 4) * 8192 + swizzled(((rest(t, 64)) * 32 + quotient(t, 64)) * 4)));
        float out_[1];
#pragma unroll
        for (int j_ = 0; j_ < 1; ++j_) out_[j_] = v0_[0];
        write_clipped<fp32, 1>(y + (((long long)((b * 4 + c) * 32 + quotient(t, 64))) * m + r * 64 + rest(t, 64)), out_, (b * 4 + c) * 32 + quotient(t, 64) < n ? m - (r * 64 + rest(t, 64)) : 0);
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
}
