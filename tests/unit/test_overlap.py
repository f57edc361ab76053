"""Pieces of memory that share bytes are found, whatever their order and however they nest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import PipelineError
from interlace.core.overlap import MemoryRange, find_overlap
from interlace.loops import library
from interlace.loops.cuda.compiled import _check_disjoint

from ..draws import EXAMPLES


def share(a: MemoryRange, b: MemoryRange) -> bool:
    return (a.is_written or b.is_written) and bool({*range(a.begin, a.end)} & {*range(b.begin, b.end)})


def test_neighbours_do_not_share_and_one_byte_is_enough() -> None:
    x, behind, over = MemoryRange(64, 32, False, "x"), MemoryRange(96, 8, True, "y"), MemoryRange(95, 8, True, "y")
    assert find_overlap([x, behind]) is None
    assert find_overlap([over, x]) == (x, over)
    assert find_overlap([x, x._replace(name="z")]) is None
    assert find_overlap([over, x, MemoryRange(64, 1, False, "z")]) == (x, over)


def test_what_has_no_memory_shares_none() -> None:
    empty = MemoryRange(64, 0, True, "empty")
    assert (
        find_overlap(
            [MemoryRange(0, 8, True, "a"), MemoryRange(0, 8, True, "b"), empty, MemoryRange(60, 8, True, "around")]
        )
        is None
    )


@EXAMPLES
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6), st.booleans()), max_size=6))
def test_a_clash_is_found_exactly_if_two_pieces_share_a_byte(found: list[tuple[int, int, bool]]) -> None:
    pieces = [MemoryRange(*piece, str(n)) for n, piece in enumerate(found)]
    pairs = [{a, b} for n, a in enumerate(pieces) for b in pieces[:n] if share(a, b)]
    answer = find_overlap(pieces)
    assert (answer is None) == (not pairs)
    assert answer is None or set(answer) in pairs


def test_a_kernel_of_loops_refuses_an_output_in_the_memory_of_an_input() -> None:
    @dataclass(frozen=True)
    class At:
        address: int
        shape: tuple[int, ...] = (8, 64)

        def data_ptr(self) -> int:
            return self.address

    kernel = library.copy_2d()
    _check_disjoint(kernel, {"x": At(4096), "y": At(4096 + 8 * 64 * 4)})  # type: ignore[dict-item]
    with pytest.raises(PipelineError, match="tensors 'x' and 'y' share memory, and one is an output"):
        _check_disjoint(kernel, {"x": At(4096), "y": At(4096 + 4 * 64 * 4)})  # type: ignore[dict-item]
