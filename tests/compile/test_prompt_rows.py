"""The kernels for rows of a prompt, compiled for sm_90: whole vectors, and nothing in local memory."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from interlace.executors.launch import TritonLaunch
from interlace.kernels import prompt_rows
from interlace.kernels.prompt_rows import PromptRows, add_and_normalize


class Recorder:
    """Stand-in for a kernel that records its launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launch = kernel, None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def record(*arguments: object, **options: int) -> None:
            self.launch = TritonLaunch(self.kernel, grid, arguments, options)

        return record


def compile_launch(name: str, call: Any) -> str:
    """Return the PTX of a kernel as a call launches it."""
    recorder = Recorder(getattr(prompt_rows, name))
    with patch.object(prompt_rows, name, recorder):
        call()
    assert recorder.launch is not None
    return recorder.launch.compile_ahead().asm["ptx"]


def empty(*extents: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(extents, dtype=dtype, device="meta")


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("has_norms", [False, True])
def test_heads_are_stored_by_vectors(d: int, is_paged: bool, has_norms: bool) -> None:
    pages = (empty(4, 16, dtype=torch.int32), 64) if is_paged else ()
    rows = PromptRows(empty(1024, d, dtype=torch.float32), *(empty(1, dtype=torch.int64) for _ in range(3)), *pages)
    caches = (empty(100, 8, 64, d),) * 2 if is_paged else (empty(4, 8, 1024, d),) * 2
    heads, norms = (empty(256, n, d) for n in (32, 8, 8)), (empty(d), empty(d)) if has_norms else None
    rotating = compile_launch("_rotate_and_append", lambda: rows.rotate_and_append(*heads, norms, 1e-5, caches, True))
    assert rotating.count("st.global.v4") == rotating.count("st.global") == 8
    reading = compile_launch("_read_cached", lambda: rows.read_cached(caches, 1280))
    assert reading.count("st.global.v4") == reading.count("st.global") == 4
    assert "local" not in rotating + reading


@pytest.mark.parametrize("columns", [576, 2048, 8192])
def test_norms_read_each_element_once(columns: int) -> None:
    x, weight = empty(64, columns), empty(columns)
    ptx = compile_launch("_add_and_normalize", lambda: add_and_normalize(x, x, weight, 1e-5))
    assert ptx.count("ld.global.v4") == ptx.count("ld.global") == 3 * 2  # two vectors of each tensor in a thread
    assert ptx.count("st.global.v4") == ptx.count("st.global") == 2 * 2
    assert "local" not in ptx
