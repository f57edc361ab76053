extern "C" __global__ void __launch_bounds__(128, 1)
    layer_norm_(const fp32* __restrict__ x,
                fp32* __restrict__ y,
                const fp32* __restrict__ weight,
                const fp32* __restrict__ bias,
                const __grid_constant__ TensorMap x_map_1x16x256,
                long long m_) {
  const int m = (int)m_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const row = shared + 0;
  float* const scratch = reinterpret_cast<float*>(shared + 49280);
  const unsigned row_full = shared_address(shared + 49152);
  const int thread = threadIdx.x;
  float mean[1];
  float variance[1];
  const int b = blockIdx.x;
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 3; ++s_) mbarrier_init(row_full + s_ * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first = 0; r_first < min(2, min(8, m - b * 8)); ++r_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(row_full + rest(r_first, 3) * 8, 16384);
      tma_load_3d(shared_address(row + rest(r_first, 3) * 16384), x_map_1x16x256, 0, 0, b * 8 + r_first, row_full + rest(r_first, 3) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int r = 0; r < min(8, m - b * 8) - 2; ++r) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(row_full + rest(r + 2, 3) * 8, 16384);
      tma_load_3d(shared_address(row + rest(r + 2, 3) * 16384), x_map_1x16x256, 0, 0, b * 8 + (r + 2), row_full + rest(r + 2, 3) * 8);
    }
    mbarrier_wait(row_full + rest(r, 3) * 8, rest(quotient(r, 3), 2));
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) mean[0] = 0.0f;
    }
    {
      float mean_part_[1];
#pragma unroll
      for (int k_ = 0; k_ < 1; ++k_) mean_part_[k_] = 0.0f;
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 2; ++w_) {
            const int c2_ = (w_ * 32 + thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c1_ = row_ % 16;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) mean_part_[0] = mean_part_[0] + v0_[j_];
          }
        }
      }
      {
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
#pragma unroll
          for (int distance_ = 16; distance_; distance_ /= 2)
            mean_part_[k_] = mean_part_[k_] + __shfl_xor_sync(0xffffffff, mean_part_[k_], distance_);
        }
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_)
          if (thread % 32 == 0) scratch[k_ * 4 + thread / 32] = mean_part_[k_];
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          const float* const of_ = scratch + k_ * 4 + thread / 128 * 4;
          mean_part_[k_] = of_[0];
#pragma unroll
          for (int i_ = 1; i_ < 4; ++i_) mean_part_[k_] = mean_part_[k_] + of_[i_];
        }
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          mean[k_] = mean[k_] + mean_part_[k_];
        }
      }
    }
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) mean[0] = (mean[0] / 4096.0f);
    }
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) variance[0] = 0.0f;
    }
    {
      float variance_part_[1];
#pragma unroll
      for (int k_ = 0; k_ < 1; ++k_) variance_part_[k_] = 0.0f;
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 2; ++w_) {
            const int c2_ = (w_ * 32 + thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c1_ = row_ % 16;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) variance_part_[0] = variance_part_[0] + ((v0_[j_] - mean[0]) * (v0_[j_] - mean[0]));
          }
        }
      }
      {
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
#pragma unroll
          for (int distance_ = 16; distance_; distance_ /= 2)
            variance_part_[k_] = variance_part_[k_] + __shfl_xor_sync(0xffffffff, variance_part_[k_], distance_);
        }
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_)
          if (thread % 32 == 0) scratch[k_ * 4 + thread / 32] = variance_part_[k_];
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          const float* const of_ = scratch + k_ * 4 + thread / 128 * 4;
          variance_part_[k_] = of_[0];
#pragma unroll
          for (int i_ = 1; i_ < 4; ++i_) variance_part_[k_] = variance_part_[k_] + of_[i_];
        }
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          variance[k_] = variance[k_] + variance_part_[k_];
        }
      }
    }
    {
#pragma unroll
      for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c2_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = u_ * 4 + thread / 32;
          const int c1_ = row_ % 16;
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
          float v3_[4];
          read_tile<fp32, 4>(v3_, weight + (((long long)(c1_)) * 256 + c2_));
          float v4_[4];
          read_tile<fp32, 4>(v4_, bias + (((long long)(c1_)) * 256 + c2_));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = ((((v0_[j_] - mean[0]) * rsqrtf(((variance[0] / 4096.0f) + 1e-05f))) * v3_[j_]) + v4_[j_]);
          write_clipped<fp32, 4>(y + ((((long long)(b * 8 + r)) * 16 + c1_) * 256 + c2_), out_, b * 8 + r < m && c1_ < 16 ? 256 - (c2_) : 0);
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int r = max(min(8, m - b * 8) - 2, 0); r < min(8, m - b * 8); ++r) {
    mbarrier_wait(row_full + rest(r, 3) * 8, rest(quotient(r, 3), 2));
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) mean[0] = 0.0f;
    }
    {
      float mean_part_[1];
#pragma unroll
      for (int k_ = 0; k_ < 1; ++k_) mean_part_[k_] = 0.0f;
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 2; ++w_) {
            const int c2_ = (w_ * 32 + thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c1_ = row_ % 16;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) mean_part_[0] = mean_part_[0] + v0_[j_];
          }
        }
      }
      {
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
#pragma unroll
          for (int distance_ = 16; distance_; distance_ /= 2)
            mean_part_[k_] = mean_part_[k_] + __shfl_xor_sync(0xffffffff, mean_part_[k_], distance_);
        }
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_)
          if (thread % 32 == 0) scratch[k_ * 4 + thread / 32] = mean_part_[k_];
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          const float* const of_ = scratch + k_ * 4 + thread / 128 * 4;
          mean_part_[k_] = of_[0];
#pragma unroll
          for (int i_ = 1; i_ < 4; ++i_) mean_part_[k_] = mean_part_[k_] + of_[i_];
        }
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          mean[k_] = mean[k_] + mean_part_[k_];
        }
      }
    }
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) mean[0] = (mean[0] / 4096.0f);
    }
    {
#pragma unroll
      for (int j_ = 0; j_ < 1; ++j_) variance[0] = 0.0f;
    }
    {
      float variance_part_[1];
#pragma unroll
      for (int k_ = 0; k_ < 1; ++k_) variance_part_[k_] = 0.0f;
      {
#pragma unroll
        for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 2; ++w_) {
            const int c2_ = (w_ * 32 + thread % 32) * 4;
            const int row_ = u_ * 4 + thread / 32;
            const int c1_ = row_ % 16;
            float v0_[4];
            read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
#pragma unroll
            for (int j_ = 0; j_ < 4; ++j_) variance_part_[0] = variance_part_[0] + ((v0_[j_] - mean[0]) * (v0_[j_] - mean[0]));
          }
        }
      }
      {
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
#pragma unroll
          for (int distance_ = 16; distance_; distance_ /= 2)
            variance_part_[k_] = variance_part_[k_] + __shfl_xor_sync(0xffffffff, variance_part_[k_], distance_);
        }
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_)
          if (thread % 32 == 0) scratch[k_ * 4 + thread / 32] = variance_part_[k_];
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          const float* const of_ = scratch + k_ * 4 + thread / 128 * 4;
          variance_part_[k_] = of_[0];
#pragma unroll
          for (int i_ = 1; i_ < 4; ++i_) variance_part_[k_] = variance_part_[k_] + of_[i_];
        }
        __syncthreads();
#pragma unroll
        for (int k_ = 0; k_ < 1; ++k_) {
          variance[k_] = variance[k_] + variance_part_[k_];
        }
      }
    }
    {
#pragma unroll
      for (int u_ = 0; u_ < 4; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c2_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = u_ * 4 + thread / 32;
          const int c1_ = row_ % 16;
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(row + rest(r, 3) * 16384 + ((c1_) * 256 + c2_) * 4));
          float v3_[4];
          read_tile<fp32, 4>(v3_, weight + (((long long)(c1_)) * 256 + c2_));
          float v4_[4];
          read_tile<fp32, 4>(v4_, bias + (((long long)(c1_)) * 256 + c2_));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = ((((v0_[j_] - mean[0]) * rsqrtf(((variance[0] / 4096.0f) + 1e-05f))) * v3_[j_]) + v4_[j_]);
          write_clipped<fp32, 4>(y + ((((long long)(b * 8 + r)) * 16 + c1_) * 256 + c2_), out_, b * 8 + r < m && c1_ < 16 ? 256 - (c2_) : 0);
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 3; ++s_) mbarrier_inval(row_full + s_ * 8);
  }
}
