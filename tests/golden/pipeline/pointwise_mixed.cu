extern "C" __global__ void __launch_bounds__(128, 1)
    pointwise_(const fp32* __restrict__ x,
               const fp32* __restrict__ z,
               fp32* __restrict__ y,
               const __grid_constant__ TensorMap x_map_4x256,
               long long m_,
               long long n_) {
  const int m = (int)m_;
  const int n = (int)n_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const x_s = shared + 0;
  unsigned char* const z_s = shared + 16384;
  const unsigned x_s_full = shared_address(shared + 28672);
  const unsigned z_s_full = shared_address(shared + 28704);
  const int thread = threadIdx.x;
  const int b = rest(blockIdx.x, quotient(n + 511, 512));
  const int r = quotient(blockIdx.x, quotient(n + 511, 512));
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(x_s_full + s_ * 8, 1);
    for (int s_ = 0; s_ < 3; ++s_) mbarrier_init(z_s_full + s_ * 8, 128);
    fence_mbarrier_init();
  }
  __syncthreads();
  // prologue
#pragma unroll 1
  for (int c_first = 0; c_first < min(3, min(2, quotient(n + 255, 256) - b * 2)); ++c_first) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(x_s_full + rest(c_first, 4) * 8, 4096);
      tma_load_2d(shared_address(x_s + rest(c_first, 4) * 4096), x_map_4x256, (b * 2 + c_first) * 256, r * 4, x_s_full + rest(c_first, 4) * 8);
    }
  }
#pragma unroll 1
  for (int c_first = 0; c_first < min(2, min(2, quotient(n + 255, 256) - b * 2)); ++c_first) {
    {
#pragma unroll
      for (int u_ = 0; u_ < 1; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c1_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = thread / 32;
          const int c0_ = row_;
          const bool inside_ = r * 4 + c0_ < m && (b * 2 + c_first) * 256 + c1_ < n;
          copy_async_16(shared_address(z_s + rest(c_first, 3) * 4096 + ((c0_) * 256 + c1_) * 4), z + (((long long)(r * 4 + c0_)) * n + (b * 2 + c_first) * 256 + c1_), z, inside_ ? min(4, n - ((b * 2 + c_first) * 256 + c1_)) * 4 : 0);
        }
      }
    }
    copy_async_arrive(z_s_full + rest(c_first, 3) * 8);
  }
  // main
#pragma unroll 1
  for (int c = 0; c < min(2, quotient(n + 255, 256) - b * 2) - 3; ++c) {
    if (thread == 0) {
      mbarrier_arrive_expect_tx(x_s_full + rest(c + 3, 4) * 8, 4096);
      tma_load_2d(shared_address(x_s + rest(c + 3, 4) * 4096), x_map_4x256, (b * 2 + (c + 3)) * 256, r * 4, x_s_full + rest(c + 3, 4) * 8);
    }
    {
#pragma unroll
      for (int u_ = 0; u_ < 1; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c1_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = thread / 32;
          const int c0_ = row_;
          const bool inside_ = r * 4 + c0_ < m && (b * 2 + (c + 2)) * 256 + c1_ < n;
          copy_async_16(shared_address(z_s + rest(c + 2, 3) * 4096 + ((c0_) * 256 + c1_) * 4), z + (((long long)(r * 4 + c0_)) * n + (b * 2 + (c + 2)) * 256 + c1_), z, inside_ ? min(4, n - ((b * 2 + (c + 2)) * 256 + c1_)) * 4 : 0);
        }
      }
    }
    copy_async_arrive(z_s_full + rest(c + 2, 3) * 8);
    mbarrier_wait(x_s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    mbarrier_wait(z_s_full + rest(c, 3) * 8, rest(quotient(c, 3), 2));
    {
#pragma unroll
      for (int u_ = 0; u_ < 1; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c1_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = thread / 32;
          const int c0_ = row_;
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(x_s + rest(c, 4) * 4096 + ((c0_) * 256 + c1_) * 4));
          float v1_[4];
          read_tile<fp32, 4>(v1_, reinterpret_cast<fp32*>(z_s + rest(c, 3) * 4096 + ((c0_) * 256 + c1_) * 4));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = larger(((v0_[j_] * v1_[j_]) + 1.0f), 0.0f);
          write_clipped<fp32, 4>(y + (((long long)(r * 4 + c0_)) * n + (b * 2 + c) * 256 + c1_), out_, r * 4 + c0_ < m ? n - ((b * 2 + c) * 256 + c1_) : 0);
        }
      }
    }
    __syncthreads();
  }
  // epilogue
#pragma unroll 1
  for (int c = max(min(2, quotient(n + 255, 256) - b * 2) - 3, 0); c < min(2, quotient(n + 255, 256) - b * 2); ++c) {
    if (c + 2 < min(2, quotient(n + 255, 256) - b * 2)) {
      {
#pragma unroll
        for (int u_ = 0; u_ < 1; ++u_) {
#pragma unroll
          for (int w_ = 0; w_ < 2; ++w_) {
            const int c1_ = (w_ * 32 + thread % 32) * 4;
            const int row_ = thread / 32;
            const int c0_ = row_;
            const bool inside_ = r * 4 + c0_ < m && (b * 2 + (c + 2)) * 256 + c1_ < n;
            copy_async_16(shared_address(z_s + rest(c + 2, 3) * 4096 + ((c0_) * 256 + c1_) * 4), z + (((long long)(r * 4 + c0_)) * n + (b * 2 + (c + 2)) * 256 + c1_), z, inside_ ? min(4, n - ((b * 2 + (c + 2)) * 256 + c1_)) * 4 : 0);
          }
        }
      }
      copy_async_arrive(z_s_full + rest(c + 2, 3) * 8);
    }
    mbarrier_wait(x_s_full + rest(c, 4) * 8, rest(quotient(c, 4), 2));
    mbarrier_wait(z_s_full + rest(c, 3) * 8, rest(quotient(c, 3), 2));
    {
#pragma unroll
      for (int u_ = 0; u_ < 1; ++u_) {
#pragma unroll
        for (int w_ = 0; w_ < 2; ++w_) {
          const int c1_ = (w_ * 32 + thread % 32) * 4;
          const int row_ = thread / 32;
          const int c0_ = row_;
          float v0_[4];
          read_tile<fp32, 4>(v0_, reinterpret_cast<fp32*>(x_s + rest(c, 4) * 4096 + ((c0_) * 256 + c1_) * 4));
          float v1_[4];
          read_tile<fp32, 4>(v1_, reinterpret_cast<fp32*>(z_s + rest(c, 3) * 4096 + ((c0_) * 256 + c1_) * 4));
          float out_[4];
#pragma unroll
          for (int j_ = 0; j_ < 4; ++j_) out_[j_] = larger(((v0_[j_] * v1_[j_]) + 1.0f), 0.0f);
          write_clipped<fp32, 4>(y + (((long long)(r * 4 + c0_)) * n + (b * 2 + c) * 256 + c1_), out_, r * 4 + c0_ < m ? n - ((b * 2 + c) * 256 + c1_) : 0);
        }
      }
    }
    __syncthreads();
  }
  // end
  fence_proxy_async();
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(x_s_full + s_ * 8);
    for (int s_ = 0; s_ < 3; ++s_) mbarrier_inval(z_s_full + s_ * 8);
  }
}
