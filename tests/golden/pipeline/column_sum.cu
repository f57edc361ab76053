extern "C" __global__ void __launch_bounds__(128, 1)
    column_sum_(const fp32* __restrict__ x,
                fp32* __restrict__ y,
                const __grid_constant__ TensorMap x_map_16x128,
                long long m_,
                long long n_) {
  const int m = (int)m_;
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  float* const scratch = reinterpret_cast<float*>(shared + 65664);
  const unsigned s_full = shared_address(shared + 65536);
  const int thread = threadIdx.x;
  float acc[4];
  const int b = blockIdx.x;
  {
#pragma unroll
    for (int w_ = 0; w_ < 1; ++w_) {
#pragma unroll
      for (int j_ = 0; j_ < 4; ++j_) acc[j_] = 0.0f;
    }
  }
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 8; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first = 0; r_first < min(7, quotient(m + 15, 16)); ++r_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(r_first, 8) * 8, 8192);
      tma_load_2d(shared_address(s + rest(r_first, 8) * 8192), x_map_16x128, b * 128, r_first * 16, s_full + rest(r_first, 8) * 8);
    }
  }
  // main
  {
    float acc_part_[4];
#pragma unroll
    for (int k_ = 0; k_ < 4; ++k_) acc_part_[k_] = 0.0f;
#pragma unroll 1
    for (int r = 0; r < quotient(m + 15, 16) - 7; ++r) {
      if (thread == 0) {
        mbarrier_arrive_expect_tx(s_full + rest(r + 7, 8) * 8, 8192);
        tma_load_2d(shared_address(s + rest(r + 7, 8) * 8192), x_map_16x128, b * 128, (r + 7) * 16, s_full + rest(r + 7, 8) * 8);
      }
      mbarrier_wait(s_full + rest(r, 8) * 8, rest(quotient(r, 8), 2));
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 1; ++w_) {
            const int c1_ = (thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c0_ = row_;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(r, 8) * 8192 + ((c0_) * 128 + c1_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) acc_part_[j_] = acc_part_[j_] + v0_[j_];
          }
        }
      }
      __syncthreads();
    }
    {
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) scratch[k_ * 128 + thread] = acc_part_[k_];
      __syncthreads();
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) {
        const float* const of_ = scratch + k_ * 128 + thread % 32;
        acc_part_[k_] = of_[0];
#pragma unroll
        for (int i_ = 1; i_ < 4; ++i_) acc_part_[k_] = acc_part_[k_] + of_[i_ * 32];
      }
      __syncthreads();
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) {
        acc[k_] = acc[k_] + acc_part_[k_];
      }
    }
  }
  // epilogue
  {
    float acc_part_[4];
#pragma unroll
    for (int k_ = 0; k_ < 4; ++k_) acc_part_[k_] = 0.0f;
#pragma unroll 1
    for (int r = max(quotient(m + 15, 16) - 7, 0); r < quotient(m + 15, 16); ++r) {
      mbarrier_wait(s_full + rest(r, 8) * 8, rest(quotient(r, 8), 2));
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 1; ++w_) {
            const int c1_ = (thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c0_ = row_;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(r, 8) * 8192 + ((c0_) * 128 + c1_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) acc_part_[j_] = acc_part_[j_] + v0_[j_];
          }
        }
      }
    }
    {
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) scratch[k_ * 128 + thread] = acc_part_[k_];
      __syncthreads();
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) {
        const float* const of_ = scratch + k_ * 128 + thread % 32;
        acc_part_[k_] = of_[0];
#pragma unroll
        for (int i_ = 1; i_ < 4; ++i_) acc_part_[k_] = acc_part_[k_] + of_[i_ * 32];
      }
      __syncthreads();
#pragma unroll
      for (int k_ = 0; k_ < 4; ++k_) {
        acc[k_] = acc[k_] + acc_part_[k_];
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 8; ++s_) mbarrier_inval(s_full + s_ * 8);
  }
  {
#pragma unroll
    for (int w_ = 0; w_ < 1; ++w_) {
      const int c1_ = (thread % 32) * 4;
      if (thread / 32 == 0) {
        float out_[4];
#pragma unroll
        for (int j_ = 0; j_ < 4; ++j_) out_[j_] = acc[j_];
        write_clipped<fp32, 4>(y + ((long long)(b * 128 + c1_)), out_, n - (b * 128 + c1_));
      }
    }
  }
}
