"""For how many rows a launch is built, so that few launches serve every number of tokens.

A launch takes fewer rows than it is built for, and about as long as with all of them. Where one for fewer rows costs
hardly less, by what its tiling is priced at (``kernels/matmul/walk_cost``), the one for more serves both. An FFN of
4096-14336 with a gate is built for 64, 72, 96, 128, 144, 152, 168, 192, 208 and 256 rows, among others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from interlace.core.devices import DeviceSpec
from interlace.kernels.base import power_of_two
from interlace.kernels.matmul.walk_ways import least_seconds
from interlace.workloads.ffn import FFNShape, ffn

_LEAST = 8
_STEP, _STEPS = 8, 16  # steps of rows are as wide, or a part of the power of two below if that is more
_SPARED = 1.02  # of the time; what tells tilings of an FFN apart is as exact (``walk_cost``)


def launched_rows(rows: int, shape: FFNShape, device: DeviceSpec) -> int:
    """Rows that the launch of an FFN over so many rows is built for: a power of two, or fewer where that pays.

    Between two powers of two there are up to 15 others, each a sixteenth of the lower one apart, or 8 rows if that is
    more, of which those are left out that cost within 2 % of the next. So a launch is predicted to take at most 2 %
    longer than one for its rows rounded up to such a step.
    """
    top, shape = max(_LEAST, power_of_two(rows)), replace(shape, norm=None)  # a norm costs as much in any of them
    return min(built for built in _built(top, shape, device) if built >= rows)


@lru_cache(1 << 12)
def _built(top: int, shape: FFNShape, device: DeviceSpec) -> tuple[int, ...]:
    """For how many rows launches are built, from a power of two down to the one below, which is left out."""
    if top == _LEAST:
        return (top,)
    found, least = [top], _seconds(top, shape, device)
    step = max(_STEP, top // 2 // _STEPS)
    for rows in range(top - step, top // 2, -step):
        seconds = _seconds(rows, shape, device)
        if seconds * _SPARED < least:
            found.append(rows)
            least = seconds
    return tuple(found)


def _seconds(rows: int, shape: FFNShape, device: DeviceSpec) -> float:
    """From one launch to the next, with a first load and a hand-over for each matmul."""
    ops, each = ffn(rows, shape).ops, device.latencies
    return (each.launch_ns + len(ops) * (each.fill_ns + each.hand_over_ns)) * 1e-9 + least_seconds(ops, device)
