// Block-sparse matmul: tiles as of matmul.cuh, whose reduction runs over the blocks of a block row. The table decides
// how many these are (rows) and which columns of x they multiply (columns).
//
//   blocks (count, HEIGHT, DEPTH)     loaded as (count * HEIGHT, DEPTH); those of a block row follow each other
//   tile j                            BN rows of each block of block row j / (HEIGHT / BN)
//
// Blocks are deep by whole panels of 64 elements. A row's panels, one block after the other, fill stages of BK / 64
// panels each; with BK a multiple of DEPTH a stage has panels of several blocks. A row of 3 blocks with DEPTH 64 and BK
// 128:
//
//   stage      0            1
//   weights    b0    b1     b2    zeros      rows of zeros lie beyond the blocks, where bulk loads read nothing
//   tokens     x[c0] x[c1]  x[c2] zeros      likewise columns beyond x; also of a column that is out of range
//
// The loader reads the row's pointers, before all waits if no op writes the weight (PREFETCHED). It tells all other
// roles by the header of the item's first stage, so that all count the same stages, whatever a table contains and
// whether or not a wait was given up. A row without blocks takes one stage, of no bytes, and its tile stores zeros.
#pragma once
#include "matmul/matmul.cuh"
#include "generated/arguments.cuh"

// Config: as of Matmul, and HEIGHT, DEPTH and PREFETCHED.
template <class Config> struct BlockSparse {
  typedef Matmul<Config> OfMatmul;
  static constexpr int BM = Config::BM, BN = Config::BN, BK = Config::BK;
  static constexpr int HEIGHT = Config::HEIGHT, DEPTH = Config::DEPTH, PARTS = HEIGHT / BN;
  static constexpr bool PREFETCHED = Config::PREFETCHED;
  static constexpr int PANELS = OfMatmul::PANELS, LANES = 32;
  static_assert(HEIGHT % BN == 0 && DEPTH % 64 == 0, "tiles of one block row, in whole panels");

  // The first block of a row, and how many blocks it has.
  struct Blocks {
    int first, count;
    DEVICE int depth() const { return count * DEPTH; }
  };
  // Blocks of an item, from its first stage; called by whole warps.
  DEVICE static Blocks blocks_of(const Stage& stage) {
    await(prefetch_full(stage.slot), stage.phase);
    const int4 header = load_shared_128(header_at(stage.slot));
    const Blocks blocks = {(int)uniform(header.x), (int)uniform(header.y)};
    __syncwarp();  // before the header is written again
    return blocks;
  }
  // An item whose reduction is that of its row.
  DEVICE static Item reduction_of(const Item& item, const Blocks& blocks) {
    Item own = item;
    own.k_lo = 0, own.k_hi = blocks.depth(), own.parts = 1;
    return own;
  }

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    if (!PREFETCHED) {
      await_launch_before();
      await_rows(launch, item, item.wait_lo, item.wait_hi);
    }
    const int* const pointers = op.rows + uniform(item.j / PARTS);
    const int first = max((int)uniform(__ldcg(pointers)), 0);
    const int end = min(max((int)uniform(__ldcg(pointers + 1)), 0), op.blocks);
    const Blocks blocks = {first, max(end - first, 0)};
    tickets.look(launch);
    await(prefetch_empty(stage.slot), stage.phase ^ 1);
    if (first_lane()) store_shared_128(header_at(stage.slot), make_int4(blocks.first, blocks.count, 0, 0));
    if (blocks.count == 0) {
      open_prefetch(stage, n, OfMatmul::IN_FLIGHT, 0);
      stage.advance();
      ++n;
      return;
    }
    if (!PREFETCHED) asm volatile("fence.proxy.async.global;" ::: "memory");
    const int row = first * HEIGHT + uniform(item.j % PARTS) * BN, depth = blocks.depth(), beyond = op.blocks * HEIGHT;
#pragma unroll 1
    for (int k = 0; k < depth; k += BK) {
      if (k) tickets.look(launch);
      open_prefetch(stage, n, OfMatmul::IN_FLIGHT, PANELS * BN * 128);
      const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
      if (first_lane()) {
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          const int at = k + p * 64;
          tma_load_2d(slot + p * BN * 128, op.weight, at % DEPTH, at < depth ? row + at / DEPTH * HEIGHT : beyond,
                      full);
        }
      }
      stage.advance();
      ++n;
    }
  }
  // The first column of x of a lane's block, from block `from` of the row on; beyond x if there is none.
  DEVICE static int column_of(const Operands& op, const Blocks& blocks, int from) {
    const int block = from + threadIdx.x % LANES;
    if (block >= blocks.count) return op.k;
    const int column = __ldcg(op.columns + blocks.first + block);
    return column >= 0 && column < op.k / DEPTH ? column * DEPTH : op.k;
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const Blocks blocks = blocks_of(stage);
    if (blocks.count == 0) {
      open_load(stage, 0);
      stage.advance();
      return;
    }
    const int row = uniform(item.i * BM), depth = blocks.depth();
    int columns = 0;
#pragma unroll 1
    for (int k = 0; k < depth; k += BK) {
      open_load(stage, PANELS * BM * 128);
      const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        const int at = k + p * 64, block = at / DEPTH;
        if (at % DEPTH == 0 && block % LANES == 0) columns = column_of(op, blocks, block);
        const int column = __shfl_sync(0xffffffff, columns, block % LANES) + at % DEPTH;
        if (first_lane()) tma_load_2d(slot + p * BM * 128, op.x, column, row, full);
      }
      stage.advance();
    }
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Blocks blocks = blocks_of(stage);
    if (blocks.count > 0) return OfMatmul::compute(launch, reduction_of(item, blocks), stage);
    await_stage(stage);
    __syncwarp();
    release(stage, stage.slot);
    stage.advance();
    const Operands& op = operands_of<Operands>(launch, item);
    const int m = op.m, n = op.n, pieces = BN / 8;
    ELEMENT* const out = op.out;
    for (int piece = thread(); piece < BM * pieces; piece += THREADS) {
      const int row = item.i * BM + piece / pieces, feature = item.j * BN + piece % pieces * 8;
      if (row < m) *reinterpret_cast<int4*>(out + (long long)row * n + feature) = make_int4(0, 0, 0, 0);
    }
  }
};
