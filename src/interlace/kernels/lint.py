"""Lint of compiled PTX: the memory order of ``primitives/semaphore``, checked in the compiler's output.

Rules, each on every path through the kernel:

release     between a store to global memory and the next gpu-scope release there is a CTA barrier. If a dedicated
            warp releases for the storing warps, it waits for them on an mbarrier instead (the emulator of the tests
            checks that they synchronise before they arrive on it)
acquire     between a gpu-scope acquire poll and the next load there is a barrier of all threads that rely on the poll:
            of the CTA, or of the warp that polls for itself in a warp-specialised kernel
hand-off    after an acquire poll, the polling warp synchronises before one of its threads arrives on an mbarrier for
            other readers
tma-load    after an acquire, a proxy fence comes before the next bulk load
tma-store   a bulk store is completed by ``cp.async.bulk.wait_group 0`` (not ``.read``) before the next release
dependent   before ``griddepcontrol.wait`` nothing is loaded except 32-bit entries of item tables, and no word that is
            itself polled is stored (``csrc/sentinel.cuh``)
wrap        the result of an acquire poll is not compared directly with another number: only differences survive a wrap
word        an LL word (``csrc/ll.cuh``) is stored by one relaxed access of 64 bits, with an epoch in the upper half,
            and loaded by one: no access to halves, and no weak, volatile or non-coherent access
polled      the upper half of the result of such a load is compared with an epoch, for equality
absent      a launch that posts has a release, one that waits has an acquire poll, and one that uses LL both loads and
            stores LL words

LL words are recognised by their halves: what is shifted into the upper half, and what is compared from it. An access
that compares or stores no epoch is reported, so forms unknown to the rules are not missed. The rules cannot tell
whether the epoch is correct (the emulator of the tests can), or whether weak 32-bit loads access halves of a word.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_RELEASE = re.compile(r"\b(?:red|atom|st)\.\S*(?:release|acq_rel)\S*")
_ACQUIRE = re.compile(r"\bld\.(?:global\.gpu\.acquire|acquire\.gpu)\S*")
_ACQUIRED_COUNTER = re.compile(r"\bld\.(?:global\.gpu\.acquire|acquire\.gpu)\S*\s+\{?\s*(%r\d+)")
_MOVE = re.compile(r"\bmov\.[bsu]32\s+(%r\d+)\s*,\s*(%r\d+)\s*;")
_ORDERED_COMPARE = re.compile(r"\b(?:setp\.(?:[lg][te]|lo|ls|hi|hs)|min|max)\.[su]32\b")
_LL_ACCESS = re.compile(r"\b(?:ld|st)\.relaxed\.gpu\.global\.(?:v2\.)?b64\b")
_PARTIALS_STORE = re.compile(r"\bst\.relaxed\.gpu\.global\.v4\.b32\b")  # stores of ``csrc/sentinel.cuh``
_HALF_STORE = re.compile(r"\bst\.relaxed\.gpu\.global\S*")
_HALF_LOAD = re.compile(r"\bld\.(?:relaxed\.gpu\.global|volatile\S*)\.(?:v2\.)?[bsu]32\b")
_OTHER_SPACE = re.compile(r"\b(?:ld|st)\.(?:shared|local|param|const)")
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
_BARRIER = re.compile(r"\b(?:bar|barrier)\.(?:cta\.)?(?:sync|red)")
_WARP_BARRIER = re.compile(r"\bbar\.warp\.sync|\b(?:bar|barrier)\.(?:cta\.)?(?:sync|red)")
_STORE = re.compile(r"\bst\.(?:relaxed\.gpu\.)?global\S*")
_DATA_LOAD = re.compile(r"\b(?:ld\.global|ld\.relaxed\.gpu\.global\.v|cp\.async\.c[ag])\S*")
_LL_STORE = re.compile(r"\bst\.relaxed\.gpu\.global\S*")
_BULK_LOAD = re.compile(r"\bcp\.async\.bulk\.\S*shared::(?:cluster|cta)\S*global")
_BULK_STORE = re.compile(r"\bcp\.async\.bulk\.\S*global\.shared::cta")
_BULK_DONE = re.compile(r"\bcp\.async\.bulk\.wait_group\s+0\b")
_PROXY_FENCE = re.compile(r"\bfence\.proxy\.async")
_DEPENDENT_WAIT = re.compile(r"\bgriddepcontrol\.wait\b")
_ARRIVE = re.compile(r"\bmbarrier\.arrive\b")
_BLOCK_WAIT = re.compile(r"\bmbarrier\.try_wait\b")
_BARRIER_OR_BLOCK_WAIT = re.compile(f"{_BARRIER.pattern}|{_BLOCK_WAIT.pattern}")
_SCALAR_LOAD = re.compile(r"\bld\.global\.[bsu]32\s*\{?\s*%rd?\d+\s*\}?,")


_BRANCH = re.compile(r"(?:@!?%p\d+\s+)?bra(?:\.uni)?\s+([$\w]+)\s*;")
_BRANCH_TABLE = re.compile(r"([$\w]+):\s*\.branchtargets\s+([^;]*);")
_SWITCH = re.compile(r"brx\.idx(?:\.uni)?\s+%r\d+\s*,\s*([$\w]+)\s*;")
_REGISTER = re.compile(r"%r[ds]?\d+")
#: An instruction, its results, and its operands.
_INSTRUCTION = re.compile(r"(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|%\w+)\s*,\s*([^;]*)")
_ACCESS = re.compile(r"\bld\.\S+\s+(?P<load>[^\[]*),\s*\[|\bst\.\S+\s+\[[^\]]*\]\s*,\s*(?P<store>[^;]*)")
_EQUALITY = re.compile(r"setp\.(?:eq|ne)(?:\.(?:and|or))?\.[bsu]32\b")
_COPY = re.compile(r"(?:mov|selp)\.[bsu]\d+$")
_WIDENING = re.compile(rf"{_COPY.pattern}|cvt\.u64\.u32$")
_JOINING = re.compile(rf"{_COPY.pattern}|(?:or|bfi)\.b64$")
_UPPER_INSERT = re.compile(r"(?:shl|bfi)\.b64$")
_UPPER_EXTRACT = re.compile(r"shr\.[bu]64$")
LineTest = Callable[[str], object]


@dataclass(frozen=True)
class LintFinding:
    """A broken rule and its location."""

    rule: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: line {self.line}: {self.text}"


def lint(ptx: str, *, posts: bool, waits: bool, posting_warp: bool = False, has_ll: bool = False) -> list[LintFinding]:
    """Return the broken rules of memory order in a PTX module; empty if it follows all of them.

    Args:
        posts, waits: True if the plan has posts or waits for this launch; without these instructions the rules on
            them would hold vacuously.
        posting_warp: True if a dedicated warp releases what others stored, as in ``csrc/roles.cuh``.
        has_ll: True if the launch hands over tensors with the LL protocol (``megakernel/ll_edges``).
    """
    code = _ControlFlow(ptx)
    met = _BARRIER_OR_BLOCK_WAIT if posting_warp else _BARRIER
    return [
        *(
            [LintFinding("absent", 0, "no release, though the launch posts")]
            if posts and not _RELEASE.search(ptx)
            else []
        ),
        *(
            [LintFinding("absent", 0, "no acquire, though the launch waits")]
            if waits and not _ACQUIRE.search(ptx)
            else []
        ),
        *code.find_unguarded("release", _STORE.search, _RELEASE.search, met.search),
        *code.find_unguarded("acquire", _ACQUIRE.search, _is_data_load, _WARP_BARRIER.search),
        *code.find_unguarded("hand-off", _ACQUIRE.search, _ARRIVE.search, _WARP_BARRIER.search),
        *code.find_unguarded("tma-load", _ACQUIRE.search, _BULK_LOAD.search, _PROXY_FENCE.search),
        *code.find_unguarded("tma-store", _BULK_STORE.search, _RELEASE.search, _BULK_DONE.search),
        *code.find_before_dependent_wait(),
        *_check_counter_compares(ptx),
        *(_check_ll(ptx) if has_ll else ()),
    ]


def _check_counter_compares(ptx: str) -> Iterator[LintFinding]:
    """Find ordered comparisons of counters. Compilers generate them from differences of signed integers in C++."""
    counters: set[str] = set()
    for number, line in enumerate(ptx.splitlines(), 1):
        if _FUNCTION.search(line):
            counters = set()
        counters |= {m[1] for m in _ACQUIRED_COUNTER.finditer(line)}
        counters |= {m[1] for m in _MOVE.finditer(line) if m[2] in counters}
        if _ORDERED_COMPARE.search(line) and counters & set(re.findall(r"%r\d+", line)):
            yield LintFinding("wrap", number, line.strip())


def _check_ll(ptx: str) -> Iterator[LintFinding]:
    """Find LL words that are not stored, loaded or compared as such."""
    for kind in ("st", "ld"):
        if not any(_LL_ACCESS.search(line) and line.strip().startswith(kind) for line in ptx.splitlines()):
            what = "store" if kind == "st" else "load"
            yield LintFinding("absent", 0, f"no {what} of a word, though the launch uses LL words")
    lines = [*enumerate((line.split("//")[0].strip() for line in ptx.splitlines()), 1)]
    starts = [n for n, (_, text) in enumerate(lines) if _FUNCTION.search(text)]
    for first, end in zip([0, *starts], [*starts, len(lines)], strict=True):
        yield from _RegisterHalves(lines[first:end]).iter_findings()


@dataclass(frozen=True)
class _Instruction:
    """An instruction that computes registers from others."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

    @property
    def upper_of(self) -> tuple[str, ...]:
        """The register whose upper half the instruction extracts, if it does."""
        return self.operands if _UPPER_EXTRACT.match(self.name) and self.text.endswith(", 32") else ()

    @property
    def upper(self) -> tuple[str, ...]:
        """The register that the instruction inserts into an upper half, if it does."""
        pair = self.name == "mov.b64" and len(self.operands) == 2
        joined = _UPPER_INSERT.match(self.name) and self.text.endswith((", 32", ", 32, 32"))
        return self.operands[-1:] if pair else self.operands[:1] if joined else ()


class _RegisterHalves:
    """Data flow of the 32-bit halves of a function's registers, over all paths."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        self._lines = lines
        self._instructions: dict[str, list[_Instruction]] = {}
        compared: set[str] = set()
        for _, text in lines:
            found = _INSTRUCTION.match(text)
            if found is None:
                continue
            results, operands = (tuple(_REGISTER.findall(found[n])) for n in (2, 3))
            made = _Instruction(found[1], results, operands, found[3].strip())
            if _EQUALITY.match(made.name) and len(operands) == 2:
                compared |= {*operands}
            for register in results:
                self._instructions.setdefault(register, []).append(made)
        #: Registers compared with another for equality, and the 64-bit registers whose upper halves they are.
        self._compared = self._trace_sources(compared)
        self._polled = self._trace_sources(
            word for register in self._compared for word in self._find_wide_registers(register)
        )

    def iter_findings(self) -> Iterator[LintFinding]:
        for number, text in self._lines:
            access = _ACCESS.search(text)
            if access is None or _OTHER_SPACE.search(text):
                continue
            whole, given = bool(_LL_ACCESS.search(text)), _REGISTER.findall(access["load"] or access["store"])
            if access["load"]:
                rule = self._check_load(text, {*given}, whole)
            else:
                rule = self._check_store(text, [self._find_upper_halves(register) for register in given], whole)
            if rule:
                yield LintFinding(rule, number, text)

    def _check_load(self, text: str, given: set[str], whole: bool) -> str:
        """Return the rule that a load breaks, or ""."""
        if whole:
            return "" if given <= self._polled else "polled"
        half = bool(_HALF_LOAD.search(text)) and not self._compared.isdisjoint(given)
        return "word" if half or not self._polled.isdisjoint(given) else ""

    def _check_store(self, text: str, numbers: list[set[str]], whole: bool) -> str:
        """Return the rule that a store breaks, given the contents of the upper half of each register, or ""."""
        if whole:
            return "" if all(numbers) else "word"
        half = bool(_HALF_STORE.search(text)) and not _PARTIALS_STORE.search(text)
        return "word" if half or any(self._is_epoch(upper) for of in numbers for upper in of) else ""

    def _trace_sources(self, registers: Iterable[str], same: re.Pattern[str] | None = None) -> set[str]:
        """Return these registers and their sources, through copies or the given kind of instructions."""
        found: set[str] = set()
        stack = [*registers]
        while stack:
            register = stack.pop()
            if register not in found:
                found.add(register)
                for made in self._instructions.get(register, ()):
                    stack += made.operands if (same or _COPY).match(made.name) else ()
        return found

    def _find_wide_registers(self, register: str) -> set[str]:
        """Return the 64-bit registers whose upper half a 32-bit register is."""
        narrowed = (made for made in self._instructions.get(register, ()) if made.name == "cvt.u32.u64")
        shifted = {upper for made in narrowed for upper in self._trace_sources(made.operands)}
        found = {word for upper in shifted for made in self._instructions.get(upper, ()) for word in made.upper_of}
        pairs = (made for made in self._instructions.get(register, ()) if made.name == "mov.b64")
        return found | {made.operands[0] for made in pairs if made.results[1:] == (register,)}

    def _find_upper_halves(self, word: str) -> set[str]:
        """Return the registers inserted into the upper half of a 64-bit register."""
        parts = self._trace_sources([word], _JOINING)
        return {upper for part in parts for made in self._instructions.get(part, ()) for upper in made.upper}

    def _is_epoch(self, register: str) -> bool:
        """Return True if a register may hold an epoch, which is computed from the run's index."""
        made = (made for of in self._trace_sources([register], _WIDENING) for made in self._instructions.get(of, ()))
        return any(each.name == "mad.lo.s32" for each in made)


@dataclass(frozen=True)
class PtxasReport:
    """Resources that ptxas reports for a kernel.

    Attributes:
        registers, spill_bytes: registers and spilled bytes per thread.
        is_serialised: True if ptxas serialised wgmma (its warnings C7510 to C7519).
    """

    registers: int
    spill_bytes: int
    is_serialised: bool


def run_ptxas(ptx: str) -> PtxasReport:
    """Return registers and spilled bytes per thread on the module's target, from the ptxas that Triton would use.

    Raises:
        RuntimeError: a text without a target, or a module that ptxas rejects.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    found = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    if found is None:
        raise RuntimeError("the text names no .target; is it PTX?")
    arch = found[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        ran = subprocess.run(
            [
                get_ptxas(int(re.sub(r"\D", "", arch))).path,
                "-v",
                f"--gpu-name={arch}",
                path,
                "-o",
                os.path.join(folder, "kernel.cubin"),
            ],
            capture_output=True,
            text=True,
        )
    if ran.returncode:
        raise RuntimeError(f"ptxas rejected the kernel: {ran.stderr.strip()}")
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", ran.stderr))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", ran.stderr))
    return PtxasReport(registers, spills, "wgmma.mma_async instructions are serialized" in ran.stderr)


def count_instructions(ptx: str, pattern: str) -> int:
    """Count instructions that match a regular expression, for checks such as the number of wgmma."""
    return len(re.findall(pattern, ptx))


def _is_data_load(text: str) -> bool:
    return bool(_DATA_LOAD.search(text)) and not _ACQUIRE.search(text)


class _ControlFlow:
    """Control-flow graph of a module's instructions."""

    def __init__(self, ptx: str) -> None:
        self._lines: list[tuple[int, str]] = []
        tables = {name: re.findall(r"[$\w]+", labels) for name, labels in _BRANCH_TABLE.findall(ptx)}
        ptx = _BRANCH_TABLE.sub(lambda table: "\n" * table.group().count("\n"), ptx)
        for number, line in enumerate(ptx.splitlines(), 1):
            text = line.split("//")[0].strip()
            if text and not text.startswith("."):
                self._lines.append((number, text))
        label = {text[:-1]: i for i, (_, text) in enumerate(self._lines) if text.endswith(":")}
        self._next: list[list[int]] = []
        for i, (_, text) in enumerate(self._lines):
            jump = _BRANCH.match(text)
            falls = not re.match(r"(?:bra|brx|ret|exit|trap)\b", text)
            follow = [i + 1] if falls and i + 1 < len(self._lines) else []
            if jump and jump.group(1) in label:
                follow.append(label[jump.group(1)])
            switch = _SWITCH.match(text)
            if switch:
                follow += [label[name] for name in tables[switch.group(1)]]
            self._next.append(follow)

    def find_unguarded(self, rule: str, first: LineTest, second: LineTest, needed: LineTest) -> Iterator[LintFinding]:
        """Find instructions ``second`` that can follow ``first`` without ``needed`` in between."""
        starts = [j for i, (_, text) in enumerate(self._lines) if first(text) for j in self._next[i]]
        yield from self._iter_reached(rule, starts, second, needed)

    def find_before_dependent_wait(self) -> Iterator[LintFinding]:
        """Find wide loads and stores of words that a path from the entry reaches without a dependent-launch wait.

        In a warp-specialised kernel the other partitions follow the waiting one through mbarriers.
        """

        def waits(text: str) -> object:
            return _DEPENDENT_WAIT.search(text) or _BLOCK_WAIT.search(text)

        def loads(text: str) -> bool:
            data = _is_data_load(text) and not _SCALAR_LOAD.search(text)
            return data or bool(_LL_STORE.search(text))

        if any(_DEPENDENT_WAIT.search(text) for _, text in self._lines):
            yield from self._iter_reached("dependent", [0], loads, waits)

    def _iter_reached(self, rule: str, starts: list[int], bad: LineTest, enough: LineTest) -> Iterator[LintFinding]:
        """Find instructions that match ``bad`` on a path from the starts that has not passed ``enough``."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = starts
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            text = self._lines[i][1]
            if enough(text):
                continue
            if bad(text):
                found.add(i)
            stack += self._next[i]
        for i in sorted(found):
            yield LintFinding(rule, *self._lines[i])
