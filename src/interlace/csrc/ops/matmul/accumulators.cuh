// Accumulators of a matmul tile: registers of a thread, by row and column of the tensor core's product.
//
// wgmma multiplies 64 rows (the tall operand) by up to 256 columns (the wide one). Rows are tokens and columns weight
// rows, or with swap-AB the reverse. Warpgroups divide the rows among them, in blocks of 64. A thread holds, of each
// block, rows r and r + 8 and in each group of 8 columns two neighbours (PTX ISA, "wgmma accumulator fragment"):
//
//   r = warp of the warpgroup * 16 + lane / 4      c = group * 8 + lane % 4 * 2
//   element 4 * group + e of a block               row r + e / 2 * 8, column c + e % 2
//
// A gated tile has two sets: the gate's, then the other one. A set is COLUMNS / 2 registers for each block.
#pragma once
#include "operands.cuh"

template <class Config> struct Accumulators {
  static constexpr int GATES = Config::GATES;
  static constexpr int HEIGHT = Config::SWAP_AB ? Config::BN : Config::BM;
  static constexpr int WIDTH = Config::SWAP_AB ? Config::BM : Config::BN;
  static constexpr int BLOCKS = HEIGHT / WARPGROUPS / 64;   // of a warpgroup
  static constexpr int COUNT = GATES * BLOCKS * WIDTH / 2;  // registers of a thread
  template <int COLUMNS> using Columns = float[GATES][BLOCKS][COLUMNS / 2];
  typedef Columns<WIDTH> Tile;
  typedef float Squares[BLOCKS][2];  // a thread's sums of squares of rows r and r + 8 (folded_norm.cuh)
  // True if the tile computes the norm of its own rows. If not, but NORM_K is set, a producer stored their squares.
  static constexpr bool NORMALISES = Config::NORM_K > 0 && Config::SQUARED == 0;
  static constexpr bool SCALES = Config::NORM_K > 0 && !NORMALISES;
};
