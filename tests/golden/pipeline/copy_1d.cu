extern "C" __global__ void __launch_bounds__(128, 1)
    copy_1d_(const fp32* __restrict__ x,
             fp32* __restrict__ y,
             const __grid_constant__ TensorMap x_map_256,
             long long n_) {
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 4096);
  const int thread = threadIdx.x;
  const int b = blockIdx.x;
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int i_first = 0; i_first < min(3, min(8, quotient(n + 255, 256) - b * 8)); ++i_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(i_first, 4) * 8, 1024);
      tma_load_1d(shared_address(s + rest(i_first, 4) * 1024), x_map_256, (b * 8 + i_first) * 256, s_full + rest(i_first, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int i = 0; i < min(8, quotient(n + 255, 256) - b * 8) - 3; ++i) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(i + 3, 4) * 8, 1024);
      tma_load_1d(shared_address(s + rest(i + 3, 4) * 1024), x_map_256, (b * 8 + (i + 3)) * 256, s_full + rest(i + 3, 4) * 8);
    }
    mbarrier_wait(s_full + rest(i, 4) * 8, rest(quotient(i, 4), 2));
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(i, 4) * 1024 + (c0_) * 4));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = v0_[j_];
          write_clipped<fp32, 4>(y + ((long long)((b * 8 + i) * 256 + c0_)), out_, n - ((b * 8 + i) * 256 + c0_));
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int i = max(min(8, quotient(n + 255, 256) - b * 8) - 3, 0); i < min(8, quotient(n + 255, 256) - b * 8); ++i) {
    mbarrier_wait(s_full + rest(i, 4) * 8, rest(quotient(i, 4), 2));
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(i, 4) * 1024 + (c0_) * 4));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = v0_[j_];
          write_clipped<fp32, 4>(y + ((long long)((b * 8 + i) * 256 + c0_)), out_, n - ((b * 8 + i) * 256 + c0_));
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
}
