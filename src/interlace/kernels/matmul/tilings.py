"""Which tiles of a matmul make a launch: bytes of shared memory and registers of its bodies, as formulas.

A stage of the software pipeline of the Triton body holds one chunk of every operand. In bf16, a gated 128 x 128 x 64
tile takes 64 * (128 + 2 * 128) * 2 = 48 KiB a stage, so that 227 KiB hold four; in fp32 a chunk of 32 takes as much.
"""

from __future__ import annotations

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, fp16
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import require
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul.tile import MatmulTile

#: The kernel's.
NAME = "matmul"
#: The argument that is x again, of whose whole rows the squares are summed where a matmul normalises them itself.
X_WHOLE = "x_whole"
#: Tokens up to which tiles may have few weight rows (``csrc/ops/matmul/skinny.cuh``).
SKINNY_TOKENS = 16
#: float32 sums of one thread, beside which registers hold operands and addresses.
MAX_THREAD_ACCUMULATORS = 128
#: The same in the one launch, by consumer warpgroups of a block: threads of one have 255 registers, of two 224 each, of
#: three 152.
MAX_ACCUMULATORS = {1: 168, 2: 168, 3: 96}
MAX_WARPGROUPS = max(MAX_ACCUMULATORS)
_SWIZZLED_BYTES = 1024  # that slots begin at a multiple of
_OPERAND_REGISTERS = {1: 24, 2: 24, 3: 16}  # registers of operands, of tiles that have as many sums as there may be
_STEP = 8  # columns of products


def find_tensor(op: Op, argument: str) -> str | None:
    """The tensor of an argument of a matmul, None if the op has no such argument."""
    return next((a.tensor for a in op.accesses if a.arg == argument), None)


def count_weights(op: Op) -> int:
    """Matrices of weights that multiply the same activations: two if there is a gate."""
    return 1 if find_tensor(op, "gate") is None else 2


def get_width_step(op: Op) -> int:
    """Weight rows that the width of a tile of an op is a multiple of."""
    return 8 if find_tensor(op, "squares") is None else int(op.param("SQUARED"))


def select_matmuls(graph: Graph) -> tuple[Op, ...]:
    """The ops of a graph that are matmuls, in program order."""
    return tuple(op for op in graph.ops if op.kernel == NAME)


def count_partial_elements(op: Op) -> int:
    """float32 elements of one partial sum of a tile."""
    return int(op.param("BM")) * int(op.param("BN")) * count_weights(op)


def compute_triton_smem_bytes(op: Op, itemsize: int) -> int:
    """Shared memory of all stages of the software pipeline, for elements of so many bytes."""
    bm, bn, k, stages = (int(op.param(name)) for name in ("BM", "BN", "BK", "STAGES"))
    return stages * k * (bm + count_weights(op) * bn) * itemsize


def check_powers(op: Op) -> None:
    """Raise ShapeError unless extents of an op's tile, from 16 on, and its warps are powers of two, as Triton's are."""
    warps = int(op.param("num_warps"))
    require(
        warps & (warps - 1) == 0,
        f"op {op.name!r}: tile for {warps} warps: Triton's are powers of two; use such a tile, or the one_launch "
        "executor",
    )
    extents = [int(op.param(name)) for name in ("BM", "BN", "BK")]
    require(
        all(extent >= 16 and extent & (extent - 1) == 0 for extent in extents),
        f"op {op.name!r}: tile of {' x '.join(map(str, extents))}: Triton's extents must be powers of two of at least "
        "16; use such a tile, or the one_launch executor",
    )


def check_triton(graph: Graph, op: Op, device: DeviceSpec) -> None:
    """Raise ShapeError unless the op's stages fit shared memory and its sums the registers."""
    check_powers(op)
    bm, bn, k, stages = (int(op.param(name)) for name in ("BM", "BN", "BK", "STAGES"))
    tile = f"op {op.name!r}: tile of {bm} x {bn} x {k}"
    nbytes = compute_triton_smem_bytes(op, graph.tensor(op.writes[0].tensor).dtype.itemsize)
    require(
        nbytes <= device.smem_bytes,
        f"{tile}: {stages} stages take {nbytes} bytes of shared memory, and {device.name} has {device.smem_bytes}; "
        "use fewer stages or a smaller tile",
    )
    registers = count_partial_elements(op) // (32 * int(op.param("num_warps")))
    require(
        registers <= MAX_THREAD_ACCUMULATORS,
        f"{tile}: sums of {registers} registers per thread, and at most {MAX_THREAD_ACCUMULATORS} fit; "
        "use a smaller tile or more warps",
    )


def normalises(op: Op) -> bool:
    """Whether a matmul normalises its rows itself (``x_scale``)."""
    return find_tensor(op, "x_scale") is not None


def compute_token_bytes(rows: int, k: int, gains: bool) -> int:
    """A slot of so many rows of tokens of a stage k deep, and of the gains of its k behind them."""
    return -(-(rows + gains) * k * 2 // _SWIZZLED_BYTES) * _SWIZZLED_BYTES


def count_normalising_registers(rows: int, columns: int, k: int, warpgroups: int) -> tuple[int, int]:
    """Of a thread, for a tile of so many rows and columns of products, stages k deep, whose rows it normalises.

    Returns:
        Those of sums and of tokens, two panels twice if a stage is of pairs, with as many for what makes the latter;
        how many fit.
    """
    each, at_once = 128 * warpgroups, PANEL if k // PANEL % 2 else 2 * PANEL
    return rows * columns // each + 2 * rows * at_once // each, MAX_ACCUMULATORS[warpgroups] + _OPERAND_REGISTERS[
        warpgroups
    ]


def can_normalise(tile: MatmulTile, sums: int) -> bool:
    """Whether a launch has registers to normalise rows in a tile of so many matrices, where rows are tokens."""
    warpgroups = max(1, tile.num_warps // 4)
    if tile.swap_ab or warpgroups not in MAX_ACCUMULATORS:
        return False
    registers, most = count_normalising_registers(tile.m, tile.n * sums, tile.k, warpgroups)
    return registers <= most


def can_prescale(dtype: DType) -> bool:
    """Whether rows may be scaled before they are divided, since a product that overflows has an operand as large."""
    return dtype is not fp16


def may_normalise(m: int, dtype: DType, *widths: int) -> bool:
    """Whether the first of some matmuls over m tokens, whose reductions have these widths, may normalise its rows.

    Up to 16 tokens all are in tiles of few weight rows then, which take panels of k. With more each tile scales rows as
    it multiplies them, by pairs of elements.
    """
    if m <= SKINNY_TOKENS:
        return can_prescale(dtype) and all(width % PANEL == 0 for width in widths)
    halves = dtype.on_tensor_cores and dtype.itemsize == 2
    return halves and can_prescale(dtype) and widths[0] % PANEL == 0


def compute_share(columns: int, parts: int) -> int:
    """Columns of products of a tile that each of its parts adds and finishes, in steps of 8; the last may have 8 fewer.

    0 where a part would have none, and for a tile of one part.
    """
    return -(-columns // (_STEP * parts)) * _STEP if 1 < parts <= columns // _STEP else 0
