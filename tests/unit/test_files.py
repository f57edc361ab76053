"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest
import typer

from interlace.cli.console import writable
from interlace.core.files import write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_folder_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "t.json", "new")


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path) -> None:
    link, target = tmp_path / "link.json", tmp_path / "there" / "t.json"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in ("new", "newer"):  # of a link to nothing and of one to a file
        assert writable(link) == link
        write_whole(link, content)
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
            writable(path)
        with pytest.raises(OSError, match="not a regular file"):
            write_whole(path, "new")
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
            writable(path)
    assert writable(tmp_path / "t.json") == tmp_path / "t.json"
    assert list(tmp_path.iterdir()) == [dangling]
