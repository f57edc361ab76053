"""Tiles of a matmul that a launch can run: bytes of shared memory and registers of its bodies, as formulas.

A stage of the Triton body's software pipeline holds one chunk of every operand. In bf16, a gated 128 x 128 x 64 tile
takes 64 * (128 + 2 * 128) * 2 = 48 KiB per stage, so 227 KiB hold four; in fp32 a chunk of 32 takes as much.
"""

from __future__ import annotations

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, fp32
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import require
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul.tile import MatmulTile

#: Name of the kernel.
NAME = "matmul"
#: Argument that is x again: the whole rows whose squares are summed if a matmul normalises them itself.
X_WHOLE = "x_whole"
#: Upper bound of the tokens for tiles of few weight rows (skinny GEMM, ``csrc/ops/matmul/skinny.cuh``).
SKINNY_TOKENS = 16
#: Upper bound of the float32 sums of one thread, which leaves registers for operands and addresses.
MAX_THREAD_ACCUMULATORS = 128
#: The same bound in the megakernel, by consumer warpgroups of a block: threads have 255 registers with one, 224 with
#: two, 152 with three.
MAX_ACCUMULATORS = {1: 168, 2: 168, 3: 96}
MAX_WARPGROUPS = max(MAX_ACCUMULATORS)
#: Rows of the tensor core's first operand.
TALL = 64
_SWIZZLED_BYTES = 1024  # alignment of slots in bytes
_OPERAND_REGISTERS = {1: 24, 2: 24, 3: 16}  # registers for operands, in tiles with the most sums
_STEP = 8  # granularity of the columns of products


def find_tensor(op: Op, argument: str) -> str | None:
    """Return the tensor of an argument of a matmul, None if the op has no such argument."""
    return next((a.tensor for a in op.accesses if a.arg == argument), None)


def count_weights(op: Op) -> int:
    """Return the number of weight matrices that multiply the same activations: two if there is a gate."""
    return 1 if find_tensor(op, "gate") is None else 2


def get_width_step(op: Op) -> int:
    """Return the step of tile widths in weight rows."""
    return 8 if find_tensor(op, "squares") is None else int(op.param("SQUARED"))


def select_matmuls(graph: Graph) -> tuple[Op, ...]:
    """Return the matmuls of a graph, in program order."""
    return tuple(op for op in graph.ops if op.kernel == NAME)


def count_partial_elements(op: Op) -> int:
    """Return the float32 elements of one split-K partial of a tile."""
    return int(op.param("BM")) * int(op.param("BN")) * count_weights(op)


def compute_triton_smem_bytes(op: Op, itemsize: int) -> int:
    """Return the bytes of shared memory of all stages of the software pipeline."""
    bm, bn, k, stages = (int(op.param(name)) for name in ("BM", "BN", "BK", "STAGES"))
    return stages * k * (bm + count_weights(op) * bn) * itemsize


def check_powers(op: Op) -> None:
    """Raise ShapeError unless an op's extents (from 16 on) and warps are powers of two, as Triton requires."""
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
    """Raise ShapeError unless the op's stages fit shared memory and its sums fit the registers."""
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
    """Return True if a matmul normalises its rows itself (``x_scale``)."""
    return find_tensor(op, "x_scale") is not None


def compute_token_bytes(rows: int, k: int, gains: bool) -> int:
    """Return the bytes of a slot of ``rows`` token rows of a stage of depth k, followed by the gains of its k."""
    return -(-(rows + gains) * k * 2 // _SWIZZLED_BYTES) * _SWIZZLED_BYTES


def count_normalising_registers(rows: int, columns: int, k: int, warpgroups: int) -> tuple[int, int]:
    """Count registers of a thread for a tile of ``rows`` x ``columns`` products that normalises its rows.

    Args:
        k: depth of a stage.

    Returns:
        Registers of the sums, of double-buffered tokens (two panels if a stage has an even number of them, else one),
        and as many for computing the latter; registers that fit.
    """
    each, at_once = 128 * warpgroups, PANEL if k // PANEL % 2 else 2 * PANEL
    return rows * columns // each + 2 * rows * at_once // each, MAX_ACCUMULATORS[warpgroups] + _OPERAND_REGISTERS[
        warpgroups
    ]


def can_normalise(tile: MatmulTile, sums: int) -> bool:
    """Return True if registers suffice to normalise rows in a tile with tokens as rows and ``sums`` weight matrices."""
    warpgroups = max(1, tile.num_warps // 4)
    if tile.swap_ab or warpgroups not in MAX_ACCUMULATORS:
        return False
    registers, most = count_normalising_registers(tile.m, tile.n * sums, tile.k, warpgroups)
    return registers <= most


def can_prescale(dtype: DType) -> bool:
    """Return True if rows may be scaled before division: a product overflows only if an operand is as large."""
    return dtype.exponent_bits >= fp32.exponent_bits


def may_normalise(m: int, dtype: DType, *widths: int) -> bool:
    """Return True if the first of some matmuls over m tokens may normalise its rows.

    Up to 16 tokens, all matmuls then use tiles of few weight rows, which process panels of k. With more tokens, each
    tile scales rows while it multiplies them, by pairs of elements.

    Args:
        widths: reduction extents of the matmuls.
    """
    if m <= SKINNY_TOKENS:
        return can_prescale(dtype) and all(width % PANEL == 0 for width in widths)
    halves = dtype.on_tensor_cores and dtype.itemsize == 2
    return halves and can_prescale(dtype) and widths[0] % PANEL == 0


def compute_share(columns: int, parts: int) -> int:
    """Return the columns of a tile's products that each of its parts reduces and finishes, in steps of 8.

    The last parts may have 8 fewer. Returns 0 if a part would have none, and for a tile of one part.
    """
    return -(-columns // (_STEP * parts)) * _STEP if 1 < parts <= columns // _STEP else 0


def count_shared_elements(op: Op, parts: int) -> int:
    """Return the sums of a tile that each of its parts adds in a cooperative fix-up: of some columns, or of some rows.

    The last parts may have fewer, or none. Returns 0 for a tile of one part or of one share, and if shares were of rows
    that the tile normalises.
    """
    wide, tall = (int(op.param(name)) for name in (("BM", "BN") if op.param("SWAP") else ("BN", "BM")))
    if op.param("SWAP") or find_tensor(op, "scale") is None:
        return count_weights(op) * tall * compute_share(wide, min(parts, wide // _STEP))
    if count_weights(op) > 1 or normalises(op) or find_tensor(op, "x_squares") is not None:
        return 0
    rows = -(-_STEP // parts)  # of each 8
    return tall // _STEP * rows * (-(-wide // TALL) * TALL) if 1 < parts <= _STEP else 0


def is_skinny(op: Op) -> bool:
    """Return True if an op's tile has too few weight rows for ``wgmma``, so that it uses ``mma``."""
    params = op.parameters
    return bool(params["SWAP"]) and int(params["BN"]) < TALL


def count_loaded_rows(op: Op) -> int:
    """Return the rows of tokens that a tile loads: those of the tensor, in steps of 8, if the tile has more.

    A swap-AB tile of 64 weight rows loads all of its rows, because its panels are that far apart in shared memory.
    """
    params = op.parameters
    bm, m = int(params["BM"]), int(params["M"])
    if is_skinny(op):
        return min(bm, m)
    return bm if params["SWAP"] else min(bm, -(-m // _STEP) * _STEP)
