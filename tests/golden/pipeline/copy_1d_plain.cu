extern "C" __global__ void __launch_bounds__(128, 1)
    copy_1d_(const fp32* __restrict__ x,
             fp32* __restrict__ y,
             long long n_) {
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 2048);
  const int thread = threadIdx.x;
  const int b = blockIdx.x;
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 2; ++s_) mbarrier_init(s_full + s_ * 8, 128);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int i_first = 0; i_first < min(1, min(8, quotient(n + 255, 256) - b * 8)); ++i_first) {
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_clipped<fp32, 4>(v0_, x + ((long long)((b * 8 + i_first) * 256 + c0_)), n - ((b * 8 + i_first) * 256 + c0_));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = v0_[j_];
          write_tile<fp32, 4>(reinterpret_cast<fp32*>(s + rest(i_first, 2) * 1024 + (c0_) * 4), out_);
        }
      }
    }
    mbarrier_arrive(s_full + rest(i_first, 2) * 8);
  }
  // main
#pragma unroll 1
  for (int i = 0; i < min(8, quotient(n + 255, 256) - b * 8) - 1; ++i) {
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_clipped<fp32, 4>(v0_, x + ((long long)((b * 8 + (i + 1)) * 256 + c0_)), n - ((b * 8 + (i + 1)) * 256 + c0_));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = v0_[j_];
          write_tile<fp32, 4>(reinterpret_cast<fp32*>(s + rest(i + 1, 2) * 1024 + (c0_) * 4), out_);
        }
      }
    }
    mbarrier_arrive(s_full + rest(i + 1, 2) * 8);
    mbarrier_wait(s_full + rest(i, 2) * 8, rest(quotient(i, 2), 2));
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(i, 2) * 1024 + (c0_) * 4));
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
  for (int i = max(min(8, quotient(n + 255, 256) - b * 8) - 1, 0); i < min(8, quotient(n + 255, 256) - b * 8); ++i) {
    mbarrier_wait(s_full + rest(i, 2) * 8, rest(quotient(i, 2), 2));
    {
#pragma unroll
      for (int w_ = 0; w_ < 1; ++w_) {
        const int c0_ = (thread % 64) * 4;
        if (thread / 64 == 0) {
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(i, 2) * 1024 + (c0_) * 4));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = v0_[j_];
          write_clipped<fp32, 4>(y + ((long long)((b * 8 + i) * 256 + c0_)), out_, n - ((b * 8 + i) * 256 + c0_));
        }
      }
    }
  }
  // end
  fence_proxy_async();
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 2; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
}
