"""Launches of steps that processes compile for the cache on disk, before a decoder builds them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("cuda.core")

import interlace as il  # noqa: E402
from interlace.kernels.cuda import compiler  # noqa: E402
from interlace.nn.decoder import ahead  # noqa: E402
from interlace.nn.decoder.ahead import StepKey, compile_side_by_side, compile_step  # noqa: E402
from interlace.workloads import LLAMAS  # noqa: E402

SHAPE = replace(LLAMAS["llama3.2-1b"], layers=1, hidden=256, ffn=256, heads=4, kv_heads=1, vocabulary=512)
KEYS = [StepKey(SHAPE, 128, il.H200, il.bf16, 4, batch, 0) for batch in (1, 2)]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """Use an empty cache, and collect the processes that are started."""
    (tmp_path / "cache").mkdir(0o700)
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path / "cache"))
    found: list[subprocess.Popen[bytes]] = []

    def start(*given: object, **options: object) -> subprocess.Popen[bytes]:
        found.append(popen(*given, **options))
        return found[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(ahead.subprocess, "Popen", start)
    return found


def test_what_processes_have_compiled_is_not_compiled_again(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with compile_side_by_side(KEYS) as processes:
        for key in KEYS:
            processes.wait(key)
    assert [process.returncode for process in children] == [0, 0]
    monkeypatch.setattr(compiler, "_compile", None)  # whatever compiles now fails
    for key in KEYS:
        compile_step(key)
    with compile_side_by_side(KEYS) as processes:
        processes.wait(KEYS[0])
    assert len(children) == 2, "the cache has both"
    with compile_side_by_side([replace(KEYS[0], batch=3)]) as processes:
        processes.wait(replace(KEYS[0], batch=3))
    assert len(children) == 2, "a single launch is compiled where it is built"


def test_a_process_that_fails_leaves_the_launch_to_the_decoder(children: list[subprocess.Popen[bytes]]) -> None:
    unknown = [replace(key, shape=replace(SHAPE, head_dim=20)) for key in KEYS]
    with compile_side_by_side(unknown) as processes:
        for key in unknown:
            processes.wait(key)
    assert [process.returncode for process in children] == [1, 1]


def test_processes_end_with_the_block(children: list[subprocess.Popen[bytes]]) -> None:
    with compile_side_by_side(KEYS):
        while not children:
            pass
    assert {process.wait(10) for process in children} == {-9}
