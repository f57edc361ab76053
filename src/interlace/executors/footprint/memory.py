"""Memory in which items of an op run one at a time: each tensor between guard zones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from interlace.executors.device import DeviceExecutor
from interlace.executors.footprint.items import INPUT_KINDS, FootprintItem
from interlace.executors.gpu import find_spec, get_torch_dtype
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import SerialExecutor
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import ITEM
from interlace.kernels.base import get_kernel
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.megakernel.options import RunOptions
from interlace.megakernel.table import DeviceTables
from interlace.planner.build import build
from interlace.policies.schedule import Schedule

ZONE_LOCATIONS = ("before the start", "past the end", "inside")  # locations relative to a tensor


@dataclass(frozen=True, eq=False)
class GuardedBlock:
    """Memory of a tensor with guard zones around it.

    Attributes:
        tensor: the tensor.
        memory: ``pad`` elements of guard, the tensor, ``pad`` elements of guard, all in the tensor's dtype.
        pad: elements of one guard zone.
    """

    tensor: Tensor
    memory: Any
    pad: int

    def split_memory(self, memory: Any) -> tuple[Any, Any, Any]:
        """Split memory with the layout of this block, in the order of PLACES: two guards, and the shaped tensor."""
        before, inside, behind = memory.split([self.pad, prod(self.tensor.shape), self.pad])
        return before, behind, inside.view(self.tensor.shape)


class GuardedMemory(DeviceExecutor):
    """Selected items of one op, with guarded memory, in which they run one at a time."""

    def __init__(self, items: Sequence[FootprintItem], device: str, seed: int) -> None:
        self.items, op = items, items[0].op
        names = tuple(dict.fromkeys(a.tensor for a in op.accesses))
        tensors = tuple(items[0].graph.tensor(name) for name in names)
        # This class fills all memory, so an op that writes a part of a tensor is complete without others.
        super().__init__(build(Graph(op.name, tensors, (op,), names, ()), Schedule(1)), RunOptions(device))
        self._seed = seed
        self.blocks = tuple(self._allocate_block(t) for t in tensors)
        inside = {block.tensor.name: block.split_memory(block.memory)[-1] for block in self.blocks}
        self._arguments_of_op = self._build_arguments(op, inside)

    @abstractmethod
    def execute(self, row: int) -> None:
        """Run one item on the present contents of the memory."""

    def _select_rows(self, table: DeviceTables) -> DeviceTables:
        """Return the table of the selected items, in their order, from a table whose row t is tile t."""
        rows = table.items[[item.tile for item in self.items]]
        rows["k_lo"] = [item.k_lo for item in self.items]
        rows["k_hi"] = [item.k_hi for item in self.items]
        return replace(table, items=rows)

    def _allocate_block(self, tensor: Tensor) -> GuardedBlock:
        size, dtype = prod(tensor.shape), get_torch_dtype(self._torch, tensor.dtype.name)
        pad = min(-(-size // 4096) * 4096, 1 << 22)  # a multiple of 4096 keeps the tensor aligned
        return GuardedBlock(tensor, self._torch.empty(size + 2 * pad, dtype=dtype, device=self._device), pad)

    def make_inputs(self, kind: str) -> list[Any]:
        """Return values of a kind for each block, guards included."""
        torch, device = self._torch, self._device
        generator = torch.Generator(device).manual_seed(self._seed)

        def values(memory: Any) -> Any:
            size, sign = (torch.rand(len(memory), generator=generator, device=device) for _ in range(2))
            return INPUT_KINDS[kind](size + 0.5, torch.where(sign < 0.5, -1.0, 1.0)).to(memory.dtype)

        return [values(block.memory) for block in self.blocks]


class LaunchMemory(GuardedMemory, SerialExecutor):
    """Guarded memory whose items are launches of a body of Triton or of CUDA C++."""

    def _lower(self) -> DeviceTables:
        return self._select_rows(super()._lower())

    def execute(self, row: int) -> None:
        """Run one item on the present contents of the memory."""
        current = self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with current:
            self._build_items_launch(0, self._arguments_of_op, self._build_sync(0, row, 1), 1).run()

    def list_tables(self) -> list[Any]:
        """Return the tensors of the protocol, which every item touches in addition to its own."""
        return [value for value in self._build_sync(0, 0, 1) if hasattr(value, "data_ptr")]


class MegakernelMemory(GuardedMemory, MegakernelExecutor):
    """Guarded memory whose items are megakernel launches of one block, with a body that is CUDA source."""

    def _lower(self) -> DeviceTables:
        return self._select_rows(super()._lower())

    def execute(self, row: int) -> None:
        """Run one item on the present contents of the memory."""
        threads = (self.lowered.warpgroups + 1) * 128
        parameter = self.pack_parameter_for(self._operands_in_memory, self._items[row * ITEM.columns :], 1, 1)
        with self._torch.cuda.device(self._device):
            self.loaded_kernel.launch((1, 1, 1), threads, [parameter], self._torch.cuda.current_stream().cuda_stream)

    @cached_property
    def _operands_in_memory(self) -> Any:
        packed = bytearray(self.pack_operands((self._arguments_of_op,)))
        if self.composition.has_inline_operands:
            return bytes(packed)
        return self._torch.frombuffer(packed, dtype=self._torch.uint8).to(self._device)


def select_memories(op: Op, device: str) -> list[type[GuardedMemory]]:
    """Return, for each body that an op has on a device, the class that runs its items."""
    found: list[type[GuardedMemory]] = []
    text = isinstance(get_kernel(op).megakernel, (CudaBody, CudaVariants))
    if not text or SerialExecutor.find_body_kind(op) is not None:
        found.append(LaunchMemory)
    if text and (len(found) == 0 or find_spec(device).capability[0] == MegakernelExecutor.generation):
        found.append(MegakernelMemory)
    return found
