"""Shared memory as cells: one cell per slot of a tile and per barrier, and the cells that share bytes.

Worked example, ``s`` of 3 slots at bytes 0, 256 and 512, ``u`` of 300 bytes at 0 while ``s`` is dead, and two barriers:

    cell 0, 1, 2    s    bytes 0 .. 255, 256 .. 511, 512 .. 767
    cell 3          u    bytes 0 .. 299, those of cells 0 and 1
    cell 4, 5       s_full
"""

from __future__ import annotations

from itertools import permutations, product

from interlace.core.errors import UnknownHazard
from interlace.loops.ir.smem import SharedLayout
from interlace.loops.ir.statements import AllocBarrier, LoopKernel
from interlace.loops.ir.traverse import walk


class Cells:
    """The cells of a kernel with a shared-memory layout.

    Attributes:
        shared: for each cell, the cells of other tiles and barriers that overlap its bytes.
        first_barrier: index of the first barrier; all later cells are barriers too.
    """

    def __init__(self, kernel: LoopKernel, layout: SharedLayout) -> None:
        arrays = {s.name for s in walk(kernel.body) if isinstance(s, AllocBarrier)}
        sizes = {t.name: t.tile_bytes for t in kernel.tensors if t.name not in arrays}
        tiles = [p for p in layout.placements if p.name in sizes]
        barriers = [p for p in layout.placements if p.name in arrays]
        self._first: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._names: list[tuple[str, int]] = []
        spans: list[tuple[int, int]] = []
        for p in (*tiles, *barriers):
            self._first[p.name], self._slots[p.name] = len(spans), p.slots
            for slot in range(p.slots):
                begin = p.offset_bytes + slot * p.slot_bytes
                self._names.append((p.name, slot))
                spans.append((begin, begin + sizes.get(p.name, p.slot_bytes)))
        self.first_barrier = sum(p.slots for p in tiles)
        shared: list[list[int]] = [[] for _ in spans]
        for p, q in permutations((*tiles, *barriers), 2):
            if p.offset_bytes < q.offset_bytes + q.size_bytes and q.offset_bytes < p.offset_bytes + p.size_bytes:
                for i, j in product(self.find_array(p.name), self.find_array(q.name)):
                    if spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]:
                        shared[i].append(j)
        self.shared = tuple(map(tuple, shared))

    @property
    def count(self) -> int:
        """Number of cells."""
        return len(self._names)

    def find_cell(self, name: str, slot: int) -> int:
        """Return the cell of a slot.

        Raises:
            UnknownHazard: nothing of this name lies in shared memory, or it does not have that many slots.
        """
        if name not in self._first:
            raise UnknownHazard(f"nothing called {name!r} lies in shared memory; declare it, or name what is there")
        if not 0 <= slot < self._slots[name]:
            last = self._slots[name] - 1
            raise UnknownHazard(f"slot {slot} of {name!r} does not exist; use 0 to {last}")
        return self._first[name] + slot

    def find_array(self, name: str) -> range:
        """Return all cells of a tile or an array of barriers; raises as ``find_cell`` does."""
        first = self.find_cell(name, 0)
        return range(first, first + self._slots[name])

    def find_name(self, cell: int) -> tuple[str, int]:
        """Return the tile or barrier of a cell, and the slot."""
        return self._names[cell]

    def label(self, cell: int) -> str:
        """Return the label of a cell for messages."""
        name, slot = self._names[cell]
        return f"{name}{{{slot}}}"

    def is_barrier(self, cell: int) -> bool:
        """Return True if a cell is a barrier, not a slot of a tile."""
        return cell >= self.first_barrier
