"""The rules of copies between global memory and tiles.

TMA requires (CUDA driver API, cuTensorMapEncodeTiled) at most 256 elements per side, box rows of a multiple of 16
bytes, and base address and strides that are multiples of 16 bytes. Worked example: a 100 x 60 fp32 tensor has rows of
240 bytes, which is valid; 100 x 61 has 244, which no tensor map can describe. Kernels may use three of TMA's five
dimensions, and only its 128-byte swizzle.
"""

from __future__ import annotations

from math import prod

from interlace.core.errors import BoxError, PipelineError
from interlace.loops.ir.index import Const, find_divisor
from interlace.loops.ir.statements import Copy, Load, LoopKernel, LoopTensor, MemorySpace, Store
from interlace.loops.ir.values import Box

#: Maximum side of a TMA box in elements, and maximum number of dimensions.
TMA_SIDE = 256
TMA_RANK = 3
#: Alignment of rows, strides and addresses of asynchronous copies, in bytes.
COPY_BYTES = 16
#: Maximum number of bytes that one phase of an mbarrier can count.
TRANSACTION_BYTES = (1 << 20) - 1


def check_load(kernel: LoopKernel, load: Load) -> None:
    """Check a load.

    Raises:
        BoxError: an asynchronous copy of a box or a tensor that the hardware does not support.
        PipelineError: any other broken rule.
    """
    source, target = kernel.find_tensor(load.src.tensor), kernel.find_tensor(load.dst.tensor)
    if source.memory is not MemorySpace.GLOBAL or target.memory is MemorySpace.GLOBAL:
        raise PipelineError(f"load of {target.name!r}: a load goes from global memory to a tile")
    if target.memory is MemorySpace.REGISTER and load.by is not Copy.PLAIN:
        raise PipelineError(f"load of {target.name!r}: {load.by.value} writes shared memory; use Copy.PLAIN")
    _check_copy(kernel, load, load.src, load.dst)


def check_store(kernel: LoopKernel, store: Store) -> None:
    """Check a store.

    Raises:
        BoxError: an asynchronous copy of a box or a tensor that the hardware does not support.
        PipelineError: any other broken rule.
    """
    source, target = kernel.find_tensor(store.src.tensor), kernel.find_tensor(store.dst.tensor)
    if target.memory is not MemorySpace.GLOBAL or source.memory is MemorySpace.GLOBAL:
        raise PipelineError(f"store of {source.name!r}: a store goes from a tile to global memory")
    if store.by is Copy.CP_ASYNC or (store.by is Copy.TMA and source.memory is not MemorySpace.SHARED):
        raise PipelineError(f"store of {source.name!r}: store plainly, or from shared memory by TMA")
    if not target.is_written:
        raise PipelineError(f"store to {target.name!r}, which is an input; declare it as an output")
    _check_copy(kernel, store, store.dst, store.src)


def _check_copy(kernel: LoopKernel, stmt: Load | Store, outside: Box, inside: Box) -> None:
    if _squeeze(outside.shape) != _squeeze(inside.shape):
        raise PipelineError(
            f"copy between {outside.tensor!r} and {inside.tensor!r}: boxes of {outside.shape} and {inside.shape} differ"
        )
    if stmt.by is Copy.PLAIN:
        return
    tensor, tile = kernel.find_tensor(outside.tensor), kernel.find_tensor(inside.tensor)
    if tensor.dtype != tile.dtype:
        raise BoxError(
            f"{stmt.by.value} copies bytes: {tensor.name!r} is {tensor.dtype}, {tile.name!r} is {tile.dtype}; "
            "use one dtype or Copy.PLAIN"
        )
    if inside.shape != tile.tile:
        raise BoxError(f"{stmt.by.value} fills whole tiles: {tile.name!r} has {tile.tile}, its box {inside.shape}")
    row_bytes = outside.shape[-1] * tensor.dtype.itemsize
    if row_bytes % COPY_BYTES:
        raise BoxError(
            f"{stmt.by.value} box of {tensor.name!r}: inner bytes are {row_bytes}; use a multiple of {COPY_BYTES}"
        )
    if tensor.align_bytes % COPY_BYTES:
        raise BoxError(
            f"{stmt.by.value} box of {tensor.name!r}: base is aligned to {tensor.align_bytes} bytes; "
            f"{COPY_BYTES} are needed"
        )
    check_strides(tensor, tuple(n.value if isinstance(n, Const) else 0 for n in tensor.shape), stmt.by)
    if stmt.by is Copy.TMA:
        _check_tma(tensor, tile, outside)
    elif outside.shape[-1] != inside.shape[-1]:
        raise BoxError(
            f"cp.async box of {tensor.name!r}: its rows have {outside.shape[-1]} elements, those of {tile.name!r} "
            f"{inside.shape[-1]}; give the tile the box's last dimension"
        )
    elif find_divisor(outside.origin[-1]) * tensor.dtype.itemsize % COPY_BYTES:
        raise BoxError(
            f"cp.async box of {tensor.name!r}: its inner origin is no known multiple of {COPY_BYTES} bytes; "
            "use multiples of the tile, or TMA"
        )


def check_strides(tensor: LoopTensor, shape: tuple[int, ...], by: Copy) -> None:
    """Check the strides of a tensor of ``shape`` that is copied asynchronously; unknown extents count as 0 and pass.

    Raises:
        BoxError: a stride is not a multiple of 16 bytes.
    """
    for axis in range(1, len(shape)):
        stride_bytes = prod(shape[axis:]) * tensor.dtype.itemsize
        if stride_bytes % COPY_BYTES:
            raise BoxError(
                f"{by.value} box of {tensor.name!r}: stride of dimension {axis - 1} is {stride_bytes} bytes; "
                f"pad it to a multiple of {COPY_BYTES}"
            )


def _check_tma(tensor: LoopTensor, tile: LoopTensor, box: Box) -> None:
    if len(box.shape) > TMA_RANK:
        raise BoxError(f"TMA box of {tensor.name!r} has {len(box.shape)} dimensions; use up to {TMA_RANK}")
    if max(box.shape) > TMA_SIDE:
        raise BoxError(
            f"TMA box of {tensor.name!r}: a side of {box.shape} is over {TMA_SIDE} elements; "
            "split the tile, or view a long row as several short ones"
        )
    if tile.tile_bytes > TRANSACTION_BYTES:
        raise BoxError(
            f"TMA box of {tensor.name!r}: {tile.tile_bytes} bytes; a barrier counts up to {TRANSACTION_BYTES}"
        )


def _squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
