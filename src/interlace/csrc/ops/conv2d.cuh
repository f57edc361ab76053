// Convolution of the megakernel as implicit GEMM: the products and the epilogue of matmul.cuh, with loads of its own.
//
//   x        (images, height, width, c)    channels last; loaded after the item's waits
//   weight   (n, taps_h * taps_w, c)       prefetched before them
//   out      (images, p, q, n)
//
// A tile is whole rows of output pixels, of one image or of whole images, so its pixels lie next to each other in
// memory. The reduction runs over channels; a stage is BK channels of one tap. For a tap, the pixels that a tile reads
// are one box of x: shifted by the tap, with every stride-th row and column. Outside of x, which is the padding, the
// copy engine fills in zeros. Panels of 64 channels lie in a slot as in matmul.cuh, pixels as tokens.
//
// 3 x 3 taps, stride 1, padding 1, a tile of rows 4 and 5 of an image of 7 x 7 pixels, 64 channels:
//
//   tap        0 (0, 0)                  4 (1, 1)                8 (2, 2)
//   box        rows 3 to 4, from -1 on   rows 4 to 5, from 0 on  rows 5 to 6, from 1 on    7 columns each
//   k          0 to 63                   0 to 63                 0 to 63                   weight[:, tap, 0:64]
//
// Boxes of a tensor map of four dimensions serve tiles of whole rows; im2col maps would also allow tiles that end within
// a row, whose accesses are no boxes.
#pragma once
#include "matmul/matmul.cuh"
#include "generated/arguments.cuh"

// Config: as of Matmul, where BM is the pixels of a tile, rounded up; ROWS, rows of a panel of x.
template <class Config> struct Conv2D : Matmul<Config> {
  typedef Matmul<Config> Products;
  static constexpr int BN = Config::BN, BK = Config::BK, ROWS = Config::ROWS, PANELS = Products::PANELS;

  DEVICE static void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int row = uniform(item.l * BN), taps = uniform(op.taps_h * op.taps_w);
    if (first_lane()) prefetch_map(op.x);
#pragma unroll 1
    for (int k = item.k_lo; k < item.k_hi; k += BK)
#pragma unroll 1
      for (int tap = 0; tap < taps; ++tap) {
        tickets.look(launch);
        open_prefetch(stage, n, Products::IN_FLIGHT, PANELS * BN * 128);
        const unsigned slot = uniform(prefetch_slot(stage.slot)), full = uniform(prefetch_full(stage.slot));
        if (first_lane())
#pragma unroll
          for (int p = 0; p < PANELS; ++p) tma_load_3d(slot + p * BN * 128, op.weight, k + p * 64, tap, row, full);
        stage.advance();
        ++n;
      }
  }
  DEVICE static void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    const int image = uniform(item.i * op.tile_images), row = uniform(item.j * op.row_step - op.pad_h);
    const int pixels = uniform(op.pixels), taps_h = uniform(op.taps_h), taps_w = uniform(op.taps_w);
    const int pad_w = uniform(op.pad_w), dilation_h = uniform(op.dilation_h), dilation_w = uniform(op.dilation_w);
#pragma unroll 1
    for (int k = k_lo; k < k_hi; k += BK)
#pragma unroll 1
      for (int r = 0; r < taps_h; ++r)
#pragma unroll 1
        for (int s = 0; s < taps_w; ++s) {
          open_load(stage, PANELS * pixels * 128);
          const unsigned slot = uniform(load_slot(stage.slot)), full = uniform(load_full(stage.slot));
          if (first_lane())
#pragma unroll
            for (int p = 0; p < PANELS; ++p)
              tma_load_4d(slot + p * ROWS * 128, op.x, k + p * 64, s * dilation_w - pad_w, row + r * dilation_h, image,
                          full);
          stage.advance();
        }
  }
  // The item as matmul.cuh sees it: the only tile of rows of its own, with as many stages along k as it has.
  DEVICE static Item as_matmul(const Operands& op, const Item& item) {
    Item tile = item;
    tile.i = 0, tile.j = item.l;
    tile.k_lo = 0, tile.k_hi = (item.k_hi - item.k_lo + BK - 1) / BK * op.taps_h * op.taps_w * BK;
    return tile;
  }
  // The operands of its epilogue, from the first pixel of the tile on; further pixels than the tile has are not stored.
  DEVICE static Epilogue epilogue_of(const Operands& op, const Item& item) {
    Epilogue own = op;
    const int image = item.i * op.tile_images, row = item.j * op.tile_rows;
    const int rows = op.tile_images > 1 ? min(op.tile_images, op.images - image) * op.out_rows
                                        : min(op.tile_rows, op.out_rows - row);
    const long long first = ((long long)image * op.out_rows + row) * op.out_columns * op.n;
    own.out += first;
    own.m = rows * op.out_columns;
    own.residual_rows = 0;  // an op without a residual has the code of one with it
    if (op.residual) own.residual += first, own.residual_rows = own.m;
    return own;
  }
  DEVICE static void compute(const Launch& launch, const Item& item, Stage& stage) {
    const Operands& op = operands_of<Operands>(launch, item);
    Products::template compute_with<0>(launch, as_matmul(op, item), epilogue_of(op, item), stage);
  }
};
