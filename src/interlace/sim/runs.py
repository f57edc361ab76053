"""Boxes: a stream of accesses to cache lines, each to a 2-D piece of a tensor.

A box is ``rows`` runs of lines. A 128 x 64 tile of bf16 at tile (0, 3) of a matrix with 8192 columns that
begins at line 0, with lines of 128 bytes:

    one row of the tile     64 x 2 bytes = 1 line           lines_per_row     1
    one row of the matrix   8192 x 2 bytes = 128 lines      row_stride_lines  128
    the tile                begins 3 x 64 x 2 bytes in      first_line        3
                            lines 3, 131, 259, ...          rows              128

Number the lines of all tensors together and densely: memory grows with the largest number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import StreamError
from interlace.sim.stream import Ints

# A line and a flag fit into 32 bits, and one value stays free.
MOST_LINES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Boxes:
    """Accesses in order, one box per entry; row by row, each row from its first line on.

    Attributes:
        first_line: where each box begins.
        rows: its number of runs.
        row_stride_lines: from the first line of a run to that of the next.
        lines_per_row: the length of a run.
        write: whether the box is written (whole lines, nothing read from DRAM) or read.
    """

    first_line: Ints
    rows: Ints
    row_stride_lines: Ints
    lines_per_row: Ints
    write: NDArray[np.bool_]

    def __post_init__(self) -> None:
        columns = (self.first_line, self.rows, self.row_stride_lines, self.lines_per_row)
        if any(c.ndim != 1 or c.dtype != np.int64 for c in columns) or self.write.dtype != np.bool_:
            raise StreamError("boxes need 1-D int64 columns, and bool for write; convert with astype")
        if len({len(c) for c in (*columns, self.write)}) != 1:
            raise StreamError(f"columns of boxes have lengths {[len(c) for c in columns]}, write {len(self.write)}")
        for name in ("first_line", "rows", "row_stride_lines", "lines_per_row"):
            column = getattr(self, name)
            if column.min(initial=0) < 0:
                raise StreamError(f"box {int(column.argmin())} has {name} {column.min()}; use 0 or more")
        if self.end_line > MOST_LINES:
            raise StreamError(f"boxes reach line {self.end_line - 1}, the limit is {MOST_LINES - 1}; number densely")

    @staticmethod
    def runs(first_line: Ints, lines: Ints, write: NDArray[np.bool_]) -> Boxes:
        """Boxes of one row each: ``lines`` lines from ``first_line`` on."""
        return Boxes(first_line, np.ones_like(lines), np.zeros_like(lines), lines, write)

    @property
    def lines(self) -> Ints:
        """Lines accessed by each box."""
        return self.rows * self.lines_per_row

    @property
    def end_line(self) -> int:
        """One more than the largest line number."""
        last_row = self.first_line + (self.rows - 1) * self.row_stride_lines
        return int((last_row + self.lines_per_row).max(initial=0, where=self.lines > 0))
