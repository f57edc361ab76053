"""The megakernel on the emulator: the real executor, with its memory on the CPU and its CUDA source in a library.

    run = EmulatedLaunch(il.build(graph, il.Schedule(1)), stages=3)
    [library] = prepare([run])
    run.run({**inputs, "out": out})
    run.faults

Everything else is the executor's own: tables, counters, arguments of the launch, the error of a wait that ends. Blocks
run one after another, so a plan has one worker; or all at once (``at_once``), each in a copy of the library. Races are
then only checked within each block. Blocks take turns, so a seed gives the same run on every machine.

If fewer rows of tokens are loaded than a tile has, products read whatever follows them as the missing rows, and nothing
may store the sums of these. The emulator gets the number of loaded rows, ignores the others, and makes their sums NaN,
which must not reach an output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch

from interlace.core.dtypes import DType
from interlace.core.errors import HangError, LaunchEndedError
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.op import Op
from interlace.kernels.conv2d import CONV2D
from interlace.kernels.cuda.launcher import TensorMap
from interlace.kernels.matmul import MATMUL
from interlace.kernels.matmul.tilings import count_loaded_rows, normalises
from interlace.loops.ir.smem import Placement, SharedLayout
from interlace.megakernel import pacing
from interlace.megakernel.compose import PREAMBLE, count_stages
from interlace.megakernel.constants import MESSAGE_BYTES, TICKETS
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Plan

from .build import Library, build
from .launch import Buffer, Fault, Grid, Promises, emulate, emulate_beside, tensor_map

#: Timeout for blocks that run one after another.
TIMEOUT_S = 0.02
_BARRIER_BYTES, _TALL = 8, 64


@dataclass(frozen=True)
class Walk:
    """CUDA source of a launch, with the layout of its shared memory."""

    cuda_source: str
    layout: SharedLayout


class EmulatedLaunch(MegakernelExecutor):
    """The megakernel of a plan, on CPU tensors.

    Args:
        plan, options: arguments of the executor.
        stages: number of stages of its ring.
        in_flight_bytes: bytes of prefetches in flight.
        change: replacement in the CUDA source (before, after) that breaks it.
        at_once: True to run blocks concurrently.
        timeout_s: timeout in seconds of the emulator's clock, which advances while a thread sleeps or all threads of a
            block are idle.

    Attributes:
        faults: faults of all runs so far.
        seed: seed of the next run's schedule.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        stages: int,
        in_flight_bytes: int = 1 << 20,
        change: tuple[str, str] | None = None,
        at_once: bool = False,
        timeout_s: float = TIMEOUT_S,
        **options: Any,
    ) -> None:
        self._stages, self._in_flight_bytes, self._change = stages, in_flight_bytes, change
        self.faults: list[Fault] = []
        self.seed = 0
        self.library: tuple[Library, int] | None = None
        self.at_once = at_once
        self._copies: list[Library] = []
        super().__init__(plan, RunOptions("meta", timeout_s=timeout_s, **options))
        self._device, self._is_interpreted = torch.device("cpu"), True
        self._allocate()

    def _prepare(self) -> None:
        tiles, warpgroups = [part.tile for part in self.lowered.ops], self.lowered.warpgroups
        sizes = range(0, self._spec.smem_bytes, 8)
        enough = next(size for size in sizes if count_stages(tiles, warpgroups, size) == self._stages)
        self._spec = replace(self._spec, smem_bytes=enough)
        self.lowered = replace(self.lowered, device=self._spec)
        with mock.patch.object(pacing, "_IN_FLIGHT_BYTES", self._in_flight_bytes):
            super()._prepare()

    @property
    def sums_left(self) -> int:
        """Number of words of split-K partials that were stored but not reduced yet."""
        return int((self._workspace.view(torch.int32) != -1).sum())

    @property
    def walk(self) -> Walk:
        """CUDA source and layout that are compiled."""
        text = re.sub(r"^#line .*$", "", self.composition.expanded_text, flags=re.MULTILINE)
        if self._change is not None:
            before, after = self._change
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        return Walk(text, SharedLayout(tuple(self._list_placements()), self.composition.shared_bytes, 1024))

    def _numbers(self) -> dict[str, int]:
        head = self.composition.source.partition("extern __shared__")[0]
        return {name: int(n) for name, n in re.findall(r"constexpr int (\w+) = (\d+);", head)}

    def _list_placements(self) -> list[Placement]:
        """Return the placements of shared memory, as ``csrc/ring/ring.cuh`` defines them."""
        c = self._numbers()
        count, warpgroups = c["STAGES"], c["WARPGROUPS"]
        parts = [
            ("independent", count, c["PREFETCH_BYTES"]),
            ("dependent", count, c["LOAD_BYTES"]),
            ("header", count, c["HEADER_BYTES"]),
            ("scratch", warpgroups, c["SCRATCH_BYTES"]),
            *(("resident", 1, c["RESIDENT_BYTES"]) for _ in range(c["RESIDENT_BYTES"] > 0)),
            ("message", TICKETS, MESSAGE_BYTES),
            *((name, count, _BARRIER_BYTES) for name in ("prefetch_full", "load_full")),
            *((name, count, _BARRIER_BYTES) for name in ("prefetch_empty", "load_empty")),
            *((name, TICKETS, _BARRIER_BYTES) for name in ("sent", "received", "finished")),
        ]
        out, at = [], 0
        for name, slots, slot_bytes in parts:
            out.append(Placement(name, at, slots, slot_bytes, 0, 0))
            at += slots * slot_bytes
        return out

    def _rows(self, op: Op, tensors: Mapping[str, torch.Tensor]) -> int:
        """Return the number of token rows of a matmul that are present."""
        (x,) = (access.tensor for access in op.reads if access.arg == "x")
        return tensors["x"].shape[0] if x in self.options.short_inputs else int(op.param("M"))

    def _promises(self, arguments: tuple[Any, ...]) -> Promises:
        c = self._numbers()
        first = c["STAGES"] * c["PREFETCH_BYTES"]
        end = first + c["STAGES"] * c["LOAD_BYTES"]
        came = [(op, self._rows(op, tensors)) for op, tensors in arguments if op.kernel == MATMUL.name]
        smaller = any(m % int(op.param("BM")) or int(op.param("N")) % int(op.param("BN")) for op, m in came)
        convolutions = [op for op, _ in arguments if op.kernel == CONV2D.name]
        smaller |= any(int(op.param("PIXELS")) < int(op.param("BM")) for op in convolutions)
        # Rows that are normalised in registers are never read beyond the present ones.
        products = [op for op, _ in came if not op.param("SWAP") and not normalises(op)]
        loaded = {op.name: count_loaded_rows(op) for op in products}
        loaded |= {op.name: _count_panel_rows(op) for op in convolutions if not op.param("SWAP")}
        products += [op for op in convolutions if not op.param("SWAP")]
        rows = {loaded[op.name] for op in products if loaded[op.name] < int(op.param("BM"))}
        if not rows:
            return Promises(0, smaller)
        tall = {int(op.param("BM")) for op in products}
        assert len(rows) == len(tall) == 1, "the emulator does not know which op a product is of"
        return Promises(0, smaller, first, end, rows.pop(), tall.pop() // _TALL // self.lowered.warpgroups)

    def _build_launches(self, arguments: tuple[Any, ...]) -> list[Any]:
        with mock.patch("interlace.kernels.cuda.launcher.encode_tensor_map", _tensor_map):
            packed = self.pack_operands(arguments)
        operands = torch.frombuffer(bytearray(packed), dtype=torch.uint8).clone()  # aligned to 64 bytes
        assert operands.data_ptr() % 64 == 0
        parameter = self.pack_parameter(packed if self.composition.has_inline_operands else operands)
        parameter = torch.frombuffer(bytearray(parameter), dtype=torch.uint8).clone()
        return [_Emulated(self, parameter, operands, arguments)]

    def _buffers(self, operands: torch.Tensor, arguments: tuple[Any, ...]) -> list[Buffer]:
        every = ((access.tensor, tensors[access.arg]) for op, tensors in arguments for access in op.accesses)
        given = {name: value for name, value in every if value is not self._words.get(name)}
        written_to = {access.tensor for op in self.plan.graph.ops for access in op.writes}
        inputs = [value for name, value in given.items() if name not in written_to]
        results = [value for name, value in given.items() if name in written_to]
        state = self._semaphores, self._arrivals, self._done, self._fault, self._record, self._trace, self._counters
        state = *state, self._heads, *self._words.values(), *self._memory.values.values()
        read = [_buffer(value) for value in (*inputs, operands, self._items, self._waits, self._lists)]
        written = [_buffer(value, written=True) for value in state]
        return [*read, *written, *(_buffer(value, written=True, watched=True) for value in (*results, self._workspace))]


@dataclass(frozen=True)
class _Emulated:
    """A launch of blocks on the emulator."""

    executor: EmulatedLaunch
    parameter: torch.Tensor
    operands: torch.Tensor
    arguments: tuple[Any, ...]

    def run(self) -> None:
        """Run all blocks."""
        run = self.executor
        run.clear_outputs(self.arguments)
        assert run.library is not None
        library, number = run.library
        grid = Grid(
            number,
            run._table.workers,
            (run.lowered.warpgroups + 1) * 128,
            [self.parameter.data_ptr()],
            run._buffers(self.operands, self.arguments),
            run._promises(self.arguments),
        )
        if not run.at_once:
            run.faults += emulate(library, grid, run.seed)
            return
        run._copies = run._copies or [library.again() for _ in range(grid.blocks)]
        run.faults += emulate_beside(run._copies, grid, run.seed)


def prepare(runs: Sequence[EmulatedLaunch]) -> Library:
    """Compile the CUDA sources of all launches at once."""
    library = build([run.walk for run in runs], PREAMBLE, level="-O0")
    for number, run in enumerate(runs):
        run.library = library, number
    return library


def run_poisoned(run: EmulatedLaunch, inputs: Mapping[str, torch.Tensor], seed: int) -> torch.Tensor:
    """Return the first output of a run under a schedule; everything that the run writes is NaN before."""
    run.seed = seed
    outputs = {name: run.allocate_tensor(name) for name in run.plan.graph.outputs}
    for value in (*map(run.get_intermediate, run.plan.graph.intermediates), *outputs.values()):
        value.fill_(float("nan"))
    run.run({**inputs, **outputs})
    return outputs[run.plan.graph.outputs[0]]


def kinds_of_faults(run: EmulatedLaunch, inputs: Mapping[str, torch.Tensor], seeds: Iterable[int]) -> set[str]:
    """Return the kinds of faults of runs under these schedules, each with the counters of a first run."""
    for seed in seeds:
        with suppress(HangError, LaunchEndedError):
            run_poisoned(run, inputs, seed)
        run._reset()
    return {fault.kind for fault in run.faults}


def _count_panel_rows(op: Op) -> int:
    """Return the rows of a panel of pixels in a slot."""
    return min(int(op.param("BM")), -(-int(op.param("PIXELS")) // 8) * 8)


def _buffer(value: torch.Tensor, *, written: bool = False, watched: bool = False) -> Buffer:
    return Buffer(value.data_ptr(), value.nbytes, written, watched)


def _tensor_map(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    dtype: DType,
    *,
    steps: Sequence[int] = (),
    is_swizzled: bool = False,
    l2_fetch_bytes: int = 256,
) -> TensorMap:
    return TensorMap(
        tensor_map(address, shape, dtype.itemsize, box, swizzled=is_swizzled, strides=strides, steps=steps)
    )
