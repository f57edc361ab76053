"""Compiled kernels on the device: loading, tensor maps, launches. Uses the CUDA driver, so any array library works.

    copy = LoadedKernel(binary, shared_bytes=65_536)
    copy.launch((132, 1, 1), 128, (x, y, n), stream)

A kernel parameter is a pointer if the argument has ``data_ptr()``, ``long long`` if it is an int, ``float`` if it is
a float, ``const __grid_constant__ TensorMap`` if it is a tensor map, and a struct of the same size if it is bytes.
The caller creates the context (PyTorch does so with its first tensor) and keeps tensors alive while kernels and
tensor maps use them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, Protocol

from interlace.core.dtypes import DType
from interlace.core.errors import DriverError, NoDeviceError
from interlace.kernels.cuda.compiler import CudaBinary

_PANEL_BYTES = 128  # of a swizzled row


class DeviceArray(Protocol):
    """An object with an address on the device, such as a PyTorch tensor."""

    def data_ptr(self) -> int:
        """Return the address of the first element."""


@dataclass(frozen=True)
class TensorMap:
    """128 bytes that describe to the copy engine a tensor's layout in memory and the boxes that it copies."""

    descriptor: bytes


Argument = DeviceArray | TensorMap | bytes | int | float


def encode_tensor_map(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    dtype: DType,
    *,
    steps: Sequence[int] = (),
    is_swizzled: bool = False,
    l2_fetch_bytes: int = 256,
) -> TensorMap:
    """Encode a tensor map.

    Args:
        address: address of the first element; a multiple of 16.
        shape: elements along each dimension, outermost first, 1 to 5 dimensions.
        strides: elements from one index to the next along each dimension; the last is 1.
        box: elements of one copy along each dimension, 1 to 256.
        dtype: dtype of the elements.
        steps: distance of copied elements along each dimension, 1 to 8; the last is 1. All are 1 by default.
        is_swizzled: True to permute 16-byte pieces of 128-byte rows, as matrix products read them.
        l2_fetch_bytes: granularity of L2 fetches, 64, 128 or 256 bytes.

    Raises:
        DriverError: numbers that the driver rejects.
    """
    steps = tuple(steps) or (1,) * len(shape)
    return _encode_cached(address, tuple(shape), tuple(strides), tuple(box), dtype, steps, is_swizzled, l2_fetch_bytes)


@lru_cache(1 << 12)  # most tensors of a launch are weights, whose addresses do not change
def _encode_cached(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    dtype: DType,
    steps: tuple[int, ...],
    is_swizzled: bool,
    l2_fetch_bytes: int,
) -> TensorMap:
    driver = _load_driver()
    kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.tensor_map}")
    swizzle = driver.CUtensorMapSwizzle
    outer = [stride * dtype.itemsize for stride in reversed(strides[:-1])]
    map_ = _unwrap(
        driver.cuTensorMapEncodeTiled(
            kind,
            len(shape),
            address,
            [driver.cuuint64_t(extent) for extent in reversed(shape)],
            [driver.cuuint64_t(stride) for stride in outer or (16,)],  # the driver needs one stride at least
            [driver.cuuint32_t((n - 1) * step + 1) for n, step in zip(reversed(box), reversed(steps), strict=True)],
            [driver.cuuint32_t(step) for step in reversed(steps)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle.CU_TENSOR_MAP_SWIZZLE_128B if is_swizzled else swizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
            getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{l2_fetch_bytes}B"),
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"tensor map of shape {shape}, strides {strides}, box {box}, steps {steps} at address {address:#x}",
    )
    return TensorMap(ctypes.string_at(map_.getPtr(), 128))


def encode_row_boxes(value: Any, rows: int, dtype: DType) -> bytes:
    """Encode the tensor map of boxes of rows of a contiguous tensor, viewed as matrices of its last two dimensions.

    A box has ``rows`` rows of a panel of 128 bytes, with the 128-byte swizzle; coordinates are element, row and matrix,
    and zeros follow the last element of a row. Where a row is several whole panels, a box has all of them, one after
    the other; coordinates are element of a panel, row, panel and matrix.

    Raises:
        DriverError: numbers that the driver rejects.
    """
    *leading, n, d = value.shape
    panel = _PANEL_BYTES // dtype.itemsize
    panels, rest = divmod(d, panel)
    box: tuple[int, ...] = (1, rows, panel)
    shape: tuple[int, ...] = (prod(leading), n, d)
    strides: tuple[int, ...] = (n * d, d, 1)
    if panels > 1 and not rest:
        box, shape, strides = (1, panels, rows, panel), (shape[0], panels, n, panel), (n * d, panel, d, 1)
    address = value.data_ptr()
    return encode_tensor_map(
        address, shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_PANEL_BYTES
    ).descriptor


def get_current_context() -> int:
    """Return the handle of the current context, 0 if there is none."""
    return int(_unwrap(_load_driver().cuCtxGetCurrent(), "the current context"))


class LoadedKernel:
    """A compiled kernel, loaded into the current context.

    Args:
        binary: binary to load.
        shared_bytes: dynamic shared memory of a block in bytes.

    Raises:
        DriverError: a binary or an amount of shared memory that the driver rejects.
        NoDeviceError: no driver, or no current context.
    """

    def __init__(self, binary: CudaBinary, shared_bytes: int = 0) -> None:
        driver = _load_driver()
        if not get_current_context():
            raise NoDeviceError(f"kernel {binary.name} has no context to load into; make a tensor on the device first")
        self.binary = binary
        self.shared_bytes = shared_bytes
        self._module = _unwrap(driver.cuModuleLoadData(binary.cubin), f"loading kernel {binary.name}")
        self._function = _unwrap(driver.cuModuleGetFunction(self._module, binary.function.encode()), binary.name)
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        what = f"{shared_bytes} bytes of shared memory for kernel {binary.name}"
        _unwrap(driver.cuFuncSetAttribute(self._function, limit, shared_bytes), what)

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
        stream: int,
        *,
        dependent: bool = False,
        cluster: int = 1,
    ) -> None:
        """Enqueue one launch.

        Args:
            grid: blocks along x, y, z.
            threads: threads per block.
            arguments: arguments of the kernel, in order; see the module.
            stream: handle of the CUDA stream.
            dependent: True if it may start while the previous kernel drains (programmatic dependent launch).
            cluster: blocks along x of a cluster, which divide the grid.

        Raises:
            DriverError: a launch that the driver rejects.
        """
        self.prepare(grid, threads, arguments, dependent=dependent, cluster=cluster)(stream)

    def prepare(
        self,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
        *,
        dependent: bool = False,
        cluster: int = 1,
    ) -> Callable[[int], None]:
        """Return a function that enqueues such a launch on a stream, any number of times.

        It keeps the bytes and addresses of arguments. One thread at a time may call it. Arguments and errors are those
        of ``launch``.
        """
        values = [_pack_parameter(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        driver, function, at = _load_driver(), self._function, ctypes.addressof(addresses)
        config = self._build_config(grid, threads, dependent, cluster)
        what = f"launching kernel {self.binary.name}, grid {grid}, {threads} threads"
        kept = values, addresses  # the driver may read them as long as the function exists

        def enqueue(stream: int, _: object = kept) -> None:
            config.hStream = stream
            _unwrap(driver.cuLaunchKernelEx(config, function, at, 0), what)

        return enqueue

    def count_resident_clusters(self, threads: int, cluster: int) -> int:
        """Return how many clusters of ``cluster`` blocks can be resident on the device at once, without other work."""
        config = self._build_config((cluster, 1, 1), threads, False, cluster)
        answer = _load_driver().cuOccupancyMaxActiveClusters(self._function, config)
        return int(_unwrap(answer, f"clusters of {cluster} blocks of kernel {self.binary.name}"))

    def _build_config(self, grid: tuple[int, int, int], threads: int, dependent: bool, cluster: int) -> Any:
        driver = _load_driver()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        attributes = []
        if dependent:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[-1].value.programmaticStreamSerializationAllowed = 1
        if cluster > 1:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = attributes[-1].value.clusterDim
            dimension.x, dimension.y, dimension.z = cluster, 1, 1
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        return config


def load_kernel(binary: CudaBinary, shared_bytes: int = 0) -> LoadedKernel:
    """Return a kernel loaded into the current context, once for all callers.

    Raises:
        DriverError, NoDeviceError: see ``LoadedKernel``.
    """
    return _load_cached(binary, shared_bytes, get_current_context())


@cache
def _load_cached(binary: CudaBinary, shared_bytes: int, context: int) -> LoadedKernel:
    return LoadedKernel(binary, shared_bytes)


def _pack_parameter(argument: Argument) -> Any:
    """Return a kernel parameter as ctypes data; the driver copies it at launch."""
    if isinstance(argument, TensorMap | bytes):
        packed = argument if isinstance(argument, bytes) else argument.descriptor
        return (ctypes.c_ubyte * len(packed)).from_buffer_copy(packed)
    if isinstance(argument, int):
        return ctypes.c_longlong(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_void_p(argument.data_ptr())


@cache
def _load_driver() -> Any:
    """Return the CUDA driver's bindings, with the driver initialised."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoDeviceError("cuda.bindings is not installed; pip install -e '.[gpu]'") from error
    try:
        _unwrap(driver.cuInit(0), "starting the driver")
    except RuntimeError as error:  # the bindings look for the library at the first call
        raise NoDeviceError("there is no CUDA driver here; launch on a machine with a GPU") from error
    return driver


def _unwrap(answer: tuple[Any, ...], what: str) -> Any:
    """Return the result of a driver call without its status; raise DriverError on failure."""
    status, *values = answer
    if int(status):
        raise DriverError(f"{what}: the CUDA driver answers {status.name}")
    return values[0] if values else None
