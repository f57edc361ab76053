"""The text of kernels before and after the rewrite, and their shared memory, as kept in tests/golden/loops.

``pytest tests/unit/test_loops_golden.py --update-golden`` writes the files; read the difference before you keep it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interlace.core.devices import H200
from interlace.loops.frontend.library import build_examples
from interlace.loops.ir.smem import lay_out
from interlace.loops.ir.text import print_kernel

GOLDEN = Path(__file__).parents[1] / "golden/loops"


@pytest.mark.parametrize("name", build_examples())
def test_the_printed_rewrite_is_the_golden_one(name: str, update_golden: bool) -> None:
    example = build_examples()[name]
    rewritten = example.rewrite()
    parts = print_kernel(example.kernel), print_kernel(rewritten), str(lay_out(rewritten, H200))
    text = "before\n\n{}\nafter\n\n{}\nshared memory\n\n{}".format(*parts)
    file = GOLDEN / f"{name}.txt"
    if update_golden:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text


def test_every_golden_file_has_its_kernel() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(build_examples())
