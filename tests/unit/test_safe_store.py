"""Folders of the user's cache: nobody else's files are read, no link is followed, and nothing foreign is deleted."""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlace.core import store as module
from interlace.core.store import CacheFolder, UnsafeCacheError

STORE = CacheFolder("things", re.compile(r"[0-9a-f]{1,64}"))
NAME = "ab12"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("INTERLACE_CACHE_DIR", str(tmp_path / "cache"))
    module._warn.cache_clear()
    yield tmp_path / "cache"
    module._warn.cache_clear()


def test_entries_and_folders_are_this_users_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        path = STORE.write(NAME, b"content")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (root, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]
    assert STORE.read(NAME) == b"content"
    assert STORE.read("cd34") is None


def where(root: Path, which: str) -> Path:
    return {"root": root, "folder": root / "things", "file": root / "things" / NAME}[which]


@pytest.mark.parametrize("which", ["root", "folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_refused_with_one_warning(root: Path, which: str, mode: int) -> None:
    STORE.write(NAME, b"content")
    path = where(root, which)
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(repr(str(path)))} is not used as a cache, .*chmod go-w it$"):
        assert STORE.read(NAME) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert STORE.read(NAME) is None
    if which == "file":
        STORE.write(NAME, b"anew")
        assert STORE.read(NAME) == b"anew"
    else:
        with pytest.raises(UnsafeCacheError, match="others may write it"):
            STORE.write(NAME, b"anew")


@pytest.mark.parametrize("which", ["root", "folder", "file"])
def test_what_belongs_to_somebody_else_is_refused(root: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STORE.write(NAME, b"content")
    foreign, original = where(root, which).stat().st_ino, os.fstat

    def another(number: int) -> os.stat_result:
        found = original(number)
        fields = list(found)
        fields[4] += found.st_ino == foreign
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", another)
    with pytest.warns(RuntimeWarning, match=f"it belongs to user {os.geteuid() + 1}, .* a folder of your own"):
        assert STORE.read(NAME) is None


@pytest.mark.parametrize("which", ["root", "folder", "file"])
def test_links_are_not_followed(root: Path, which: str, tmp_path: Path) -> None:
    STORE.write(NAME, b"content")
    path, target = where(root, which), tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    with pytest.warns(RuntimeWarning, match="it is a link; "):
        assert STORE.read(NAME) is None
    if which == "file":
        STORE.write(NAME, b"anew")  # takes the place of the link
        assert STORE.read(NAME) == b"anew"
        assert target.read_bytes() == b"content"
    else:
        with pytest.raises(UnsafeCacheError, match="it is a link"):
            STORE.write("cd34", b"anew")
        assert not [*target.rglob("cd34")]


def test_nothing_is_made_in_a_root_that_others_may_write(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(UnsafeCacheError):
        STORE.create()
    assert [*root.iterdir()] == []


def test_what_is_no_file_is_neither_read_nor_replaced(root: Path) -> None:
    STORE.create()
    path = where(root, "file")
    for make in (os.mkfifo, os.mkdir):
        make(path)
        with pytest.raises(OSError, match="no regular file"):
            STORE.read(NAME)
        with pytest.raises(OSError, match="no regular file"):
            STORE.write(NAME, b"content")
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_file_too_large_to_be_an_entry_is_neither_read_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(STORE.write(NAME, b""), module.MAX_BYTES + 1)
    with pytest.raises(OSError, match="it has 1073741825 bytes"):
        STORE.read(NAME)
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    with pytest.raises(OSError, match="it has 4 bytes"):
        STORE.write("cd34", b"1234")


def test_pruning_deletes_entries_and_abandoned_files_and_nothing_else(root: Path, tmp_path: Path) -> None:
    folder = root / "things"
    for second, name in enumerate(["a", "b", "c"]):
        os.utime(STORE.write(name, b""), (second, second))
    (tmp_path / "target").write_bytes(b"")
    others = ["notes.txt", "A", "a.json", ".interlace-12.tmp", f"{'0' * 65}"]
    for name in others:
        (folder / name).write_bytes(b"")
    (folder / "ee").mkdir()
    (folder / "ff").symlink_to(tmp_path / "target")
    old, young = (folder / f".interlace-{digit * 16}.tmp" for digit in "01")
    for path in (old, young):
        path.write_bytes(b"")
    for path in folder.iterdir():
        if path != young and path.name not in "abc":
            os.utime(path, (0, 0), follow_symlinks=False)
    STORE.prune(2)
    assert {path.name for path in folder.iterdir()} == {*others, "b", "c", "ee", "ff", young.name}


def test_pruning_leaves_files_of_another_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    STORE.write("a", b"")
    STORE.write("b", b"")
    foreign, original = (root / "things" / "a").stat().st_ino, os.stat

    def another(*arguments: object, **options: object) -> os.stat_result:
        found = original(*arguments, **options)  # type: ignore[arg-type]
        fields = list(found)
        fields[4] += found.st_ino == foreign
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", another)
    STORE.prune(0)
    assert [path.name for path in (root / "things").iterdir()] == ["a"]


@pytest.mark.parametrize("fault", ["write", "replace"])
def test_a_full_disk_leaves_the_old_entry_and_nothing_unfinished(
    root: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = STORE.write(NAME, b"old")
    with monkeypatch.context() as patch:

        def raise_disk_full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        if fault == "replace":
            patch.setattr(os, "replace", raise_disk_full)
        else:
            original = open
            patch.setattr(module, "open", lambda *a: raise_disk_full() if a[1] == "wb" else original(*a), raising=False)
        with pytest.raises(OSError, match="No space"):
            STORE.write(NAME, b"new")
    assert [each.name for each in path.parent.iterdir()] == [NAME]
    assert STORE.read(NAME) == b"old"
