"""A lint over compiled PTX: the memory order of ``primitives/semaphore``, checked in what the compiler made.

Rules, each on the instructions in the order in which they stand:

release     between the last store to global memory and a gpu-scope release there is a CTA barrier
acquire     after a gpu-scope acquire poll, a CTA barrier comes before the next load of data
tma-load    after an acquire, a proxy fence comes before the next bulk load
tma-store   before a release, a bulk store is completed by ``cp.async.bulk.wait_group 0`` (not ``.read``)
dependent   before ``griddepcontrol.wait`` nothing is loaded but the 32-bit entries of item tables
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_RELEASE = re.compile(r"\b(?:red|atom|st)\.\S*(?:release|acq_rel)\S*")
_ACQUIRE = re.compile(r"\bld\.(?:global\.gpu\.acquire|acquire\.gpu)\S*")
_BARRIER = re.compile(r"\b(?:bar|barrier)\.(?:cta\.)?(?:sync|red)")
_STORE = re.compile(r"\bst\.global\S*")
_DATA_LOAD = re.compile(r"\b(?:ld\.global|cp\.async\.c[ag])\S*")
_BULK_LOAD = re.compile(r"\bcp\.async\.bulk\.\S*shared::(?:cluster|cta)\S*global")
_BULK_STORE = re.compile(r"\bcp\.async\.bulk\.\S*global\.shared::cta")
_BULK_DONE = re.compile(r"\bcp\.async\.bulk\.wait_group\s+0\b")
_PROXY_FENCE = re.compile(r"\bfence\.proxy\.async")
_DEPENDENT_WAIT = re.compile(r"\bgriddepcontrol\.wait\b")
_SCALAR_LOAD = re.compile(r"\bld\.global(?:\.\w+)*\.[bsu]32\s*\{?\s*%r\d+\s*\}?,")


@dataclass(frozen=True)
class Finding:
    """One broken rule and where."""

    rule: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: line {self.line}: {self.text}"


def lint(ptx: str) -> list[Finding]:
    """Broken rules of memory order in a PTX module; empty if it follows them all."""
    lines = [(n, line.split("//")[0].strip()) for n, line in enumerate(ptx.splitlines(), 1)]
    return [
        *_backwards("release", lines, _RELEASE, good=_BARRIER, bad=_STORE.search),
        *_forwards("acquire", lines, _ACQUIRE, good=_BARRIER, bad=_is_data_load),
        *_forwards("tma-load", lines, _ACQUIRE, good=_PROXY_FENCE, bad=_BULK_LOAD.search),
        *_backwards("tma-store", lines, _RELEASE, good=_BULK_DONE, bad=_BULK_STORE.search),
        *_dependent(lines),
    ]


@dataclass(frozen=True)
class Resources:
    """What ptxas says a kernel takes, per thread."""

    registers: int
    spill_bytes: int


def resources(ptx: str, arch: str = "sm_90a") -> Resources:
    """Registers and spilled bytes per thread, from the ptxas that Triton ships.

    Raises:
        RuntimeError: ptxas rejects the module.
    """
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        ran = subprocess.run(
            [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={arch}", path, "-o", os.path.join(folder, "kernel.cubin")],
            capture_output=True,
            text=True,
        )
    if ran.returncode:
        raise RuntimeError(f"ptxas rejected the kernel: {ran.stderr.strip()}")
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", ran.stderr))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", ran.stderr))
    return Resources(registers, spills)


def count(ptx: str, pattern: str) -> int:
    """Instructions that match a regular expression, for expectations such as the number of wgmma."""
    return len(re.findall(pattern, ptx))


Line = tuple[int, str]


def _is_data_load(text: str) -> bool:
    return bool(_DATA_LOAD.search(text)) and not _ACQUIRE.search(text)


def _backwards(
    rule: str, lines: list[Line], at: re.Pattern[str], good: re.Pattern[str], bad: Callable[[str], object]
) -> Iterator[Finding]:
    for i, (n, text) in enumerate(lines):
        if at.search(text):
            for _, before in reversed(lines[:i]):
                if good.search(before):
                    break
                if bad(before):
                    yield Finding(rule, n, text)
                    break


def _forwards(
    rule: str, lines: list[Line], at: re.Pattern[str], good: re.Pattern[str], bad: Callable[[str], object]
) -> Iterator[Finding]:
    for i, (n, text) in enumerate(lines):
        if at.search(text):
            for _, after in lines[i + 1 :]:
                if good.search(after):
                    break
                if bad(after):
                    yield Finding(rule, n, text)
                    break


def _dependent(lines: list[Line]) -> Iterator[Finding]:
    last = max((i for i, (_, text) in enumerate(lines) if _DEPENDENT_WAIT.search(text)), default=0)
    for n, text in lines[:last]:
        if _is_data_load(text) and not _SCALAR_LOAD.search(text):
            yield Finding("dependent", n, text)
