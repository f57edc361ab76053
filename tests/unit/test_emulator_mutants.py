"""Broken rewrites of random kernels: of those that the proof accepts none goes wrong on the emulator."""

from __future__ import annotations

import pytest

from ..emulator.build import MISSING
from ..emulator.mutants import Mutant, find_wrong, mutants
from ..emulator.search import draw_kernel
from ..thorough import some

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: Mutants of each kernel.
EACH = 4


def _split_mutants(numbers: range) -> tuple[list[Mutant], list[Mutant]]:
    """Mutants that the proof accepts, and those that it refuses."""
    every = [m for number in numbers if (found := draw_kernel(number)) is not None for m in mutants(found, EACH)]
    verdicts = [(mutant, mutant.verdict()) for mutant in every]
    return [m for m, v in verdicts if v == "accepted"], [m for m, v in verdicts if v not in ("accepted", "not proved")]


@pytest.mark.parametrize("numbers", some([range(6), range(6, 26)], lambda numbers: numbers.start == 0), ids=str)
def test_what_the_proof_accepts_is_right_and_most_of_what_it_refuses_goes_wrong(numbers: range) -> None:
    """Else one of the two looks at nothing; what was dropped may not have been needed at these extents."""
    accepted, refused = _split_mutants(numbers)
    assert (2 * len(accepted) >= len(numbers), 2 * len(refused) >= 3 * len(numbers)) == (True, True)
    assert [f"{m.what}\n{troubles[0]}" for m, troubles in find_wrong(accepted)] == []
    assert len(find_wrong(refused, seeds=1)) > 0.8 * len(refused)
