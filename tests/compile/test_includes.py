"""Sources that include headers of the package: errors name the right file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.core")

import interlace as il
from interlace import csrc
from interlace.core.errors import CompileError
from interlace.csrc import include
from interlace.kernels.cuda import cache
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.cuda.ptx import PTX


def error_of(text: str, preamble: str = PTX) -> str:
    with pytest.raises(CompileError) as caught:
        compile_source(text, "mine", il.H200.architecture, preamble=preamble)
    return str(caught.value)


def test_an_error_after_an_include_names_the_line_of_its_own_source() -> None:
    text = include("ring/bulk_load.cuh") + 'extern "C" __global__ void mine(float* x) {\n  x[0] = y;\n}\n'
    assert 'mine.cu(4): error: identifier "y" is undefined' in error_of(text)


def test_an_error_in_a_header_names_the_header_and_its_line() -> None:
    """Semaphores need the tables that a launch generates."""
    told = error_of(include("semaphore.cuh") + 'extern "C" __global__ void mine() {}\n')
    [(line, name)] = set(re.findall(r'semaphore\.cuh\((\d+)\): error: identifier "(WaitRow)" is undefined', told))
    assert name in (Path(csrc.__file__).parent / "semaphore.cuh").read_text().split("\n")[int(line) - 1]


def test_a_file_that_is_no_header_of_the_package_is_the_compilers_error() -> None:
    assert "mine.cu(2): " in error_of('\n#include "nowhere.cuh"\nextern "C" __global__ void mine() {}\n')


def test_what_is_cached_depends_on_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    text, keys = 'extern "C" __global__ void mine() {}\n', []
    key_of, read = cache.compute_key, csrc.read_header
    monkeypatch.setattr(cache, "compute_key", lambda **told: keys.append(key_of(**told)) or keys[-1])
    compile_source(text, "mine", preamble=PTX)
    compile_source(text, "mine", preamble=PTX)
    monkeypatch.setattr(csrc, "read_header", lambda name: f"{read(name)}// another\n")
    compile_source(text, "mine", preamble=PTX)
    assert keys[0] == keys[1] != keys[2]
