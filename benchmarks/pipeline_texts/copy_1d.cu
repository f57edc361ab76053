// y[0 : n] = x[0 : n]. One thread of a block moves tiles of TILE floats through a ring of STAGES, PREFETCH tiles ahead.
// Bulk copies in both directions; the 1 to 3 floats beyond a multiple of 16 bytes go by plain loads.
extern "C" __global__ void __launch_bounds__(32) copy_1d(const float* x, float* y, long long n) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * TILE * 4;
  const long long tiles = (n + TILE - 1) / TILE;
  const long long mine = tiles > blockIdx.x ? (tiles - 1 - blockIdx.x) / gridDim.x + 1 : 0;
  if (threadIdx.x != 0) return;
  for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
  fence_mbarrier_init();

  auto start = [&](long long i) { return (blockIdx.x + i * gridDim.x) * TILE; };
  auto bytes = [&](long long i) { return (unsigned)(min((long long)TILE, n - start(i)) & ~3ll) * 4; };
  auto load = [&](long long i) {
    const unsigned stage = i % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * stage, bytes(i));
    if (bytes(i)) bulk_load(ring + stage * TILE * 4, x + start(i), bytes(i), full + 8 * stage);
  };
  for (long long i = 0; i < PREFETCH && i < mine; ++i) load(i);
  for (long long i = 0; i < mine; ++i) {
    if (i + PREFETCH < mine) {
      bulk_wait_read<STAGES - 1 - PREFETCH>();  // the store of tile i + PREFETCH - STAGES has left the stage
      load(i + PREFETCH);
    }
    const unsigned stage = i % STAGES;
    mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
    if (bytes(i)) bulk_store(y + start(i), ring + stage * TILE * 4, bytes(i));
    bulk_commit();
    for (long long e = start(i) + bytes(i) / 4; e < min(start(i) + TILE, n); ++e) y[e] = x[e];
  }
  bulk_wait<0>();
  for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
