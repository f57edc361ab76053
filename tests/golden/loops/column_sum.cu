extern "C" __global__ void __launch_bounds__(128, 1)
    column_sum_(const fp32* __restrict__ x_,
                fp32* __restrict__ y_,
                const __grid_constant__ TensorMap x_map_16x128,
                long long m_given,
                long long n_given) {
  const int m_ = (int)m_given;
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  float* const scratch = reinterpret_cast<float*>(shared + 65664);
  const unsigned s_full_ = shared_address(shared + 65536);
  const int thread = threadIdx.x;
  float acc_[4];
  const int b_ = blockIdx.x;
  {
#pragma unroll
    for (int w = 0; w < 1; ++w) {
#pragma unroll
      for (int j = 0; j < 4; ++j) acc_[j] = 0.0f;
    }
  }
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 8; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first_ = 0; r_first_ < min(7, quotient(m_ + 15, 16)); ++r_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(r_first_, 8) * 8, 8192);
      tma_load_2d(shared_address(s_ + rest(r_first_, 8) * 8192), x_map_16x128, b_ * 128, r_first_ * 16, s_full_ + rest(r_first_, 8) * 8);
    }
  }
  // main
  {
    float acc_part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) acc_part[k] = 0.0f;
#pragma unroll 1
    for (int r_ = 0; r_ < quotient(m_ + 15, 16) - 7; ++r_) {
      if (thread == 0) {
        mbarrier_arrive_expect_tx(s_full_ + rest(r_ + 7, 8) * 8, 8192);
        tma_load_2d(shared_address(s_ + rest(r_ + 7, 8) * 8192), x_map_16x128, b_ * 128, (r_ + 7) * 16, s_full_ + rest(r_ + 7, 8) * 8);
      }
      mbarrier_wait(s_full_ + rest(r_, 8) * 8, rest(quotient(r_, 8), 2));
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 1; ++w) {
            const int c1 = (thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c0 = row;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(s_ + rest(r_, 8) * 8192 + ((c0) * 128 + c1) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) acc_part[j] = acc_part[j] + v0[j];
          }
        }
      }
      __syncthreads();
    }
    {
#pragma unroll
      for (int k = 0; k < 4; ++k) scratch[k * 128 + thread] = acc_part[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* const of = scratch + k * 128 + thread % 32;
        acc_part[k] = of[0];
#pragma unroll
        for (int i = 1; i < 4; ++i) acc_part[k] = acc_part[k] + of[i * 32];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        acc_[k] = acc_[k] + acc_part[k];
      }
    }
  }
  // epilogue
  {
    float acc_part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) acc_part[k] = 0.0f;
#pragma unroll 1
    for (int r_ = max(quotient(m_ + 15, 16) - 7, 0); r_ < quotient(m_ + 15, 16); ++r_) {
      mbarrier_wait(s_full_ + rest(r_, 8) * 8, rest(quotient(r_, 8), 2));
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 1; ++w) {
            const int c1 = (thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c0 = row;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(s_ + rest(r_, 8) * 8192 + ((c0) * 128 + c1) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) acc_part[j] = acc_part[j] + v0[j];
          }
        }
      }
    }
    {
#pragma unroll
      for (int k = 0; k < 4; ++k) scratch[k * 128 + thread] = acc_part[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* const of = scratch + k * 128 + thread % 32;
        acc_part[k] = of[0];
#pragma unroll
        for (int i = 1; i < 4; ++i) acc_part[k] = acc_part[k] + of[i * 32];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        acc_[k] = acc_[k] + acc_part[k];
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 8; ++s) mbarrier_inval(s_full_ + s * 8);
  }
  {
#pragma unroll
    for (int w = 0; w < 1; ++w) {
      const int c1 = (thread % 32) * 4;
      if (thread / 32 == 0) {
        float out[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) out[j] = acc_[j];
        write_clipped<fp32, 4>(y_ + ((long long)(b_ * 128 + c1)), out, n_ - (b_ * 128 + c1));
      }
    }
  }
}
