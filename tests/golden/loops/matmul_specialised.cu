extern "C" __global__ void __launch_bounds__(384, 1)
    matmul_(const bf16* __restrict__ a_,
            const bf16* __restrict__ b_,
            bf16* __restrict__ c_,
            const __grid_constant__ TensorMap a_map_128x64s,
            const __grid_constant__ TensorMap b_map_128x64s,
            long long rows_given,
            long long columns_given,
            long long depth_given) {
  const int rows_ = (int)rows_given;
  const int columns_ = (int)columns_given;
  const int depth_ = (int)depth_given;
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const a_s_ = shared + 0;
  unsigned char* const b_s_ = shared + 65536;
  const unsigned a_s_full_ = shared_address(shared + 131072);
  const unsigned a_s_empty_ = shared_address(shared + 131104);
  const unsigned b_s_full_ = shared_address(shared + 131136);
  const unsigned b_s_empty_ = shared_address(shared + 131168);
  const int thread = threadIdx.x;
  const int j_ = rest(blockIdx.x, quotient(columns_ + 127, 128));
  const int i_ = quotient(blockIdx.x, quotient(columns_ + 127, 128));
  // barriers
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_init(a_s_full_ + s * 8, 1);
    for (int s = 0; s < 4; ++s) mbarrier_init(a_s_empty_ + s * 8, 8);
    for (int s = 0; s < 4; ++s) mbarrier_init(b_s_full_ + s * 8, 1);
    for (int s = 0; s < 4; ++s) mbarrier_init(b_s_empty_ + s * 8, 8);
    fence_mbarrier_init();
  }
  __syncthreads();
  // loader
  if (thread >= 256 && thread < 384) {
    registers_lower<40>();
    if (thread == 256) {
#pragma unroll 1
      for (int s_ = 0; s_ < quotient(depth_ + 63, 64); ++s_) {
        mbarrier_wait(a_s_empty_ + rest(s_, 4) * 8, rest(quotient(s_, 4) + 1, 2));
        mbarrier_arrive_expect_tx(a_s_full_ + rest(s_, 4) * 8, 16384);
        tma_load_2d(shared_address(a_s_ + rest(s_, 4) * 16384), a_map_128x64s, s_ * 64, i_ * 128, a_s_full_ + rest(s_, 4) * 8);
        mbarrier_wait(b_s_empty_ + rest(s_, 4) * 8, rest(quotient(s_, 4) + 1, 2));
        mbarrier_arrive_expect_tx(b_s_full_ + rest(s_, 4) * 8, 16384);
        tma_load_2d(shared_address(b_s_ + rest(s_, 4) * 16384), b_map_128x64s, s_ * 64, j_ * 128, b_s_full_ + rest(s_, 4) * 8);
      }
    }
    __syncwarp();
  }
  // consumer
  if (thread < 256) {
    registers_raise<232>();
    float acc_[1][64];
    {
#pragma unroll
      for (int b = 0; b < 1; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int p = 0; p < 16; ++p) {
#pragma unroll
            for (int j = 0; j < 2; ++j) acc_[b][p * 4 + h * 2 + j] = 0.0f;
          }
        }
      }
    }
    unsigned a_s_empty_before = 0;
    unsigned b_s_empty_before = 0;
    settle(acc_[0]);
#pragma unroll 1
    for (int s_ = 0; s_ < quotient(depth_ + 63, 64); ++s_) {
      mbarrier_wait(a_s_full_ + rest(s_, 4) * 8, rest(quotient(s_, 4), 2));
      mbarrier_wait(b_s_full_ + rest(s_, 4) * 8, rest(quotient(s_, 4), 2));
      {
        __syncwarp();
        const unsigned long long a = matrix_descriptor(shared_address(a_s_ + rest(s_, 4) * 16384));
        const unsigned long long b = matrix_descriptor(shared_address(b_s_ + rest(s_, 4) * 16384));
        wgmma_fence();
#pragma unroll
        for (int block = 0; block < 1; ++block) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            wgmma_m64n128k16(acc_[block], a + (block * 2 + thread / 128) * 512 + k * 2, b + k * 2);
        }
        wgmma_commit();
        wgmma_wait<1>();
      }
      if (thread % 32 == 0 && a_s_empty_before) mbarrier_arrive(a_s_empty_before);
      a_s_empty_before = a_s_empty_ + rest(s_, 4) * 8;
      if (thread % 32 == 0 && b_s_empty_before) mbarrier_arrive(b_s_empty_before);
      b_s_empty_before = b_s_empty_ + rest(s_, 4) * 8;
    }
    wgmma_wait<0>();
    settle(acc_[0]);
    __syncwarp();
    if (thread % 32 == 0 && a_s_empty_before) mbarrier_arrive(a_s_empty_before);
    if (thread % 32 == 0 && b_s_empty_before) mbarrier_arrive(b_s_empty_before);
    {
#pragma unroll
      for (int b = 0; b < 1; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int c0 = (b * 2 + thread / 128) * 64 + thread / 32 % 4 * 16 + h * 8 + thread % 32 / 4;
#pragma unroll
          for (int p = 0; p < 16; ++p) {
            const int c1 = p * 8 + thread % 4 * 2;
            float out[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) out[j] = acc_[b][p * 4 + h * 2 + j];
            write_clipped<bf16, 2>(c_ + (((long long)(i_ * 128 + c0)) * columns_ + j_ * 128 + c1), out, i_ * 128 + c0 < rows_ ? columns_ - (j_ * 128 + c1) : 0);
          }
        }
      }
    }
  }
  // end
  __syncthreads();
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) mbarrier_inval(a_s_full_ + s * 8);
    for (int s = 0; s < 4; ++s) mbarrier_inval(a_s_empty_ + s * 8);
    for (int s = 0; s < 4; ++s) mbarrier_inval(b_s_full_ + s * 8);
    for (int s = 0; s < 4; ++s) mbarrier_inval(b_s_empty_ + s * 8);
  }
}
