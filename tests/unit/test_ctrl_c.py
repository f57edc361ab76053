"""Ctrl-C ends a command in one line at any time, also while it is being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Stands for Ctrl-C while a module is imported, at a place where an exception is lost.
INTERRUPTED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except BaseException:
                pass
signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--version"]
runpy.run_module("interlace", run_name="__main__", alter_sys=True)
"""


def run(module: str, handler: str = "default_int_handler") -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED.format(module=module, handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["interlace.cli", "numpy", "interlace.cli.traffic"])
def test_an_interrupted_import_ends_in_one_line(module: str) -> None:
    done = run(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_a_command_in_the_background_goes_on() -> None:
    """A shell has Ctrl-C ignored there."""
    done = run("interlace.cli", "SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")


def test_little_is_imported_before_ctrl_c_is_answered() -> None:
    code = "import sys; import interlace.__main__; print(len([n for n in sys.modules if n.startswith('interlace')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 5
    probe = "import sys, interlace; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout == "False\n"
