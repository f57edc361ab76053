"""Tiles of block-sparse matmuls: the default tile, and the tiles that the megakernel can compute with their time.

A tile of 128 x 128 x 64 over blocks of 128 x 128 takes two stages for each block of its row. A tile that is deeper than
a block takes several blocks in a stage. The time of a launch is estimated as

    (tiles / SMs + 1) * (stages * (longer of products and bytes through the L2, plus a constant) + fill + epilogue)

with as many blocks in each row as on average. Rows are uneven, and workers that claim items end within one item of one
another (Graham's bound on list scheduling), hence the 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType
from interlace.graph.op import Op
from interlace.kernels.bodies import MAX_BOX_ROWS, PANEL
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import MAX_ACCUMULATORS, TALL

#: Kernel name of block-sparse matmuls.
NAME = "block_sparse_matmul"
#: Params that define an op's tile, in the order of the fields of ``MatmulTile``.
TILING = ("BM", "BN", "BK", "STAGES", "num_warps")
_WIDEST = 128  # columns of the default tile
_DEEPEST = 128  # depth of a stage
_STAGE_BYTES = 48 << 10  # upper bound of the bytes of a stage, so that the ring has four
_MIN_WIDTH, _STEP = 16, 8  # lower bound of the width of a tile; step of the rows of few tokens
_STAGES = 3  # of the Triton body's software pipeline


def select_tile(m: int, height: int, depth: int) -> MatmulTile:
    """Return a tile for m rows of x and blocks of height x depth, of powers of two where these extents permit."""
    n, k = gcd(height, _WIDEST), gcd(depth, PANEL)
    rows = next((rows for rows in (16, 32, 64) if m <= rows), 128)
    if n % TALL:
        rows = max(rows, TALL) if n >= _MIN_WIDTH and k == PANEL else rows
    return MatmulTile(rows, n, k, _STAGES, 8 if rows >= 128 and n >= TALL else 4)


def is_transposed(bm: int, warpgroups: int) -> bool:
    """Return True if rows of the weight are the tensor core's 64-row operand, because those of x do not fill it."""
    return bm % (TALL * warpgroups) != 0


def iter_tiles(op: Op) -> Iterator[MatmulTile]:
    """Yield the tiles in which the megakernel can compute an op."""
    m, height, depth = (int(op.param(name)) for name in ("M", "HEIGHT", "DEPTH"))
    widths = [n for n in (height, height // 2, height // 4) if height % max(n, 1) == 0 and n % _STEP == 0]
    few = [-(-m // _STEP) * _STEP] if m < TALL else []
    for n in (n for n in widths if _MIN_WIDTH <= n <= MAX_BOX_ROWS):
        for rows in (*few, TALL, 2 * TALL, 4 * TALL):
            for warpgroups in (1, 2):
                tall = n if is_transposed(rows, warpgroups) else rows
                fits = rows * n // (128 * warpgroups) <= MAX_ACCUMULATORS[warpgroups]
                k = _select_depth(rows, n, depth)
                if tall % (TALL * warpgroups) == 0 and fits and k:
                    yield MatmulTile(rows, n, k, _STAGES, 4 * warpgroups)


def _select_depth(rows: int, n: int, depth: int) -> int:
    """Return the depth of a stage in steps of a panel, 0 if blocks are not a multiple of a panel deep."""
    fitting = (k for k in (_DEEPEST, PANEL) if 2 * k * (rows + n) <= _STAGE_BYTES)
    return next((k for k in fitting if depth % PANEL == 0 and (depth % k == 0 or k % depth == 0)), 0)


def estimate_s(op: Op, tile: MatmulTile, dtype: DType, device: DeviceSpec) -> float:
    """Return the estimated time of an op in a tile, as described in the module."""
    m, n, count, height, depth = (int(op.param(name)) for name in ("M", "N", "BLOCKS", "HEIGHT", "DEPTH"))
    stages = count * height * depth / n / tile.k
    bytes_s = tile.k * (tile.m + tile.n) * dtype.itemsize / device.sm_l2_bytes_per_s
    products_s = 2 * tile.m * tile.n * tile.k / device.flops_per_s(dtype) * device.sms
    epilogue_s = tile.m * tile.n * dtype.itemsize / device.stages.epilogue_bytes_per_s
    item_s = stages * (max(bytes_s, products_s) + device.stages.each_ns * 1e-9) + epilogue_s
    item_s += device.latencies.fill_ns * 1e-9
    return (-(-m // tile.m) * (n // tile.n) / device.sms + 1) * item_s
