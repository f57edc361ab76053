"""Run tests on a copy of the sources in which one text is replaced.

The copy takes the place of the installed package through ``PYTHONPATH``, which comes before an editable install. It
keeps the compiled bytecode of the modules that stay as they are, so a run costs what its tests cost.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "interlace"


#: Of the limit on time of a processor, how many times it may take by the clock.
_WALL = 10


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Attributes:
        file: source file, relative to the package.
        old, new: the text that is replaced, and what replaces it.
        tests: node ids of tests that must fail, relative to ``tests/unit``.
        offset: where ``old`` begins in the file; None if it occurs there exactly once.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.file}: {_one_line(self.old)} -> {_one_line(self.new) or '(nothing)'}"

    def apply(self, text: str) -> str:
        """Return the text of the file with the fault planted.

        Raises:
            StaleMutantError: ``old`` is not there exactly once, or not at ``offset``.
        """
        if self.offset is None:
            count = text.count(self.old)
            if count != 1 or self.old == self.new:
                raise StaleMutantError(f"{self}: the old text occurs {count} times; update tests/mutation/mutants.py")
            return text.replace(self.old, self.new)
        end = self.offset + len(self.old)
        if text[self.offset : end] != self.old:
            raise StaleMutantError(f"{self}: the file has changed at offset {self.offset}; derive the mutants again")
        return text[: self.offset] + self.new + text[end:]


class StaleMutantError(Exception):
    """The sources no longer hold the text that a mutant replaces."""


class Outcome(Enum):
    """Fate of a mutant."""

    KILLED = "killed"
    """A test fails, or a module cannot be imported."""
    TIMEOUT = "timeout"
    """The tests did not end within the time limit."""
    SURVIVED = "survived"
    """All tests pass."""
    BROKEN = "broken"
    """Pytest ran no test: an unknown node id, or wrong usage."""


class Copy:
    """A copy of the package, in which one mutant at a time is planted.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.package = folder / "interlace"
        self._output = folder / "output"
        shutil.copytree(SOURCES, self.package)

    def run(self, mutant: Mutant, limit_s: int) -> tuple[Outcome, str]:
        """Run the mutant's tests up to the first failure; returns the outcome and the end of pytest's output.

        Raises:
            StaleMutantError: see ``Mutant.apply``.
        """
        file = self.package / mutant.file
        text = file.read_text()
        changed = mutant.apply(text)
        # Bytecode is matched with a source by its size and second, which two versions may share.
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            cached.unlink()
        file.write_text(changed)
        try:
            return self._run_tests(mutant.tests, limit_s)
        finally:
            file.write_text(text)

    def _run_tests(self, tests: tuple[str, ...], limit_s: int) -> tuple[Outcome, str]:
        process = _processes().Process(target=_run_pytest, args=(self.package.parent, self._output, tests, limit_s))
        process.start()
        process.join(_WALL * limit_s)
        if process.is_alive():
            process.kill()
            process.join()
            return Outcome.TIMEOUT, f"more than {_WALL * limit_s} s"
        if process.exitcode == -signal.SIGXCPU:
            return Outcome.TIMEOUT, f"more than {limit_s} s of a processor"
        said = self._output.read_text()
        end = "\n".join(said.splitlines()[-4:])
        if process.exitcode == pytest.ExitCode.OK:
            return Outcome.SURVIVED, end
        # A module that cannot be imported is an error of collection; a signal ends a process that crashes.
        imports_fail = "ERROR collecting" in said or "while loading conftest" in said
        failed = process.exitcode == pytest.ExitCode.TESTS_FAILED or (process.exitcode or 0) < 0
        return (Outcome.KILLED if failed or imports_fail else Outcome.BROKEN), end


@cache
def _processes() -> ForkServerContext:
    """Processes that fork from one that has imported all packages of tests but this project's."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["hypothesis.strategies", "numpy", "pytest"])
    return context


def _run_pytest(path: Path, output: Path, tests: tuple[str, ...], limit_s: int) -> None:
    """In a process of its own, run tests with ``path`` first on the module path.

    The limit is on time of a processor, so that a busy machine does not turn survivors into timeouts.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    with output.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ |= {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)
    sys.path.insert(0, str(path))
    sys.dont_write_bytecode = True
    options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not gpu and not thorough"]
    sys.exit(pytest.main([*options, *(f"tests/unit/{test}" for test in tests)]))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
