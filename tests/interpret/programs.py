"""Programs in processes of their own, each a fork of one that has imported PyTorch, Triton and the package.

A program of a page runs for a tenth of a second, and for seconds if it has to import all of these first.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0

#: Runs the scripts that it is told line by line, a fork for each, and answers with the exit code.
SERVER = """
import json, os, runpy, sys
import torch, triton, interlace
import interlace.executors.megakernel, interlace.executors.persistent, interlace.workloads  # what most programs load

if os.environ["TRITON_INTERPRET"] == "1":  # as the tests beside these have it
    sys.path.insert(0, sys.argv[1])
    from tests.interpret.haste import nothing_twice
    del sys.path[0]
    hasty = nothing_twice()
    hasty.__enter__()

for line in sys.stdin:
    script, *files = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.argv, sys.path[0] = [script], os.path.dirname(script)
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def environment(*paths: Path, interpret: str) -> dict[str, str]:
    """Variables of a process on the CPU that finds the package behind ``paths``."""
    search = os.pathsep.join(map(str, (*paths, ROOT / "src")))
    here = {"TRITON_INTERPRET": interpret, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **here, "PYTHONPATH": search}


def command(*arguments: str) -> list[str]:
    """Python, in which a warning about arithmetic is an error."""
    return [sys.executable, "-W", "error::RuntimeWarning", *arguments]


@cache
def _server(interpret: str) -> subprocess.Popen[str]:
    """The one that forks; it ends with its standard input, which this process holds to its own end."""
    server = subprocess.Popen(
        command("-c", SERVER, str(ROOT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(interpret=interpret),
        start_new_session=True,
    )
    atexit.register(server.communicate)
    return server


def run(script: Path, *, interpret: str = "1") -> subprocess.CompletedProcess[str]:
    """Run a script as in a Python started for it; return its output and exit code.

    Raises:
        TimeoutError: it has not ended after ``TIMEOUT_S``.
    """
    server = _server(interpret)
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        print(json.dumps([*map(str, (script, out, err))]), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], TIMEOUT_S)[0]:
            os.killpg(server.pid, signal.SIGKILL)  # and the fork that does not end
            _server.cache_clear()
            raise TimeoutError(f"{script} runs for more than {TIMEOUT_S} s")
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess([str(script)], code, out.read_text(), err.read_text())
