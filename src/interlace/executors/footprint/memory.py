"""Memory in which items of an op run one at a time: each tensor between guard zones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from interlace.executors.footprint.items import KINDS, Item
from interlace.executors.gpu import torch_dtype
from interlace.executors.options import Options
from interlace.executors.serial import SerialExecutor
from interlace.executors.table import Table, by_op
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.planner.build import Choices, build

PLACES = ("before the start", "behind the end", "inside")  # of a tensor


@dataclass(frozen=True, eq=False)
class Block:
    """A tensor's memory with the guard zones around it.

    Attributes:
        memory: ``pad`` elements of guard, the tensor, ``pad`` elements of guard, all in the tensor's dtype.
    """

    tensor: Tensor
    memory: Any
    pad: int

    def parts(self, memory: Any) -> tuple[Any, Any, Any]:
        """Memory that is laid out as this block, by PLACES: two guards, and the tensor in its shape."""
        before, inside, behind = memory.split([self.pad, prod(self.tensor.shape), self.pad])
        return before, behind, inside.view(self.tensor.shape)


class Memory(SerialExecutor):
    """Runs chosen items of one op one at a time, on guarded memory."""

    def __init__(self, items: Sequence[Item], device: str, seed: int) -> None:
        self.items, op = items, items[0].op
        names = tuple(dict.fromkeys(a.tensor for a in op.accesses))
        tensors = tuple(items[0].graph.tensor(name) for name in names)
        # All memory is filled here, so an op that writes a part of a tensor is whole by itself.
        super().__init__(build(Graph(op.name, tensors, (op,), names, ()), Choices(1)), Options(device))
        self._seed = seed
        self.blocks = tuple(self._block(t) for t in tensors)
        inside = {block.tensor.name: block.parts(block.memory)[-1] for block in self.blocks}
        self._arguments_of_op = self._arguments(op, inside)

    def _block(self, tensor: Tensor) -> Block:
        size, dtype = prod(tensor.shape), torch_dtype(self._torch, tensor.dtype.name)
        pad = min(-(-size // 4096) * 4096, 1 << 22)  # a multiple of 4096 keeps the tensor aligned
        return Block(tensor, self._torch.empty(size + 2 * pad, dtype=dtype, device=self._device), pad)

    def _lower(self) -> Table:
        table = by_op(self.plan, self._chunked())  # row t is tile t
        rows = table.items[[item.tile for item in self.items]]
        rows["k_lo"] = [item.k_lo for item in self.items]
        rows["k_hi"] = [item.k_hi for item in self.items]
        return replace(table, items=rows)

    def inputs(self, kind: str) -> list[Any]:
        """Values of a kind for each block, guards included."""
        torch, device = self._torch, self._device
        generator = torch.Generator(device).manual_seed(self._seed)

        def values(memory: Any) -> Any:
            size, sign = (torch.rand(len(memory), generator=generator, device=device) for _ in range(2))
            return KINDS[kind](size + 0.5, torch.where(sign < 0.5, -1.0, 1.0)).to(memory.dtype)

        return [values(block.memory) for block in self.blocks]

    def execute(self, row: int) -> None:
        """Run one item on the memory as it is."""
        current = self._torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        with current:
            self._items_launch(0, self._arguments_of_op, self._sync(0, row, 1), 1).run()

    def tables(self) -> list[Any]:
        """The tensors of the protocol, which every item touches besides its own."""
        return [value for value in self._sync(0, 0, 1) if hasattr(value, "data_ptr")]
