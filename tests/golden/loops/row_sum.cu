extern "C" __global__ void __launch_bounds__(128, 1)
    row_sum_(const fp32* __restrict__ x_,
             fp32* __restrict__ y_,
             const __grid_constant__ TensorMap x_map_8x256,
             long long m_given,
             long long n_given) {
  const int m_ = (int)m_given;
  const int n_ = (int)n_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s_ = shared + 0;
  const unsigned s_full_ = shared_address(shared + 32768);
  const int thread = threadIdx.x;
  float acc_[2];
  const int b_ = blockIdx.x;
  const int c_extent_ = quotient(n_ + 255, 256);
  const int c_steps_ = max(min(4, quotient(m_ + 7, 8) - b_ * 4), 0) * c_extent_;
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(s_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first_ = 0; r_first_ < min(3, c_steps_); ++r_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full_ + rest(r_first_, 4) * 8, 8192);
      tma_load_2d(shared_address(s_ + rest(r_first_, 4) * 8192), x_map_8x256, rest(r_first_, c_extent_) * 256, (b_ * 4 + quotient(r_first_, c_extent_)) * 8, s_full_ + rest(r_first_, 4) * 8);
    }
  }
  // main, epilogue in its last steps
#pragma unroll 1
  for (int r_ = 0; r_ < min(4, quotient(m_ + 7, 8) - b_ * 4); ++r_) {
    {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int j = 0; j < 1; ++j) acc_[u] = 0.0f;
      }
    }
    {
      float acc_part[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) acc_part[k] = 0.0f;
#pragma unroll 1
      for (int c_ = 0; c_ < quotient(n_ + 255, 256); ++c_) {
        const int c_step_ = r_ * c_extent_ + c_;
        if (c_step_ + 3 < c_steps_) {
          if (thread == 0) {
            mbarrier_arrive_expect_tx(s_full_ + rest(c_step_ + 3, 4) * 8, 8192);
            tma_load_2d(shared_address(s_ + rest(c_step_ + 3, 4) * 8192), x_map_8x256, rest(c_step_ + 3, c_extent_) * 256, (b_ * 4 + quotient(c_step_ + 3, c_extent_)) * 8, s_full_ + rest(c_step_ + 3, 4) * 8);
          }
        }
        mbarrier_wait(s_full_ + rest(c_step_, 4) * 8, rest(quotient(c_step_, 4), 2));
        {
#pragma unroll
          for (int u = 0; u < 2; ++u) {
#pragma unroll
            for (int w = 0; w < 2; ++w) {
              const int c1 = (w * 32 + thread % 32) * 4;
              const int row = u * 4 + thread / 32;
              const int c0 = row;
              float v0[4];
              read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(s_ + rest(c_step_, 4) * 8192 + ((c0) * 256 + c1) * 4));
#pragma unroll
              for (int j = 0; j < 4; ++j) acc_part[u] = acc_part[u] + v0[j];
            }
          }
        }
        __syncthreads();
      }
      {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
          for (int distance = 16; distance; distance /= 2)
            acc_part[k] = acc_part[k] + __shfl_xor_sync(0xffffffff, acc_part[k], distance);
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          acc_[k] = acc_[k] + acc_part[k];
        }
      }
    }
    {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int row = u * 4 + thread / 32;
        const int c0 = row;
        if (thread % 32 == 0) {
          float out[1];
#pragma unroll
          for (int j = 0; j < 1; ++j) out[j] = acc_[u];
          write_clipped<fp32, 1>(y_ + ((long long)((b_ * 4 + r_) * 8 + c0)), out, m_ - ((b_ * 4 + r_) * 8 + c0));
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
