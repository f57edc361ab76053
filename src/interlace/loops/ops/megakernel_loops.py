"""An op of loops in the megakernel: its tiles come through the ring that all ops of the launch share.

Loops without a matmul run on any number of consumer warpgroups, whatever threads they were written for; where no matmul
of the launch decides, on two if they were written for 256 threads or more. Loops with a matmul need as many as they
were written for. The proof covers the warp-specialised form for these threads (``proof``), and
that all roles of the launch take the same stages (``rewrite/shared``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType
from interlace.core.errors import PipelineError, PlanError
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.bodies import MegakernelTile, check_alignment
from interlace.kernels.cuda import launcher
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelLoads, Tiling, Warpgroups
from interlace.loops.cuda.indices import mangle
from interlace.loops.cuda.roles import PREAMBLE, RoleSource, build_operands, emit_roles
from interlace.loops.cuda.rules import list_tensor_maps
from interlace.loops.ir.statements import WARPGROUP, Copy, Load, LoopKernel, Matmul, MemorySpace
from interlace.loops.ir.traverse import walk
from interlace.loops.ops.views import View
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite.shared import POST_WAIT, PRE_WAIT, mark_loads, share_ring

_Result = TypeVar("_Result")
#: Maximum number of consumer warpgroups of a launch.
_MOST_WARPGROUPS = 2


@dataclass(frozen=True)
class MegakernelLoops:
    """A kernel of loops that builds its ops' parts of the megakernel.

    Attributes:
        kernel: source kernel.
        weights: global tensors that nothing writes from launch to launch.
        device: device whose shared memory is used.
        sizes: run-time extents.
        views: view of each global tensor.
    """

    kernel: LoopKernel
    weights: tuple[str, ...]
    device: DeviceSpec
    sizes: Mapping[str, int]
    views: Mapping[str, View]

    @property
    def is_proved(self) -> bool:
        """True: what loops touch is derived from them and compared with the access maps of their ops."""
        return True

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""
        return _MOST_WARPGROUPS

    def check_weights(self, op: str) -> None:
        """Raise PipelineError unless TMA loads tiles from all weights."""
        for name in self.weights:
            if name not in self._ring_tensors:
                raise PipelineError(
                    f"op {op!r} has {name!r} among its weights, and TMA loads no tile from it, but from "
                    f"{sorted(self._ring_tensors)}; leave it out, or load its tile by TMA"
                )

    @property
    def _ring_tensors(self) -> frozenset[str]:
        """Global tensors that come through the ring."""
        loads = (s for s in walk(self.kernel.body) if isinstance(s, Load) and s.by is Copy.TMA)
        return frozenset(s.src.tensor for s in loads)

    def build_megakernel_body(self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
        """Load tiles of weights before the waits (of ``read_only`` arguments if there are no weights); see
        ``MegakernelBodyFactory``.

        Raises:
            PlanError: loops that the launch cannot take, or not in so many warpgroups.
        """
        kernel = self.kernel
        fixed = frozenset(self.weights)
        ahead = fixed or self._ring_tensors & read_only
        _convert_errors(op, lambda: share_ring(kernel, ahead))

        def tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
            roles = _convert_errors(op, lambda: _emit_roles(kernel, ahead, bool(fixed), warpgroups, self.device))
            scratch_bytes = -(-roles.scratch_bytes // warpgroups // 16) * 16
            slots = roles.slots.bytes
            return MegakernelTile(
                roles.type,
                roles.functions,
                slots[PRE_WAIT],
                slots[POST_WAIT],
                scratch_bytes,
                0,
                roles.register_elements,
            )

        products = any(isinstance(s, Matmul) for s in walk(kernel.body))
        wanted = min(_MOST_WARPGROUPS, max(1, kernel.threads // WARPGROUP))
        required = (lambda op: wanted) if products else None
        warpgroups = Warpgroups(_MOST_WARPGROUPS, prefers_two=wanted > 1, count_required=required)
        return MegakernelBody(
            PREAMBLE,
            build_operands(kernel),
            self._pack,
            Tiling(tile, warpgroups),
            MegakernelLoads(tuple(sorted(ahead - fixed)), prefetchable_inputs=self.weights),
        )

    def _pack(self, op: Op, given: Mapping[str, Any], dtype: DType) -> bytes:
        """Pack the operands of an op.

        Raises:
            ShapeError: a tensor that does not begin where its loads need it.
        """
        kernel = self.kernel
        values: dict[str, Any] = {f"{symbol}_given": self.sizes[symbol] for symbol in kernel.symbols}
        for tensor in kernel.tensors:
            if tensor.memory is not MemorySpace.GLOBAL:
                continue
            check_alignment(op.name, tensor.name, given[tensor.name].data_ptr(), tensor.align_bytes, "its loops want")
            values[mangle(tensor.name)] = given[tensor.name]
        for spec in list_tensor_maps(kernel):
            shape = self.views[spec.tensor].shape
            strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
            values[spec.name] = launcher.encode_tensor_map(
                given[spec.tensor].data_ptr(),
                shape,
                strides,
                spec.box,
                kernel.find_tensor(spec.tensor).dtype,
                is_swizzled=spec.swizzled,
            ).descriptor
        return build_operands(kernel).pack(**values)


@lru_cache(maxsize=256)
def _emit_roles(
    kernel: LoopKernel, pre_wait: frozenset[str], read_only: bool, warpgroups: int, device: DeviceSpec
) -> RoleSource:
    """Return the CUDA source for this many warpgroups, proved; ``read_only``: no launch writes what is loaded ahead."""
    kernel = mark_loads(replace(kernel, threads=warpgroups * WARPGROUP))
    prove(kernel, warp_specialised=bool(kernel.rings))
    return emit_roles(share_ring(kernel, pre_wait), device, read_only=read_only)


def _convert_errors(op: Op, make: Callable[[], _Result]) -> _Result:
    try:
        return make()
    except PipelineError as error:
        raise PlanError(
            f"op {op.name!r} cannot stand in one launch with others: {error}. Executors of a launch for each op, such "
            "as semaphore_streams, run it as it is"
        ) from error
