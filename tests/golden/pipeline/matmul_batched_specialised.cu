extern "C" __global__ void __launch_bounds__(384, 1)
    matmul_batched_(const bf16* __restrict__ a,
                    const bf16* __restrict__ b,
                    bf16* __restrict__ c,
                    const __grid_constant__ TensorMap a_map_128x64s,
                    const __grid_constant__ TensorMap b_map_1x128x64s,
                    long long batch_,
                    long long rows_,
                    long long columns_,
                    long long depth_) {
  const int batch = (int)batch_;
  const int rows = (int)rows_;
  const int columns = (int)columns_;
  const int depth = (int)depth_;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const a_s = shared + 0;
  unsigned char* const b_s = shared + 65536;
  const unsigned a_s_full = shared_address(shared + 131072);
  const unsigned a_s_empty = shared_address(shared + 131104);
  const unsigned b_s_full = shared_address(shared + 131136);
  const unsigned b_s_empty = shared_address(shared + 131168);
  const int thread = threadIdx.x;
  const int j = rest(blockIdx.x, quotient(columns + 127, 128));
  const int i = quotient(blockIdx.x, quotient(columns + 127, 128));
  const int s_extent = quotient(depth + 63, 64);
  // barriers
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(a_s_full + s_ * 8, 1);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(a_s_empty + s_ * 8, 8);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(b_s_full + s_ * 8, 1);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_init(b_s_empty + s_ * 8, 8);
    fence_mbarrier_init();
  }
  __syncthreads();
  // loader
  if (thread >= 256 && thread < 384) {
    registers_lower<40>();
    if (thread == 256) {
#pragma unroll 1
      for (int g = 0; g < batch; ++g) {
#pragma unroll 1
        for (int s = 0; s < quotient(depth + 63, 64); ++s) {
          const int s_step = g * s_extent + s;
          mbarrier_wait(a_s_empty + rest(s_step, 4) * 8, rest(quotient(s_step, 4) + 1, 2));
          mbarrier_arrive_expect_tx(a_s_full + rest(s_step, 4) * 8, 16384);
          tma_load_2d(shared_address(a_s + rest(s_step, 4) * 16384), a_map_128x64s, s * 64, i * 128, a_s_full + rest(s_step, 4) * 8);
          mbarrier_wait(b_s_empty + rest(s_step, 4) * 8, rest(quotient(s_step, 4) + 1, 2));
          mbarrier_arrive_expect_tx(b_s_full + rest(s_step, 4) * 8, 16384);
          tma_load_3d(shared_address(b_s + rest(s_step, 4) * 16384), b_map_1x128x64s, s * 64, j * 128, g, b_s_full + rest(s_step, 4) * 8);
        }
      }
    }
    __syncwarp();
  }
  // consumer
  if (thread < 256) {
    registers_raise<232>();
    float acc[1][64];
#pragma unroll 1
    for (int g = 0; g < batch; ++g) {
      {
#pragma unroll
        for (int b_ = 0; b_ < 1; ++b_) {
#pragma unroll
          for (int h_ = 0; h_ < 2; ++h_) {
#pragma unroll
            for (int p_ = 0; p_ < 16; ++p_) {
#pragma unroll
              for (int j_ = 0; j_ < 2; ++j_) acc[b_][p_ * 4 + h_ * 2 + j_] = 0.0f;
            }
          }
        }
      }
      unsigned a_s_empty_before_ = 0;
      unsigned b_s_empty_before_ = 0;
      settle(acc[0]);
#pragma unroll 1
      for (int s = 0; s < quotient(depth + 63, 64); ++s) {
        const int s_step = g * s_extent + s;
        mbarrier_wait(a_s_full + rest(s_step, 4) * 8, rest(quotient(s_step, 4), 2));
        mbarrier_wait(b_s_full + rest(s_step, 4) * 8, rest(quotient(s_step, 4), 2));
        {
          __syncwarp();
          const unsigned long long a_ = matrix_descriptor(shared_address(a_s + rest(s_step, 4) * 16384));
          const unsigned long long b_ = matrix_descriptor(shared_address(b_s + rest(s_step, 4) * 16384));
          wgmma_fence();
#pragma unroll
          for (int block_ = 0; block_ < 1; ++block_) {
#pragma unroll
            for (int k_ = 0; k_ < 4; ++k_)
              wgmma_m64n128k16(acc[block_], a_ + (block_ * 2 + thread / 128) * 512 + k_ * 2, b_ + k_ * 2);
          }
          wgmma_commit();
          wgmma_wait<1>();
        }
        if (thread % 32 == 0 && a_s_empty_before_) mbarrier_arrive(a_s_empty_before_);
        a_s_empty_before_ = a_s_empty + rest(s_step, 4) * 8;
        if (thread % 32 == 0 && b_s_empty_before_) mbarrier_arrive(b_s_empty_before_);
        b_s_empty_before_ = b_s_empty + rest(s_step, 4) * 8;
      }
      wgmma_wait<0>();
      settle(acc[0]);
      __syncwarp();
      if (thread % 32 == 0 && a_s_empty_before_) mbarrier_arrive(a_s_empty_before_);
      if (thread % 32 == 0 && b_s_empty_before_) mbarrier_arrive(b_s_empty_before_);
      {
#pragma unroll
        for (int b_ = 0; b_ < 1; ++b_) {
#pragma unroll
          for (int h_ = 0; h_ < 2; ++h_) {
            const int c0_ = (b_ * 2 + thread / 128) * 64 + thread / 32 % 4 * 16 + h_ * 8 + thread % 32 / 4;
#pragma unroll
            for (int p_ = 0; p_ < 16; ++p_) {
              const int c1_ = p_ * 8 + thread % 4 * 2;
              float out_[2];
#pragma unroll
              for (int j_ = 0; j_ < 2; ++j_) out_[j_] = acc[b_][p_ * 4 + h_ * 2 + j_];
              write_clipped<bf16, 2>(c + ((((long long)(g)) * rows + i * 128 + c0_) * columns + j * 128 + c1_), out_, g < batch && i * 128 + c0_ < rows ? columns - (j * 128 + c1_) : 0);
            }
          }
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(a_s_full + s_ * 8);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(a_s_empty + s_ * 8);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(b_s_full + s_ * 8);
    for (int s_ = 0; s_ < 4; ++s_) mbarrier_inval(b_s_empty + s_ * 8);
  }
}
