"""Kernels of loops as ops of a graph: grid, access maps and FLOPs are derived from the loops, nothing is declared.

    loops = circular_buffer(library.layer_norm(columns=4096), "row", stages=2)
    norm = as_op("norm", loops, {"x": x, "y": y, "weight": weight, "bias": bias})

A tile of the op is a block of the kernel. A tensor of the graph may have fewer dimensions than the kernel's, with
adjacent ones merged: (m, 4096) for (m, 16, 256). It is then viewed in the kernel's shape without moving data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

import numpy as np

from interlace.core.arguments import check_sequence
from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import DTypeError, PipelineError
from interlace.core.rounding import round_to
from interlace.graph.access import Access, Span
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import STATE, SYNC
from interlace.kernels.base import Kernel
from interlace.kernels.bodies import Array, Params, Reference, Regions
from interlace.loops.cuda.compiled import CompiledKernel, KernelLaunch, compile_kernel, emit_proved_kernel
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import LoopKernel, MemorySpace
from interlace.loops.ir.text import print_kernel
from interlace.loops.meaning.arithmetic import Floats
from interlace.loops.meaning.interpret import interpret_block
from interlace.loops.ops.flops import count_block_flops
from interlace.loops.ops.megakernel_loops import MegakernelLoops
from interlace.loops.ops.regions import find_touched_spans
from interlace.loops.ops.views import View, find_views
from interlace.loops.rules.check import check_sizes
from interlace.loops.rules.limits import check_range


def as_op(
    name: str,
    kernel: LoopKernel,
    tensors: Mapping[str, Tensor],
    *,
    sizes: Mapping[str, int] | None = None,
    warp_specialised: bool = False,
    weights: Sequence[str] = (),
    device: DeviceSpec = DEFAULT_GPU,
) -> Op:
    """Apply ``kernel``, a source with marked tiles, to tensors of a graph.

    Args:
        name: name of the op.
        tensors: graph tensor for each global tensor of the kernel, by its name in the kernel.
        sizes: run-time extents that do not follow from the tensors' shapes.
        warp_specialised: form of the rewrite if the op is a launch of its own.
        weights: inputs that TMA loads and nothing writes from launch to launch. The megakernel loads them before the
            previous launch has ended. Without weights it loads, after that launch, inputs that no earlier op writes.
        device: device whose shared memory the layout must fit.

    Raises:
        PipelineError: a tensor or an extent is missing, ambiguous, too large or does not fit, a rule of the
            rewrite or the emitter is broken, or TMA loads no tile from a weight.
        SharedMemoryError: it does not fit into a block's shared memory.
        DTypeError: a tensor has another dtype than the kernel's.
        ShapeError: a grid without tiles.
        HazardError: the rewrite has a hazard; see ``proof.prove``.
    """
    emit_proved_kernel(kernel, device, warp_specialised, items=True)
    views, known = _find_views(name, kernel, tensors, dict(sizes or {}))
    check_sizes(kernel, known)
    check_range(kernel, known)
    spans = find_touched_spans(kernel, known)
    untouched = sorted(views.keys() - spans.keys())
    if untouched:
        raise PipelineError(f"op {name!r}: with extents {known} no block touches {untouched}; leave them out")
    weights = check_sequence(weights, str, f"op {name!r}", "weights")
    body = _Body(kernel, warp_specialised, weights, device, known, views, spans)
    accesses = {arg: (tensors[arg], _merge_spans(name, tensors[arg], views[arg], spans[arg])) for arg in spans}
    written = {t.name for t in kernel.tensors if t.is_written}
    joined = MegakernelLoops(kernel, weights, device, known, views)
    joined.check_weights(name)
    return Kernel(
        body.name, Reference(body.reference, needs_coords=True), cuda=body.launch, megakernel=joined, make=body.make
    ).make_op(
        name,
        tuple(evaluate(loop.stop, known) for loop in split_block_loops(kernel)[0]) or (1,),
        {arg: access for arg, access in accesses.items() if arg not in written},
        {arg: access for arg, access in accesses.items() if arg in written},
        params={**known, "warp-specialised": warp_specialised},
        flops=count_block_flops(kernel, known),
    )


def _find_views(
    name: str, kernel: LoopKernel, tensors: Mapping[str, Tensor], known: dict[str, int]
) -> tuple[dict[str, View], dict[str, int]]:
    """Return the kernel's view of each tensor, and all run-time extents."""
    waiting = [t for t in kernel.tensors if t.memory is MemorySpace.GLOBAL]
    for declared in waiting:
        if declared.name not in tensors:
            raise PipelineError(f"op {name!r}: kernel {kernel.name!r} takes a tensor {declared.name!r}; pass one")
        tensor = tensors[declared.name]
        if tensor.dtype != declared.dtype:
            raise DTypeError(
                f"op {name!r}: {tensor} is given for {declared.name!r}, which is {declared.dtype}; "
                "convert it, or build the kernel for its dtype"
            )
    views: dict[str, View] = {}
    while waiting:  # the extents of one tensor may determine the view of another
        fits = {t.name: find_views(t.shape, tensors[t.name].shape, known) for t in waiting}
        settled = next((arg for arg, ways in fits.items() if len(ways) == 1), None)
        if settled is None:
            arg, ways = min(fits.items(), key=lambda fit: len(fit[1]))
            why = f"in {len(ways)} ways; pass extents in sizes=" if ways else "in no way; give it the kernel's shape"
            raise PipelineError(
                f"op {name!r}: {tensors[arg]} can be seen as {arg!r} of kernel {kernel.name!r}, "
                f"of {len(kernel.find_tensor(arg).shape)} dimensions under extents {known}, {why}"
            )
        ((views[settled], known),) = fits[settled]
        waiting = [t for t in waiting if t.name != settled]
    unknown = [symbol for symbol in kernel.symbols if symbol not in known]
    if unknown:
        raise PipelineError(f"op {name!r}: no tensor's shape tells the extents {unknown}; pass them in sizes=")
    return views, known


def _merge_spans(name: str, tensor: Tensor, view: View, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    merged = view.merge(spans)
    if merged is None:
        raise PipelineError(
            f"op {name!r}: what a block touches is no box of {tensor}, whose dimensions are merged ones of the "
            f"kernel's {view.shape}; give it the kernel's shape, or let blocks take the merged dimensions whole"
        )
    return merged


@dataclass(frozen=True)
class _Body:
    """The body that executors run.

    Attributes:
        sizes: run-time extents.
        views, spans: view of each global tensor, and the span of it that a block touches.
    """

    kernel: LoopKernel
    warp_specialised: bool
    weights: tuple[str, ...]
    device: DeviceSpec
    sizes: dict[str, int]
    views: dict[str, View]
    spans: dict[str, tuple[Span, ...]]

    @property
    def name(self) -> str:
        """Name of the kernel, with a digest of everything that must be equal in a plan that is read back."""
        told = print_kernel(self.kernel), self.kernel.rings, self.warp_specialised, self.weights, self.sizes, self.views
        return f"{self.kernel.name}-{sha256(repr(told).encode()).hexdigest()[:8]}"

    def make(self, name: str, tensors: Mapping[str, Tensor], params: Params) -> Op:
        """Return the op of the same loops and extents on these tensors; its params hold nothing that the body lacks."""
        return as_op(
            name,
            self.kernel,
            tensors,
            sizes=self.sizes,
            warp_specialised=self.warp_specialised,
            weights=self.weights,
            device=self.device,
        )

    def reference(
        self, acc: Array | None, regions: Regions, params: Params, tile: tuple[int, ...]
    ) -> Mapping[str, Array]:
        """Run one block with the interpreter, in fp32."""
        memory: dict[str, Floats] = {}
        origins = {}
        for arg, spans in self.spans.items():
            one = np.array([tile]), np.array([0]), np.array([1])
            (lo,), (hi,) = Access(arg, arg, spans).compute_bounds(self.views[arg].shape, *one)
            origins[arg], shape = tuple(lo.tolist()), tuple((hi - lo).tolist())
            if arg in regions:
                memory[arg] = round_to(
                    regions[arg].reshape(shape).astype(np.float32), self.kernel.find_tensor(arg).dtype
                )
            else:
                memory[arg] = np.full(shape, np.nan, np.float32)
        loops, _ = split_block_loops(self.kernel)
        at = {loop.var: c for loop, c in zip(loops, tile, strict=False)}  # a kernel without loops has the one tile (0,)
        interpret_block(self.kernel, self.sizes | at, memory, origins)
        written = {arg: memory[arg].astype(np.float64) for arg in self.spans if self.kernel.find_tensor(arg).is_written}
        return {arg: values.reshape(self.views[arg].merge_shape(values.shape)) for arg, values in written.items()}

    def launch(self, op: Op, tensors: Mapping[str, Any], sync: Any, programs: int) -> _Launch:
        """Return a launch of ``programs`` items."""
        return _Launch(self, tensors, sync, programs)


@dataclass(frozen=True)
class _Launch:
    """Some items of an op, one thread block each."""

    body: _Body
    tensors: Mapping[str, Any]
    sync: Any
    programs: int

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream."""
        self._bound_launch(stream)

    def compile(self) -> CompiledKernel:
        """Compile; this needs no device."""
        return _compile(self.body.kernel, self.body.device, self.body.warp_specialised)

    def load(self) -> None:
        """Load for the current device."""
        self._bound_launch  # noqa: B018

    @cached_property
    def _bound_launch(self) -> KernelLaunch:
        seen = {arg: tensor.view(self.body.views[arg].shape) for arg, tensor in self.tensors.items()}
        return self.compile().bind_items(seen, self.body.sizes, self.programs, _pack_sync(self.sync))


@lru_cache(maxsize=256)
def _compile(kernel: LoopKernel, device: DeviceSpec, warp_specialised: bool) -> CompiledKernel:
    return compile_kernel(kernel, device, warp_specialised=warp_specialised, items=True)


def _pack_sync(sync: Any) -> bytes:
    """The ``Sync`` that executors hand to Triton bodies, as the struct that CUDA C++ takes."""
    values = {name: getattr(sync, name) for name, _ in STATE}
    if not sync.WAITS.value:
        values["semaphores"] = None
    if not sync.TRACE.value:
        values["trace"] = None
    return SYNC.pack(
        **values,
        timeout_ns=sync.TIMEOUT_NS.value,
        jitter_ns=sync.JITTER_NS.value,
        first=sync.first,
        programs=sync.programs,
    )
