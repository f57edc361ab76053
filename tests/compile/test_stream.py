"""The stream of bulk loads, the baseline of memory-bound problems, compiles without a GPU."""

from __future__ import annotations

import interlace as il
from interlace.bench.stream import compile_stream
from interlace.kernels.lint import count_instructions


def test_the_stream_loads_in_bulk_computes_nothing_and_lets_the_next_one_begin() -> None:
    made = compile_stream(il.H200.architecture)
    assert (made.resources.spill_bytes, made.warnings) == (0, ())
    assert count_instructions(made.ptx, r"cp\.async\.bulk\.shared::cluster\.global") == 1
    assert count_instructions(made.ptx, r"\b(?:ld|st)\.global") == 0
    assert count_instructions(made.ptx, r"griddepcontrol\.launch_dependents") == 1
