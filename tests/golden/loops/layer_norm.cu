extern "C" __global__ void __launch_bounds__(128, 1)
    layer_norm_(const fp32* __restrict__ x_,
                fp32* __restrict__ y_,
                const fp32* __restrict__ weight_,
                const fp32* __restrict__ bias_,
                const __grid_constant__ TensorMap x_map_1x16x256,
                long long m_given) {
  const int m_ = (int)m_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const row_ = shared + 0;
  float* const scratch = reinterpret_cast<float*>(shared + 49280);
  const unsigned row_full_ = shared_address(shared + 49152);
  const int thread = threadIdx.x;
  float mean_[1];
  float variance_[1];
  const int b_ = blockIdx.x;
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 3; ++s) mbarrier_init(row_full_ + s * 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int r_first_ = 0; r_first_ < min(2, min(8, m_ - b_ * 8)); ++r_first_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(row_full_ + rest(r_first_, 3) * 8, 16384);
      tma_load_3d(shared_address(row_ + rest(r_first_, 3) * 16384), x_map_1x16x256, 0, 0, b_ * 8 + r_first_, row_full_ + rest(r_first_, 3) * 8);
    }
  }
  // main
#pragma unroll 1
  for (int r_ = 0; r_ < min(8, m_ - b_ * 8) - 2; ++r_) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(row_full_ + rest(r_ + 2, 3) * 8, 16384);
      tma_load_3d(shared_address(row_ + rest(r_ + 2, 3) * 16384), x_map_1x16x256, 0, 0, b_ * 8 + (r_ + 2), row_full_ + rest(r_ + 2, 3) * 8);
    }
    mbarrier_wait(row_full_ + rest(r_, 3) * 8, rest(quotient(r_, 3), 2));
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) mean_[0] = 0.0f;
    }
    {
      float mean_part[1];
#pragma unroll
      for (int k = 0; k < 1; ++k) mean_part[k] = 0.0f;
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const int c2 = (w * 32 + thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c1 = row % 16;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) mean_part[0] = mean_part[0] + v0[j];
          }
        }
      }
      {
#pragma unroll
        for (int k = 0; k < 1; ++k) {
#pragma unroll
          for (int distance = 16; distance; distance /= 2)
            mean_part[k] = mean_part[k] + __shfl_xor_sync(0xffffffff, mean_part[k], distance);
        }
#pragma unroll
        for (int k = 0; k < 1; ++k)
          if (thread % 32 == 0) scratch[k * 4 + thread / 32] = mean_part[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          const float* const of = scratch + k * 4 + thread / 128 * 4;
          mean_part[k] = of[0];
#pragma unroll
          for (int i = 1; i < 4; ++i) mean_part[k] = mean_part[k] + of[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          mean_[k] = mean_[k] + mean_part[k];
        }
      }
    }
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) mean_[0] = (mean_[0] / 4096.0f);
    }
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) variance_[0] = 0.0f;
    }
    {
      float variance_part[1];
#pragma unroll
      for (int k = 0; k < 1; ++k) variance_part[k] = 0.0f;
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const int c2 = (w * 32 + thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c1 = row % 16;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) variance_part[0] = variance_part[0] + ((v0[j] - mean_[0]) * (v0[j] - mean_[0]));
          }
        }
      }
      {
#pragma unroll
        for (int k = 0; k < 1; ++k) {
#pragma unroll
          for (int distance = 16; distance; distance /= 2)
            variance_part[k] = variance_part[k] + __shfl_xor_sync(0xffffffff, variance_part[k], distance);
        }
#pragma unroll
        for (int k = 0; k < 1; ++k)
          if (thread % 32 == 0) scratch[k * 4 + thread / 32] = variance_part[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          const float* const of = scratch + k * 4 + thread / 128 * 4;
          variance_part[k] = of[0];
#pragma unroll
          for (int i = 1; i < 4; ++i) variance_part[k] = variance_part[k] + of[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          variance_[k] = variance_[k] + variance_part[k];
        }
      }
    }
    {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c2 = (w * 32 + thread % 32) * 4;
          const int row = u * 4 + thread / 32;
          const int c1 = row % 16;
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
          float v3[4];
          read_tile<fp32, 4>(v3, weight_ + (((long long)(c1)) * 256 + c2));
          float v4[4];
          read_tile<fp32, 4>(v4, bias_ + (((long long)(c1)) * 256 + c2));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = ((((v0[j] - mean_[0]) * rsqrtf(((variance_[0] / 4096.0f) + 1e-05f))) * v3[j]) + v4[j]);
          write_clipped<fp32, 4>(y_ + ((((long long)(b_ * 8 + r_)) * 16 + c1) * 256 + c2), out, b_ * 8 + r_ < m_ && c1 < 16 ? 256 - (c2) : 0);
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int r_ = max(min(8, m_ - b_ * 8) - 2, 0); r_ < min(8, m_ - b_ * 8); ++r_) {
    mbarrier_wait(row_full_ + rest(r_, 3) * 8, rest(quotient(r_, 3), 2));
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) mean_[0] = 0.0f;
    }
    {
      float mean_part[1];
#pragma unroll
      for (int k = 0; k < 1; ++k) mean_part[k] = 0.0f;
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const int c2 = (w * 32 + thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c1 = row % 16;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) mean_part[0] = mean_part[0] + v0[j];
          }
        }
      }
      {
#pragma unroll
        for (int k = 0; k < 1; ++k) {
#pragma unroll
          for (int distance = 16; distance; distance /= 2)
            mean_part[k] = mean_part[k] + __shfl_xor_sync(0xffffffff, mean_part[k], distance);
        }
#pragma unroll
        for (int k = 0; k < 1; ++k)
          if (thread % 32 == 0) scratch[k * 4 + thread / 32] = mean_part[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          const float* const of = scratch + k * 4 + thread / 128 * 4;
          mean_part[k] = of[0];
#pragma unroll
          for (int i = 1; i < 4; ++i) mean_part[k] = mean_part[k] + of[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          mean_[k] = mean_[k] + mean_part[k];
        }
      }
    }
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) mean_[0] = (mean_[0] / 4096.0f);
    }
    {
#pragma unroll
      for (int j = 0; j < 1; ++j) variance_[0] = 0.0f;
    }
    {
      float variance_part[1];
#pragma unroll
      for (int k = 0; k < 1; ++k) variance_part[k] = 0.0f;
      {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            const int c2 = (w * 32 + thread % 32) * 4;
            const int row = u * 4 + thread / 32;
            const int c1 = row % 16;
            float v0[4];
            read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
#pragma unroll
            for (int j = 0; j < 4; ++j) variance_part[0] = variance_part[0] + ((v0[j] - mean_[0]) * (v0[j] - mean_[0]));
          }
        }
      }
      {
#pragma unroll
        for (int k = 0; k < 1; ++k) {
#pragma unroll
          for (int distance = 16; distance; distance /= 2)
            variance_part[k] = variance_part[k] + __shfl_xor_sync(0xffffffff, variance_part[k], distance);
        }
#pragma unroll
        for (int k = 0; k < 1; ++k)
          if (thread % 32 == 0) scratch[k * 4 + thread / 32] = variance_part[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          const float* const of = scratch + k * 4 + thread / 128 * 4;
          variance_part[k] = of[0];
#pragma unroll
          for (int i = 1; i < 4; ++i) variance_part[k] = variance_part[k] + of[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 1; ++k) {
          variance_[k] = variance_[k] + variance_part[k];
        }
      }
    }
    {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const int c2 = (w * 32 + thread % 32) * 4;
          const int row = u * 4 + thread / 32;
          const int c1 = row % 16;
          float v0[4];
          read_tile<fp32, 4>(v0, reinterpret_cast<fp32*>(row_ + rest(r_, 3) * 16384 + ((c1) * 256 + c2) * 4));
          float v3[4];
          read_tile<fp32, 4>(v3, weight_ + (((long long)(c1)) * 256 + c2));
          float v4[4];
          read_tile<fp32, 4>(v4, bias_ + (((long long)(c1)) * 256 + c2));
          float out[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) out[j] = ((((v0[j] - mean_[0]) * rsqrtf(((variance_[0] / 4096.0f) + 1e-05f))) * v3[j]) + v4[j]);
          write_clipped<fp32, 4>(y_ + ((((long long)(b_ * 8 + r_)) * 16 + c1) * 256 + c2), out, b_ * 8 + r_ < m_ && c1 < 16 ? 256 - (c2) : 0);
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 3; ++s) mbarrier_inval(row_full_ + s * 8);
  }
}
