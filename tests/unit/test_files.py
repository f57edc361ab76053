"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest
import typer

from interlace.cli.outputs import Output, parse_output_file
from interlace.core.files import write_atomic


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_folder_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "t.json", "new")


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path) -> None:
    link, target = tmp_path / "link.json", tmp_path / "there" / "t.json"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in ("new", "newer"):  # of a link to nothing and of one to a file
        assert parse_output_file(str(link)) == Output(link)
        write_atomic(link, content)
        assert link.is_symlink()
        assert target.read_text() == content
    assert [p.name for p in target.parent.iterdir()] == ["t.json"]


def test_what_is_no_regular_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    pipe, to_pipe, loop = tmp_path / "pipe", tmp_path / "to_pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    to_pipe.symlink_to(pipe)
    loop.symlink_to(loop)
    for path in (pipe, to_pipe, loop):
        with pytest.raises(typer.BadParameter, match="is no regular file"):
            parse_output_file(str(path))
        with pytest.raises(OSError, match="not a regular file"):
            write_atomic(path, "new")
    assert pipe.is_fifo()
    assert loop.is_symlink()


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "none" / "t.json")
    for path, message in (
        (Path("/proc/t.json"), "cannot write '/proc/t.json': .*; use another folder"),
        (tmp_path / ("long" * 100), "cannot write"),
        (dangling, "none' does not exist; make it first"),
        (tmp_path, "is a folder; name a file"),
    ):
        with pytest.raises(typer.BadParameter, match=message):
            parse_output_file(str(path))
    assert parse_output_file(str(tmp_path / "t.json")) == Output(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == [dangling]


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch(0o600)
    mask = os.umask(0o027)
    try:
        for path in (old, new):
            write_atomic(path, "new")
    finally:
        os.umask(mask)
    assert [path.stat().st_mode & 0o777 for path in (old, new)] == [0o600, 0o640]


def test_a_file_that_is_read_only_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda name, mode: False)  # root may write whatever the mode says
    with pytest.raises(PermissionError):
        write_atomic(path, "new")
    with pytest.raises(typer.BadParameter, match="is read-only; use another name"):
        parse_output_file(str(path))
    assert path.read_text() == "old"


def test_a_name_of_full_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_atomic(path, "new")
    assert path.read_text() == "new"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(source: object, target: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "t.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
