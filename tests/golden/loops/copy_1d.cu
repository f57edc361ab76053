extern "C" __global__ void __launch_bounds__(128, 1)
    copy_1d_(const fp32* __restrict__ x_,
             fp32* __restrict__ y_,
             const __grid_constant__ TensorMap x_map_256,
             long long n_given) {
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  const unsigned s_full_ = shared_address(shared + 4096);
  const int thread = threadIdx.x;
  const int b_ = blockIdx.x;
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int i_first_ = 0; i_first_ < min(3, min(8, quotient(n_ + 255, 256) - b_ * 8)); ++i_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(i_first_, 4) * 8, 1024);
      tma_load_1d(shared_address(s_ + rest(i_first_, 4) * 1024), x_map_256, (b_ * 8 + i_first_) * 256, s_full_ + rest(i_first_, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int i_ = 0; i_ < min(8, quotient(n_ + 255, 256) - b_ * 8) - 3; ++i_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(i_ + 3, 4) * 8, 1024);
      tma_load_1d(shared_address(s_ + rest(i_ + 3, 4) * 1024), x_map_256, (b_ * 8 + (i_ + 3)) * 256, s_full_ + rest(i_ + 3, 4) * 8);
    }
    mbarrier_wait(s_full_ + rest(i_, 4) * 8, rest(quotient(i_, 4), 2));
    {
#pragma unroll
      for (int w = 0; w < 1; ++w) {
        const int c0 = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(s_ + rest(i_, 4) * 1024 + (c0) * 4));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = v0[j];
          write_clipped<fp32, 4>(y_ + ((long long)((b_ * 8 + i_) * 256 + c0)), out, n_ - ((b_ * 8 + i_) * 256 + c0));
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int i_ = max(min(8, quotient(n_ + 255, 256) - b_ * 8) - 3, 0); i_ < min(8, quotient(n_ + 255, 256) - b_ * 8); ++i_) {
    mbarrier_wait(s_full_ + rest(i_, 4) * 8, rest(quotient(i_, 4), 2));
    {
#pragma unroll
      for (int w = 0; w < 1; ++w) {
        const int c0 = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(s_ + rest(i_, 4) * 1024 + (c0) * 4));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = v0[j];
          write_clipped<fp32, 4>(y_ + ((long long)((b_ * 8 + i_) * 256 + c0)), out, n_ - ((b_ * 8 + i_) * 256 + c0));
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_inval(s_full_ + s * 8);
  }
}
