"""Numbers of rows that launches are built for, so that few launches serve every number of tokens.

A launch also accepts fewer rows than it is built for, and takes about as long as with all of them. If a launch for
fewer rows costs hardly less by the cost model of its tiling (``kernels/matmul/megakernel_cost``), the one for more rows
serves both. For example, an FFN of 4096-14336 with a gate is built for 64, 72, 96, 128, 144, 152, 168, 192, 208 and
256 rows, among others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from interlace.core.devices import DeviceSpec
from interlace.kernels.base import next_power_of_2
from interlace.kernels.matmul.megakernel_candidates import estimate_least_seconds
from interlace.workloads.ffn import FFNShape, ffn

_MIN_ROWS = 8
_STEP, _STEPS = 8, 16  # minimum step in rows; number of steps per power of two
_MIN_GAIN = (
    1.02  # minimum ratio of times to add a launch; the cost model ranks tilings of an FFN to about this accuracy
)


def choose_launch_rows(rows: int, shape: FFNShape, device: DeviceSpec) -> int:
    """Return the number of rows that an FFN's launch is built for: a power of two, or fewer rows if that pays.

    Between two powers of two, up to 15 candidates lie a sixteenth of the lower power apart, or 8 rows if that is more.
    Candidates that cost within 2 % of the next larger launch are skipped. So a launch is predicted to take at most 2 %
    longer than one for its rows rounded up to such a step.
    """
    top, shape = max(_MIN_ROWS, next_power_of_2(rows)), replace(shape, norm=None)  # a norm adds the same cost to each
    return min(built for built in _list_row_counts(top, shape, device) if built >= rows)


@lru_cache(1 << 12)
def _list_row_counts(top: int, shape: FFNShape, device: DeviceSpec) -> tuple[int, ...]:
    """Return the row counts to build for, from a power of two down to the next lower one, which is excluded."""
    if top == _MIN_ROWS:
        return (top,)
    found, least = [top], _estimate_seconds(top, shape, device)
    step = max(_STEP, top // 2 // _STEPS)
    for rows in range(top - step, top // 2, -step):
        seconds = _estimate_seconds(rows, shape, device)
        if seconds * _MIN_GAIN < least:
            found.append(rows)
            least = seconds
    return tuple(found)


def _estimate_seconds(rows: int, shape: FFNShape, device: DeviceSpec) -> float:
    """Return the seconds from one launch to the next, with one first load and one hand-off per matmul."""
    ops, each = ffn(rows, shape).ops, device.latencies
    return (each.launch_ns + len(ops) * (each.fill_ns + each.hand_off_ns)) * 1e-9 + estimate_least_seconds(ops, device)
