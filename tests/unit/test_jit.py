"""Compiled functions stay on disk, and whatever their files hold, they are compiled again and right."""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import config

from interlace.core import store
from interlace.core.jit import cached_njit

SOURCE = """
from interlace.core.jit import cached_njit

@cached_njit
def twice(x):
    return x + x
"""


class Planted:
    """Object that raises, or runs code, if it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (os.environ["INTERLACE_CACHE_DIR"] + "/unpickled",)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path))
    store._warn.cache_clear()
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where numba keeps what it compiles if the environment says so."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "numba"))
    return tmp_path / "numba"


def load(path: Path) -> Any:
    """The function of a module, as another process has it."""
    spec = importlib.util.spec_from_file_location("module", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.twice


def found_twice(path: Path) -> bool:
    """Call the function, which must be right; returns whether its compiled form was found on disk."""
    twice = load(path)
    assert twice(4) == 8
    return sum(twice.stats.cache_hits.values()) == 1


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))


def test_what_was_compiled_is_found_beside_the_module(module: Path) -> None:
    assert [found_twice(module) for _ in range(2)] == [False, True]
    assert [path.suffix for path in files(module.parent / "__pycache__")] == [".nbc", ".nbi"]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:10],
        lambda whole: whole[:-1],
        lambda whole: whole + b"0",
        lambda whole: b"\xff" * len(whole),
        lambda whole: whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
        lambda whole: pickle.dumps(Planted()),
        lambda whole: pickle.dumps(numba.__version__) + pickle.dumps(3),
        lambda whole: pickle.dumps(None),
    ],
    ids=["empty", "cut", "short", "long", "garbage", "bit", "planted", "another", "none"],
)
def test_a_damaged_file_is_compiled_again(module: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    found_twice(module)
    (path,) = (path for path in files(module.parent) if path.suffix == suffix)
    path.write_bytes(damage(path.read_bytes()))
    assert [found_twice(module) for _ in range(2)] == [False, True]
    assert not (module.parent / "unpickled").exists()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_folders_pipes_and_links_in_the_place_of_files_are_no_obstacle(module: Path, suffix: str) -> None:
    found_twice(module)
    (path,) = (path for path in files(module.parent) if path.suffix == suffix)
    path.unlink()
    path.mkdir()
    assert not found_twice(module)
    path.rmdir()
    os.mkfifo(path)
    assert not found_twice(module)  # and one takes its place
    path.unlink()
    path.symlink_to(path)
    assert not found_twice(module)


def test_a_file_of_another_function_is_not_taken(module: Path) -> None:
    """Two processes that write at once can give one name to the functions of two signatures."""
    assert load(module)(4) == 8
    assert load(module)(1.5) == 3.0
    first, second = (path for path in files(module.parent) if path.suffix == ".nbc")
    second.write_bytes(first.read_bytes())
    assert load(module)(1.5) == 3.0
    assert load(module)(4) == 8


def test_a_full_disk_ends_nothing(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", raise_disk_full)
    assert not found_twice(module)
    monkeypatch.setattr("tempfile.TemporaryFile", raise_disk_full)  # by which numba finds out where it may write
    assert not found_twice(module)
    assert files(module.parent) == []


def test_elsewhere_what_others_may_write_is_not_taken(module: Path, elsewhere: Path) -> None:
    before = os.umask(0)
    try:
        assert [found_twice(module) for _ in range(2)] == [False, True]
    finally:
        os.umask(before)
    (folder,) = elsewhere.iterdir()
    for path in (*files(elsewhere), folder):
        mode = path.stat().st_mode
        path.chmod(0o777)
        store._warn.cache_clear()
        with pytest.warns(RuntimeWarning, match="others may write it"):
            assert not found_twice(module)
        path.chmod(mode)
        found_twice(module)


def test_without_numbas_compiler_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DISABLE_JIT", 1)

    def twice(x: int) -> int:
        return x + x

    assert cached_njit(twice) is twice
    assert cached_njit(nogil=True)(twice) is twice
