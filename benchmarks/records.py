"""List stale records: those made with other code than today's, comments and docstrings aside.

    make records

A record names the rooms and modules that it measures, with a hash of each. The commit at which they all had that hash
is looked up in git and written into the record; what differs from it in code today is listed.
"""

from __future__ import annotations

import ast
import json
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache

from rich.console import Console
from rich.table import Table
from script import RESULTS, ROOT, parse_arguments

from interlace.bench.sources import PACKAGE, SUFFIXES, combine_hashes, list_files
from interlace.core.files import write_atomic

PREFIX = PACKAGE.relative_to(ROOT).as_posix()


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


@cache
def commits() -> tuple[str, ...]:
    """Return the commits that touched the package, newest first."""
    return tuple(git("log", "--format=%H", "--", PREFIX).split())


@cache
def blobs(commit: str) -> dict[str, str]:
    """Every module and data file of the package at a commit, by path below it."""
    lines = git("ls-tree", "-r", commit, "--", PREFIX).splitlines()
    parted = (line.split(None, 3) for line in lines)
    return {path.removeprefix(f"{PREFIX}/"): blob for _, _, blob, path in parted if path.endswith(SUFFIXES)}


def is_known(commit: str) -> bool:
    """Return whether this clone has a commit: it may have been made on a branch that is gone."""
    found = subprocess.run(["git", "-C", str(ROOT), "cat-file", "-e", commit], check=False, capture_output=True)
    return found.returncode == 0


def within(room: str, files: Mapping[str, str]) -> dict[str, str]:
    return {path: blob for path, blob in files.items() if path == room or path.startswith(f"{room}/")}


def commit_of(sources: Mapping[str, str]) -> str | None:
    """The newest commit at which all sources of a record are as they were; None if they were never committed so."""
    for commit in commits():
        if all(combine_hashes(within(room, blobs(commit))) == found for room, found in sources.items()):
            return commit
    return None


def list_changed(sources: Mapping[str, str], commit: str) -> list[str]:
    """Modules that are no longer the same code as at a commit."""
    then = {path: blob for room in sources for path, blob in within(room, blobs(commit)).items()}
    today = {file.relative_to(PACKAGE).as_posix(): file.read_text() for room in sources for file in list_files(room)}
    same = {p for p, text in today.items() if p in then and code(p, git("cat-file", "-p", then[p])) == code(p, text)}
    return sorted((set(then) | set(today)) - same)


def code(path: str, text: str) -> str:
    """Return a module without comments and docstrings, a data file's values, or the text of a CUDA header."""
    if path.endswith(".cuh"):
        return text
    if not path.endswith(".py"):
        return repr(tomllib.loads(text) if path.endswith(".toml") else json.loads(text))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def main() -> None:
    table = Table("record", "date", "commit", "changed since")
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        sources = record["sources"]
        commit = record.get("commit") or commit_of(sources)
        if commit and "commit" not in record:
            head = {"commit": commit} | record
            write_atomic(path, json.dumps(head, indent=1) + "\n")
        if not commit:
            since = ["measured before it was committed"]
        else:
            since = list_changed(sources, commit) if is_known(commit) else ["its commit is not in this clone"]
        shown = ", ".join(since[:4]) + (f" and {len(since) - 4} more" if len(since) > 4 else "")
        table.add_row(path.name, record["date"], (commit or "")[:9], shown or ("-" if sources else "no code of ours"))
    Console().print(table)


if __name__ == "__main__":
    parse_arguments(__doc__)
    main()
