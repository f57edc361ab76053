"""The benchmark of data to evict first: its loads carry the policy, and its fit finds the value that is planted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import interlace as il
from interlace.kernels.lint import count_instructions

from ..benchmarks import load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**load_script("eviction"))


def compile_pass(script: Any, policy: str) -> str:
    """Return the PTX of the counted pass."""
    signature = {**dict.fromkeys(("data", "fresh", "out"), "*i32"), "chunks": "i32", "steps": "i32"}
    constants = {"POLICY": policy, "WORDS": script.CHUNK_WORDS}
    source = ASTSource(script.counted_pass, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    return str(triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 8}).asm["ptx"])


def test_only_loads_of_the_footprint_carry_the_policy(script: Any) -> None:
    hinted, plain = (compile_pass(script, policy) for policy in script.POLICIES)
    assert count_instructions(hinted, r"createpolicy\.fractional\.L2::evict_first") > 0
    assert count_instructions(hinted, r"ld\.global\.L1::evict_first\.L2::cache_hint") == count_instructions(
        hinted, r"ld\.global\.cg\.b32"
    )
    assert count_instructions(plain, "evict_first") == 0


def test_the_fit_finds_the_bytes_that_a_model_keeps(script: Any) -> None:
    for nbytes in (2 << 20, 5 << 20):
        device = replace(il.H200, l2=replace(il.H200.l2, evict_first_bytes=nbytes))
        chunks = 6, 12, 24
        rows = [{"policy": "evict_first", "chunks": n, "kept": script.predict_kept(device, n)} for n in chunks]
        errors = script.fit_kept(il.H200, [*rows, {"policy": "default", "chunks": 6, "kept": 1.0}])
        assert min(errors, key=errors.get) == nbytes
