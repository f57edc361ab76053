extern "C" __global__ void __launch_bounds__(128, 1)
    row_sum_(const fp32* __restrict__ x,
             fp32* __restrict__ y,
             const __grid_constant__ TensorMap x_map_8x256,
             long long m_,
             long long n_) {
  const int m = (int)m_;
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const s = shared + 0;
  const unsigned s_full = shared_address(shared + 32768);
  const int thread = threadIdx.x;
  float acc[2];
  const int b = blockIdx.x;
  const int c_extent = quotient(n + 255, 256);
  const int c_steps = max(min(4, quotient(m + 7, 8) - b * 4), 0) * c_extent;
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(s_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first = 0; r_first < min(3, c_steps); ++r_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(s_full + rest(r_first, 4) * 8, 8192);
      tma_load_2d(shared_address(s + rest(r_first, 4) * 8192), x_map_8x256, rest(r_first, c_extent) * 256, (b * 4 + quotient(r_first, c_extent)) * 8, s_full + rest(r_first, 4) * 8);
    }
  }
  // main, epilogue in its last steps
#pragma unroll 1
  for (int r = 0; r < min(4, quotient(m + 7, 8) - b * 4); ++r) {
    {
#pragma unroll
      for (int u_ = 0; u_ < 2; ++u_) {
#pragma unroll
        for (int j_ = 0; j_ < 1; ++j_) acc[u_] = 0.0f;
      }
    }
    {
      float acc_part_[2];
#pragma unroll
      for (int k_ = 0; k_ < 2; ++k_) acc_part_[k_] = 0.0f;
#pragma unroll 1
      for (int c = 0; c < quotient(n + 255, 256); ++c) {
        const int c_step = r * c_extent + c;
        if (c_step + 3 < c_steps) {
          if (thread == 0) {
            mbarrier_arrive_expect_tx(s_full + rest(c_step + 3, 4) * 8, 8192);
            tma_load_2d(shared_address(s + rest(c_step + 3, 4) * 8192), x_map_8x256, rest(c_step + 3, c_extent) * 256, (b * 4 + quotient(c_step + 3, c_extent)) * 8, s_full + rest(c_step + 3, 4) * 8);
          }
        }
        mbarrier_wait(s_full + rest(c_step, 4) * 8, rest(quotient(c_step, 4), 2));
        {
#pragma unroll
          for (int u_ = 0; u_ < 2; ++u_) {
#pragma unroll
            for (int w_ = 0; w_ < 2; ++w_) {
              const int c1_ = (w_ * 32 + thread % 32) * 4;
              const int row_ = u_ * 4 + thread / 32;
              const int c0_ = row_;
              float v0_[4];
              read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(s + rest(c_step, 4) * 8192 + ((c0_) * 256 + c1_) * 4));
#pragma unroll
              for (int j_ = 0; j_ < 4; ++j_) acc_part_[u_] = acc_part_[u_] + v0_[j_];
            }
          }
        }
        __syncthreads();
      }
      {
#pragma unroll
        for (int k_ = 0; k_ < 2; ++k_) {
#pragma unroll
          for (int distance_ = 16; distance_; distance_ /= 2)
            acc_part_[k_] = acc_part_[k_] + __shfl_xor_sync(0xffffffff, acc_part_[k_], distance_);
        }
#pragma unroll
        for (int k_ = 0; k_ < 2; ++k_) {
          acc[k_] = acc[k_] + acc_part_[k_];
        }
      }
    }
    {
#pragma unroll
      for (int u_ = 0; u_ < 2; ++u_) {
        const int row_ = u_ * 4 + thread / 32;
        const int c0_ = row_;
        if (thread % 32 == 0) {
          float out_[1];
#pragma unroll
          for (int j_ = 0; j_ < 1; ++j_) out_[j_] = acc[u_];
          write_clipped<fp32, 1>(y + ((long long)((b * 4 + r) * 8 + c0_)), out_, m - ((b * 4 + r) * 8 + c0_));
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
