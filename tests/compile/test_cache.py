"""Cache of compiled kernels: a second process compiles nothing, and damaged entries are compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interlace.core.errors import CompileError
from interlace.kernels.cuda import cache, compiler

TEXT = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


@pytest.fixture
def compiled_sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the CUDA sources that were compiled and not found in the cache."""
    texts: list[str] = []
    original = compiler._compile

    def record_source(whole: str, *rest: str) -> object:
        texts.append(whole)
        return original(whole, *rest)

    monkeypatch.setattr(compiler, "_compile", record_source)
    return texts


def compile_it(text: str = TEXT, architecture: str = "sm_90a", preamble: str = "") -> compiler.CudaBinary:
    return compiler.compile_source(text, "twice", architecture, preamble=preamble)


def test_a_second_process_compiles_nothing(folder: Path, compiled_sources: list[str]) -> None:
    code = f"""
from interlace.kernels.cuda import compiler
binary = compiler.compile_source({TEXT!r}, "twice", "sm_90a", preamble="")
print(binary.resources, binary.function, binary.cubin[:4])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=True)
    binary = compile_it()
    assert compiled_sources == []
    assert done.stdout == f"{binary.resources} twice {binary.cubin[:4]!r}\n"
    assert binary.resources.registers > 0


def test_text_preamble_and_architecture_are_told_apart(folder: Path, compiled_sources: list[str]) -> None:
    first = compile_it()
    assert compile_it() == first
    assert len(compiled_sources) == 1
    compile_it(TEXT.replace("2", "3"))
    compile_it(preamble="// another\n")
    compile_it(architecture="sm_80")
    assert len(compiled_sources) == len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("what", ["nvrtc", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc"])
def test_another_version_of_what_compiles_finds_nothing_of_this_one(
    folder: Path, compiled_sources: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    first, versions = compile_it(), compiler._find_versions()
    assert what in versions
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_find_versions", lambda: versions | {what: "99.0"})
        assert compile_it() == first
        assert len(compiled_sources) == len(list(folder.iterdir())) == 2
    assert (compile_it(), len(compiled_sources)) == (first, 2)


def test_an_entry_whose_times_cannot_be_set_is_read(
    folder: Path, compiled_sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache may be on a read-only file system."""
    first = compile_it()

    def raise_permission_error(file: int) -> None:
        raise PermissionError(file)

    monkeypatch.setattr(os, "utime", raise_permission_error)
    assert (compile_it(), len(compiled_sources)) == (first, 1)


@pytest.mark.parametrize("keep", [0, 20, 100, -1])
def test_a_damaged_entry_is_ignored_and_written_anew(folder: Path, compiled_sources: list[str], keep: int) -> None:
    first = compile_it()
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    assert compile_it() == first
    assert len(compiled_sources) == 2
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("where", ["checksum", "facts", "binary"])
def test_an_entry_of_which_one_bit_is_another_is_compiled_anew(
    folder: Path, compiled_sources: list[str], where: str
) -> None:
    first = compile_it()
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    registers = b'"registers": '
    number = whole.index(registers) + len(registers)
    at = {"checksum": 0, "facts": number, "binary": len(whole) - len(first.cubin) // 2}[where]
    entry.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert cache.lookup(entry.name) is None
    assert (compile_it(), len(compiled_sources)) == (first, 2)
    assert entry.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("function", "ptx", "registers") for value in (None, [], -1)),
        *({"warnings": value} for value in (None, "line", [3])),
    ],
    ids=str,
)
def test_a_whole_entry_of_another_form_is_compiled_anew(
    folder: Path, compiled_sources: list[str], change: dict[str, object]
) -> None:
    first = compile_it()
    (entry,) = folder.iterdir()
    facts, cubin = cache.lookup(entry.name)  # type: ignore[misc]
    for changed in ((facts | change, cubin), ({}, cubin), (facts, b"no cubin")):
        cache.store(entry.name, *changed)
        assert compile_it() == first
    assert len(compiled_sources) == 4


def test_a_cache_that_others_may_write_is_not_read(folder: Path, compiled_sources: list[str]) -> None:
    first = compile_it()
    folder.chmod(0o770)
    with pytest.warns(RuntimeWarning, match="others may write it"):
        assert (compile_it(), len(compiled_sources)) == (first, 2)


def test_what_does_not_compile_is_not_kept_and_a_folder_that_cannot_be_written_keeps_nothing(
    folder: Path, compiled_sources: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match=r"twice\.cu\(1\): error"):
            compile_it(TEXT.replace("x[", "y["))
    assert len(compiled_sources) == 2
    folder.write_text("no folder")
    assert compile_it() == compile_it()
    assert len(compiled_sources) == 4


def test_a_pipe_in_place_of_an_entry_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for a writer."""
    first = compile_it()
    (entry,) = folder.iterdir()
    entry.unlink()
    os.mkfifo(entry)
    assert compile_it() == first
    assert entry.is_fifo()


def test_what_was_used_longest_ago_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    for second, key in enumerate("abc"):
        cache.store(key, {"n": second}, b"binary")
        os.utime(folder / key, (second, second))
        if key == "b":
            assert cache.lookup("a") == ({"n": 0}, b"binary")  # counts as a use
    assert sorted(entry.name for entry in folder.iterdir()) == ["a", "c"]
