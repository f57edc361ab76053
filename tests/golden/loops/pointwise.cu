extern "C" __global__ void __launch_bounds__(128, 1)
    pointwise_(const fp32* __restrict__ x_,
               const fp32* __restrict__ z_,
               fp32* __restrict__ y_,
               const __grid_constant__ TensorMap x_map_4x256,
               long long m_given,
               long long n_given) {
  const int m_ = (int)m_given;
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const x_s_ = shared + 0;
  const unsigned x_s_full_ = shared_address(shared + 16384);
  const int thread = threadIdx.x;
  float z_r_[8];
  const int b_ = rest(blockIdx.x, quotient(n_ + 511, 512));
  const int r_ = quotient(blockIdx.x, quotient(n_ + 511, 512));
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(x_s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first_ = 0; c_first_ < min(3, min(2, quotient(n_ + 255, 256) - b_ * 2)); ++c_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(x_s_full_ + rest(c_first_, 4) * 8, 4096);
      tma_load_2d(shared_address(x_s_ + rest(c_first_, 4) * 4096), x_map_4x256, (b_ * 2 + c_first_) * 256, r_ * 4, x_s_full_ + rest(c_first_, 4) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int c_ = 0; c_ < min(2, quotient(n_ + 255, 256) - b_ * 2) - 3; ++c_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(x_s_full_ + rest(c_ + 3, 4) * 8, 4096);
      tma_load_2d(shared_address(x_s_ + rest(c_ + 3, 4) * 4096), x_map_4x256, (b_ * 2 + (c_ + 3)) * 256, r_ * 4, x_s_full_ + rest(c_ + 3, 4) * 8);
    }
    mbarrier_wait(x_s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    {
#pragma unroll
      for (int u = 0; u < 1; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c1 = (w * 32 + thread % 32) * 4;
          const int row = thread / 32;
          const int c0 = row;
          float v0[4];
          read_clipped<fp32, 4>(v0, z_ + (((long long)(r_ * 4 + c0)) * n_ + (b_ * 2 + c_) * 256 + c1), r_ * 4 + c0 < m_ ? n_ - ((b_ * 2 + c_) * 256 + c1) : 0);
#pragma unroll
          for (int j = 0; j < 4; ++j) z_r_[w * 4 + j] = v0[j];
        }
      }
    }
    {
#pragma unroll
      for (int u = 0; u < 1; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c1 = (w * 32 + thread % 32) * 4;
          const int row = thread / 32;
          const int c0 = row;
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(x_s_ + rest(c_, 4) * 4096 + ((c0) * 256 + c1) * 4));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = larger(((v0[j] * z_r_[w * 4 + j]) + 1.0f), 0.0f);
          write_clipped<fp32, 4>(y_ + (((long long)(r_ * 4 + c0)) * n_ + (b_ * 2 + c_) * 256 + c1), out, r_ * 4 + c0 < m_ ? n_ - ((b_ * 2 + c_) * 256 + c1) : 0);
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int c_ = max(min(2, quotient(n_ + 255, 256) - b_ * 2) - 3, 0); c_ < min(2, quotient(n_ + 255, 256) - b_ * 2); ++c_) {
    mbarrier_wait(x_s_full_ + rest(c_, 4) * 8, rest(quotient(c_, 4), 2));
    {
#pragma unroll
      for (int u = 0; u < 1; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c1 = (w * 32 + thread % 32) * 4;
          const int row = thread / 32;
          const int c0 = row;
          float v0[4];
          read_clipped<fp32, 4>(v0, z_ + (((long long)(r_ * 4 + c0)) * n_ + (b_ * 2 + c_) * 256 + c1), r_ * 4 + c0 < m_ ? n_ - ((b_ * 2 + c_) * 256 + c1) : 0);
#pragma unroll
          for (int j = 0; j < 4; ++j) z_r_[w * 4 + j] = v0[j];
        }
      }
    }
    {
#pragma unroll
      for (int u = 0; u < 1; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c1 = (w * 32 + thread % 32) * 4;
          const int row = thread / 32;
          const int c0 = row;
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(x_s_ + rest(c_, 4) * 4096 + ((c0) * 256 + c1) * 4));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = larger(((v0[j] * z_r_[w * 4 + j]) + 1.0f), 0.0f);
          write_clipped<fp32, 4>(y_ + (((long long)(r_ * 4 + c0)) * n_ + (b_ * 2 + c_) * 256 + c1), out, r_ * 4 + c0 < m_ ? n_ - ((b_ * 2 + c_) * 256 + c1) : 0);
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_inval(x_s_full_ + s * 8);
  }
}
