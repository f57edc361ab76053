"""For how many rows a launch is built, so that few launches serve every number of tokens."""

from __future__ import annotations

from interlace.kernels.base import power_of_two

_LEAST = 16
_STEP = 128  # from which on steps are as wide, or an eighth of the power of two below


def launched_rows(rows: int) -> int:
    """16, 32, 64, 128, then steps of 128, or of an eighth of the power of two below if that is more.

    Up to 2,048 rows there are 19 of them, then 8 for each doubling; a launch has at most twice its rows, from 1,024 on
    at most an eighth more.
    """
    if rows <= _STEP:
        return max(_LEAST, power_of_two(rows))
    step = max(_STEP, power_of_two(rows) // 16)
    return -(-rows // step) * step
