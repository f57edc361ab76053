"""Compile kernels of loops and launch them: rewrite, prove, emit, compile, and bind tensors by name.

copy = compile_kernel(circular_buffer(copy_2d(), "s", stages=4))
copy.run({"x": x, "y": y}, {"m": 1000, "n": 2000}, stream)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Protocol

from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.dtypes import dtype
from interlace.core.errors import PipelineError
from interlace.core.overlap import MemoryRange, find_overlap
from interlace.kernels.cuda.compiler import CudaBinary, compile_source
from interlace.kernels.cuda.launcher import Argument, LoadedKernel, TensorMap, encode_tensor_map, get_current_context
from interlace.loops.cuda.emit import EmittedKernel, emit_kernel
from interlace.loops.cuda.preamble import PREAMBLE
from interlace.loops.cuda.rules import TensorMapSpec
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import LoopKernel, MemorySpace
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite.circular import lower
from interlace.loops.rules.check import check_sizes
from interlace.loops.rules.limits import check_range


class TensorLike(Protocol):
    """Interface of a PyTorch tensor that a launch needs."""

    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


@dataclass(frozen=True)
class KernelLaunch:
    """A launch with checked extents and encoded tensor maps; only the stream is missing."""

    loaded_kernel: LoadedKernel
    blocks: int
    threads: int
    arguments: tuple[Argument, ...]

    def __call__(self, stream: int) -> None:
        """Enqueue the kernel, unless its grid is empty."""
        if self.blocks:
            self.loaded_kernel.launch((self.blocks, 1, 1), self.threads, self.arguments, stream)


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel. Each CUDA context loads it at its first launch."""

    source: LoopKernel
    emitted_kernel: EmittedKernel
    binary: CudaBinary
    _contexts: dict[int, LoadedKernel] = field(default_factory=dict, repr=False, compare=False)

    @property
    def _loaded_kernel(self) -> LoadedKernel:
        context = get_current_context()
        if context not in self._contexts:
            self._contexts[context] = LoadedKernel(self.binary, self.emitted_kernel.layout.total_bytes)
        return self._contexts[context]

    def bind(self, tensors: Mapping[str, TensorLike], sizes: Mapping[str, int]) -> KernelLaunch:
        """Build the launch of the whole grid. Raises what ``build_arguments`` raises."""
        arguments = self.build_arguments(tensors, sizes)
        blocks = prod(max(evaluate(n, sizes), 0) for n in self.emitted_kernel.grid)
        return KernelLaunch(self._loaded_kernel, blocks, self.emitted_kernel.kernel.block_threads, arguments)

    def bind_items(
        self, tensors: Mapping[str, TensorLike], sizes: Mapping[str, int], blocks: int, sync: bytes
    ) -> KernelLaunch:
        """Build the launch of some items of a plan, one block per item, for a kernel compiled with ``items``.

        Raises what ``build_arguments`` raises.
        """
        arguments = (*self.build_arguments(tensors, sizes), sync)
        return KernelLaunch(self._loaded_kernel, blocks, self.emitted_kernel.kernel.block_threads, arguments)

    def build_arguments(self, tensors: Mapping[str, TensorLike], sizes: Mapping[str, int]) -> tuple[Argument, ...]:
        """Check extents and tensors, and encode tensor maps. The tensors must outlive the launches.

        Raises:
            PipelineError: a tensor is missing, has another shape or dtype, or is not contiguous or aligned; or an
                output shares memory with another tensor; or an extent is missing or negative, or an index too large.
            BoxError: TMA does not support the strides.
        """
        kernel = self.source
        check_sizes(kernel, sizes)
        check_range(kernel, {name: sizes[name] for name in kernel.symbols})
        arguments: list[Argument] = []
        for tensor in kernel.tensors:
            if tensor.memory is MemorySpace.GLOBAL:
                shape = tuple(evaluate(n, sizes) for n in tensor.shape)
                arguments.append(_check_tensor(kernel, tensor.name, tensors, shape))
        _check_disjoint(kernel, tensors)
        arguments += [_build_map(kernel, spec, tensors[spec.tensor]) for spec in self.emitted_kernel.maps]
        return (*arguments, *(sizes[name] for name in kernel.symbols))

    def run(self, tensors: Mapping[str, TensorLike], sizes: Mapping[str, int], stream: int = 0) -> None:
        """Launch the whole grid on ``stream``. Raises what ``bind`` raises."""
        self.bind(tensors, sizes)(stream)


def compile_kernel(
    kernel: LoopKernel, device: DeviceSpec = DEFAULT_GPU, *, warp_specialised: bool = False, items: bool = False
) -> CompiledKernel:
    """Rewrite a kernel of loops, prove that it has no hazard, emit and compile it.

    Args:
        items: True if each block runs an item of a plan.

    Raises:
        PipelineError, SharedMemoryError: see ``circular.lower`` and ``emit_kernel``.
        HazardError: see ``proof.prove``; it indicates a bug in the rewrite.
        CompileError, NoDeviceError: see ``compile_source``.
    """
    emitted = emit_proved_kernel(kernel, device, warp_specialised, items)
    binary = compile_source(emitted.cuda_source, kernel.name, device.architecture, preamble=PREAMBLE)
    return CompiledKernel(kernel, emitted, binary)


@lru_cache(maxsize=256)
def emit_proved_kernel(kernel: LoopKernel, device: DeviceSpec, warp_specialised: bool, items: bool) -> EmittedKernel:
    """Rewrite, prove and emit a kernel for ``compile_kernel``. Raises the same errors, except the compiler's."""
    emitted = emit_kernel(lower(kernel, warp_specialised=warp_specialised), device, items=items)
    prove(kernel, warp_specialised=warp_specialised)
    return emitted


def _check_tensor(
    kernel: LoopKernel, name: str, tensors: Mapping[str, TensorLike], shape: tuple[int, ...]
) -> TensorLike:
    declared = kernel.find_tensor(name)
    if name not in tensors:
        raise PipelineError(f"kernel {kernel.name!r}: tensor {name!r} is missing; pass one of shape {shape}")
    tensor = tensors[name]
    found = dtype(str(tensor.dtype).removeprefix("torch."))
    if tuple(tensor.shape) != shape or found != declared.dtype or not tensor.is_contiguous():
        raise PipelineError(
            f"kernel {kernel.name!r}: tensor {name!r} is {tuple(tensor.shape)} {found}, "
            f"contiguous: {tensor.is_contiguous()}; pass {shape} {declared.dtype}, contiguous"
        )
    if tensor.data_ptr() % declared.align_bytes:
        raise PipelineError(
            f"kernel {kernel.name!r}: tensor {name!r} begins at {tensor.data_ptr():#x}; "
            f"its address must be a multiple of {declared.align_bytes}"
        )
    return tensor


def _check_disjoint(kernel: LoopKernel, tensors: Mapping[str, TensorLike]) -> None:
    """Check that outputs share no memory with inputs or each other, since threads do not synchronise on overlaps."""
    found = find_overlap(
        MemoryRange(tensors[t.name].data_ptr(), prod(tensors[t.name].shape) * t.dtype.itemsize, t.is_written, t.name)
        for t in kernel.tensors
        if t.memory is MemorySpace.GLOBAL
    )
    if found is not None:
        first, second = found
        raise PipelineError(
            f"kernel {kernel.name!r}: tensors {first.name!r} and {second.name!r} share memory, and one is an output; "
            "give each its own"
        )


def _build_map(kernel: LoopKernel, spec: TensorMapSpec, tensor: TensorLike) -> TensorMap:
    """Encode the tensor map of a tensor.

    A tensor without elements has no address and is never loaded, so it gets an arbitrary valid map.
    """
    shape = list(tensor.shape) if 0 not in tensor.shape else list(spec.box)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return encode_tensor_map(
        tensor.data_ptr() or 4096,
        shape,
        strides,
        spec.box,
        kernel.find_tensor(spec.tensor).dtype,
        is_swizzled=spec.swizzled,
    )
