"""Chat templates, rendered in a separate process with limits on time, memory and output.

Templates come with weights and are untrusted. Jinja's sandbox denies them access to files and to Python; it cannot
bound the cost of one expression (``'a' * 3000000000``, ``9 ** 99999999``). A separate process can be bounded from
outside:

    limit            value    enforced by
    CPU time         5 s      RLIMIT_CPU
    wall-clock time  30 s     the parent, which kills the process
    memory           512 MiB  RLIMIT_AS; on systems without it the parent, which polls the resident bytes
    text             1 Mi     the process, in characters
    files, forks     none     RLIMIT_FSIZE, RLIMIT_NPROC

The process is a fresh interpreter, not a fork: it imports only jinja2, and none of the parent's memory is in it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from interlace.core.errors import ModelFileError

_PROGRAM = Path(__file__).with_name("render_template.py")
_PACKAGES = ("jinja2", "markupsafe")
_POLL_S = 0.05  # between polls of the resident bytes


@dataclass(frozen=True)
class Limits:
    """Limits for rendering one template.

    Attributes:
        cpu_s, wall_s: CPU time and wall-clock time in seconds.
        memory_bytes: bytes of memory in addition to those of the interpreter with jinja2.
        characters: characters of the text, far more than the context length of any supported model.
        watches_memory: True if the parent polls the memory of the process.
    """

    cpu_s: int = 5
    wall_s: float = 30.0
    memory_bytes: int = 512 << 20
    characters: int = 1 << 20
    watches_memory: bool = sys.platform != "linux"


class TemplateError(Exception):
    """Failure of a template; the message gives the reason in one line."""


def render(template: str, variables: Mapping[str, Any], limits: Limits = Limits()) -> str:
    """Render a template.

    Args:
        template: Jinja text of the template.
        variables: variables of the template, of JSON types only.
        limits: limits on time, memory and output.

    Raises:
        TemplateError: the template is damaged, raises, or exceeds a limit.
        ModelFileError: jinja2 is missing, or no process can be started.
    """
    request = {
        "template": template,
        "variables": dict(variables),
        "characters": limits.characters,
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
    }
    command = [sys.executable, "-I", "-S", str(_PROGRAM), *_find_package_folders()]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only the parent, which kills the process
        )
    except (OSError, ValueError, TypeError) as error:  # also without sys.executable
        raise ModelFileError(f"a chat template needs a process of its own, and none can be started: {error}") from None
    with process:
        try:
            output = _communicate(process, json.dumps(request).encode(), limits)
        finally:
            process.kill()  # no effect on a process that has ended
    return _parse_answer(output, process.returncode, limits)


def _find_package_folders() -> list[str]:
    """Return the folders of jinja2 and its dependency, which the isolated process does not search itself."""
    specs = {name: find_spec(name) for name in _PACKAGES}
    for name, spec in specs.items():
        if spec is None or spec.origin is None:
            raise ModelFileError(f"chat templates need {name}, which is missing; `pip install -e '.[generate]'`")
    return [*dict.fromkeys(str(Path(spec.origin).parent.parent) for spec in specs.values() if spec and spec.origin)]


def _communicate(process: subprocess.Popen[bytes], request: bytes, limits: Limits) -> bytes:
    """Send the request and return the answer. Raises TemplateError at a limit that the parent enforces."""
    end, unsent = monotonic() + limits.wall_s, request or None
    while True:
        left = end - monotonic()
        try:
            output, _ = process.communicate(unsent, timeout=min(left, _POLL_S) if limits.watches_memory else left)
            return output
        except subprocess.TimeoutExpired:
            unsent = None  # communicate resumes the partial write
        if monotonic() >= end:
            raise TemplateError(f"it takes more than {limits.wall_s:g} s")
        if limits.watches_memory and _read_resident_bytes(process.pid) > limits.memory_bytes:
            raise TemplateError(f"it takes more than {limits.memory_bytes >> 20} MiB of memory")


def _read_resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 if the system does not report it."""
    try:
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        return int(subprocess.run(command, capture_output=True, timeout=5, check=False).stdout) << 10
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def _parse_answer(output: bytes, status: int, limits: Limits) -> str:
    if status == -signal.SIGXCPU:
        raise TemplateError(f"it takes more than {limits.cpu_s} s of CPU time")
    try:
        answer = json.loads(output)
    except ValueError:
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise TemplateError(f"its process ended with {cause}") from None
    if "missing" in answer:
        raise ModelFileError(f"chat templates need jinja2: {answer['missing']}; `pip install -e '.[generate]'`")
    if "error" in answer:
        raise TemplateError(str(answer["error"]))
    return str(answer["text"])
