// y = x for matrices of any extents. One thread of a block moves boxes of ROWS x COLUMNS floats through a ring of STAGES,
// PREFETCH boxes ahead. Boxes over the edge are filled with zeros by the load and clipped by the store.
extern "C" __global__ void __launch_bounds__(32)
    copy_2d(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y, long long rows, long long columns) {
  constexpr unsigned BOX_BYTES = ROWS * COLUMNS * 4;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned ring = shared_address(shared), full = ring + STAGES * BOX_BYTES;
  const unsigned across = (columns + COLUMNS - 1) / COLUMNS;
  const unsigned boxes = across * (unsigned)((rows + ROWS - 1) / ROWS);
  const unsigned mine = boxes > blockIdx.x ? (boxes - 1 - blockIdx.x) / gridDim.x + 1 : 0;
  if (threadIdx.x != 0) return;
  for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
  fence_mbarrier_init();

  auto load = [&](unsigned i) {
    const unsigned box = blockIdx.x + i * gridDim.x, stage = i % STAGES;
    mbarrier_arrive_expect_tx(full + 8 * stage, BOX_BYTES);
    tma_load_2d(ring + stage * BOX_BYTES, x, box % across * COLUMNS, box / across * ROWS, full + 8 * stage);
  };
  for (int i = 0; i < PREFETCH && i < (int)mine; ++i) load(i);
  for (unsigned i = 0; i < mine; ++i) {
    if (i + PREFETCH < mine) {
      bulk_wait_read<STAGES - 1 - PREFETCH>();  // the store of box i + PREFETCH - STAGES has left the stage
      load(i + PREFETCH);
    }
    const unsigned box = blockIdx.x + i * gridDim.x, stage = i % STAGES;
    mbarrier_wait(full + 8 * stage, (i / STAGES) & 1);
    tma_store_2d(y, box % across * COLUMNS, box / across * ROWS, ring + stage * BOX_BYTES);
    bulk_commit();
  }
  bulk_wait<0>();
  for (int s = 0; s < STAGES; ++s) mbarrier_inval(full + 8 * s);
}
