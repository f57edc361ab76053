"""What a command works on: the graph that its options describe, its inputs, and what is right in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.cli.console import BadInput, bad_input
from interlace.cli.machine import Machine
from interlace.cli.names import DispatchChoice, TileShape, Workload
from interlace.cli.options import FfnOptions, ScheduleOptions, WorkloadOptions
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.kernels.matmul import Activation, MatmulTile
from interlace.plan.plan import Dispatch
from interlace.plan.verify import Proof, verify
from interlace.planner.build import Choices, build
from interlace.policies.interleavings import OpAfterOp
from interlace.policies.orders import RowMajor
from interlace.policies.splits import Whole
from interlace.policies.sync import RowSync, SyncPolicy, TileSync
from interlace.workloads import MODELS, FFNShape, ffn, two_copies, two_matmuls
from interlace.workloads.checkpoint import Checkpoint, ffn_shape, round_to

Inputs = Mapping[str, NDArray[np.float32]]
#: (numpy or torch, tensors by name) -> the output; both have tanh and maximum of the same meaning.
Dense = Callable[[Any, Mapping[str, Any]], Any]
#: The verified plan of a dispatch, of None for the one that suits.
Proofs = Callable[[Dispatch | None], Proof]

_CPU_TILE = MatmulTile(16, 64, 64)  # small, so that small graphs still have several waves
_COPY_BLOCKS = 8  # a copy keeps few bytes in flight, so it takes many blocks to fill the memory pipe
_COPY_EXTENT = {True: 4096, False: 256}  # on a GPU, on a CPU


@dataclass(frozen=True)
class Problem:
    """One graph with its data.

    Attributes:
        graph: what is run.
        title: for people.
        facts: the workload as JSON.
        dense: the output without any tiling, as an independent check; None where only the kernels' references tell.
        stored: names in the checkpoint of those inputs that come from it.
        checkpoint: where they come from.
        policy: which suits the graph unless another is asked for.
        blocks: workers per SM that suit it on a GPU.
        dispatch: the only one that there is a plan for, None if any can be planned.
    """

    graph: Graph
    title: str
    facts: Mapping[str, Any]
    dense: Dense | None
    stored: Mapping[str, str]
    checkpoint: Checkpoint | None
    policy: SyncPolicy
    blocks: int = 1
    dispatch: Dispatch | None = None

    def inputs(self, seed: int) -> Inputs:
        """Every input, rounded to the graph's dtype and held in float32.

        Vectors and x are drawn from N(0, 1) and weights from N(0, 1 / fan-in), so that values keep their size through
        the graph; weights of a checkpoint are read from it.
        """
        random = np.random.default_rng(seed)
        drawn: dict[str, NDArray[np.float32]] = {}
        for name in self.graph.inputs:
            tensor = self.graph.tensor(name)
            if self.checkpoint is not None and name in self.stored:
                with bad_input():
                    values = self.checkpoint.read(self.stored[name])
            else:
                values = random.standard_normal(tensor.shape, np.float32)
                if name != "x" and len(tensor.shape) > 1:
                    values *= np.float32(tensor.shape[-1] ** -0.5)
            drawn[name] = round_to(values, tensor.dtype)
        return drawn

    def choices(self, schedule: ScheduleOptions, machine: Machine) -> Choices:
        """What the plan leaves open, with defaults filled in."""
        dispatch = schedule.dispatch or DispatchChoice(Dispatch.TICKET)
        return Choices(
            workers=schedule.workers or machine.spec.sms * (self.blocks if machine.cuda else 1),
            dispatch=dispatch.dispatch,
            assignment=dispatch.assignment,
            policy=schedule.policy or self.policy,
            order=schedule.order or RowMajor(),
            split=schedule.split or Whole(),
            interleaving=schedule.interleave or OpAfterOp(),
            chunk_waits=schedule.chunk_waits,
        )

    def proofs(self, schedule: ScheduleOptions, machine: Machine) -> Proofs:
        """The plans under the options, each built and verified once."""
        choices = self.choices(schedule, machine)

        @cache
        def of(dispatch: Dispatch) -> Proof:
            return verify(build(self.graph, replace(choices, dispatch=dispatch)))

        return lambda dispatch: of(dispatch or choices.dispatch)


def problem(options: WorkloadOptions, machine: Machine) -> Problem:
    """The problem that the options describe; small on a CPU unless they say otherwise.

    Raises:
        BadInput: options that do not go together, a checkpoint without the weights, impossible shapes, a plan file.
    """
    if isinstance(options.workload, Path):
        raise BadInput(
            f"{str(options.workload)!r} is a plan already; `interlace verify` proves it, `interlace run` runs it"
        )
    with bad_input():
        if options.workload is Workload.FFN:
            return _ffn(options, machine)
        if options.workload is Workload.TWO_MATMULS:
            return _two_matmuls(options, machine)
        return _two_copies(options, machine)


def _ffn(options: WorkloadOptions, machine: Machine) -> Problem:
    checkpoint, stored, dtype = None, {}, options.dtype or bf16
    if options.checkpoint is not None:
        _refuse(options, "a checkpoint, which fixes the shape", "model", "hidden", "ffn", "gated")
        if options.up is None or options.down is None:
            raise BadInput(
                "--checkpoint needs --up NAME and --down NAME, and --gate NAME if the FFN is gated"
            )
        checkpoint = Checkpoint.open(options.checkpoint)
        shape, found = ffn_shape(checkpoint, options.up, options.down, options.gate, options.activation)
        dtype = options.dtype or found
        stored = {"w_up": options.up, "w_down": options.down} | (
            {"w_gate": options.gate} if options.gate else {}
        )
    else:
        for name in ("up", "down", "gate"):
            if getattr(options, name) is not None:
                raise BadInput(f"--{name} names a weight of a checkpoint; pass --checkpoint FILE too")
        shape = varied(_widths(options, machine), options.gated, options.activation)
    check_gate(shape)
    m = options.m or 16
    up, down = _tiles(options, machine, m, shape)

    def dense(xp: Any, t: Mapping[str, Any]) -> Any:
        hidden = t["x"] @ t["w_up"].T
        if shape.gated:
            hidden = _activate(xp, Activation.SILU, t["x"] @ t["w_gate"].T) * hidden
        else:
            hidden = _activate(xp, shape.activation, hidden)
        return hidden @ t["w_down"].T

    graph = ffn(m, shape, dtype, up, down)
    checkpoint_name = str(options.checkpoint) if options.checkpoint else None
    facts = {"name": "ffn", "m": m, **ffn_facts(shape, dtype), "checkpoint": checkpoint_name}
    kind = "gated FFN" if shape.gated else "FFN"
    title = f"{kind}, {m} tokens, {shape.hidden} to {shape.ffn} to {shape.hidden}, {dtype}"
    return Problem(graph, title, facts, dense, stored, checkpoint, RowSync())


def varied(shape: FFNShape, gated: bool | None, activation: Activation | None) -> FFNShape:
    """A shape with another gate or activation, where asked for; a gate brings SiLU with it."""
    if gated is not None and gated != shape.gated:
        shape = replace(shape, gated=gated)
        shape = replace(shape, activation=Activation.SILU) if gated else shape
    return shape if activation is None else replace(shape, activation=activation)


def one_ffn(options: FfnOptions) -> tuple[FFNShape, DType]:
    """The FFN that options describe, llama3-8b's in bf16 unless they say otherwise.

    Raises:
        BadInput: a gated FFN has another activation than SiLU.
    """
    shape = options.model or MODELS["llama3-8b"]
    shape = replace(shape, hidden=options.hidden or shape.hidden, ffn=options.ffn or shape.ffn)
    shape = varied(shape, options.gated, options.activation)
    check_gate(shape)
    return shape, options.dtype or bf16


def ffn_facts(shape: FFNShape, dtype: DType) -> dict[str, Any]:
    """An FFN as JSON, whatever its number of tokens."""
    return {
        "hidden": shape.hidden,
        "ffn": shape.ffn,
        "gated": shape.gated,
        "activation": shape.activation.value,
        "dtype": dtype.name,
    }


def ffn_title(shape: FFNShape, dtype: DType) -> str:
    """An FFN for people, whatever its number of tokens."""
    kind = "gated FFN" if shape.gated else "FFN"
    return f"{kind}, {shape.hidden} to {shape.ffn} to {shape.hidden}, {dtype}"


def check_gate(shape: FFNShape) -> None:
    """Raise BadInput if a gated FFN has another activation than SiLU."""
    if shape.gated and shape.activation is not Activation.SILU:
        raise BadInput(f"a gated FFN uses silu, not {shape.activation.value}; drop --activation or the gate")


def _two_matmuls(options: WorkloadOptions, machine: Machine) -> Problem:
    _refuse(options, "two-matmuls", "gated", "activation", "checkpoint", "up", "down", "gate")
    shape, m, dtype = _widths(options, machine), options.m or 16, options.dtype or bf16
    first, second = _tiles(options, machine, m, shape)
    graph = two_matmuls(m, shape.hidden, shape.ffn, shape.hidden, dtype, first, second)
    facts = {"name": "two-matmuls", "m": m, "hidden": shape.hidden, "ffn": shape.ffn, "dtype": dtype.name}
    title = f"two matmuls, {m} rows, {shape.hidden} to {shape.ffn} to {shape.hidden}, {dtype}"
    return Problem(graph, title, facts, lambda xp, t: (t["x"] @ t["a"].T) @ t["b"].T, {}, None, RowSync())


def _two_copies(options: WorkloadOptions, machine: Machine) -> Problem:
    _refuse(options, "two-copies", "model", "ffn", "gated", "activation", "checkpoint", "up", "down", "gate")
    extent = _COPY_EXTENT[machine.cuda]
    m, n, dtype = options.m or extent, options.hidden or extent, options.dtype or bf16
    tile = options.tile or TileShape(64, 64)
    graph = two_copies(m, n, dtype, (tile.m, tile.n))
    facts = {"name": "two-copies", "m": m, "hidden": n, "dtype": dtype.name}
    return Problem(
        graph,
        f"two copies of {m} x {n}, {dtype}",
        facts,
        lambda xp, t: t["x"],
        {},
        None,
        TileSync(),
        _COPY_BLOCKS,
    )


def _widths(options: WorkloadOptions, machine: Machine) -> FFNShape:
    shape = options.model or MODELS["llama3-8b" if machine.cuda else "minilm"]
    return replace(shape, hidden=options.hidden or shape.hidden, ffn=options.ffn or shape.ffn)


def _tiles(
    options: WorkloadOptions, machine: Machine, m: int, shape: FFNShape
) -> tuple[MatmulTile, MatmulTile]:
    """Tiles of the two matmuls."""
    if options.tile is not None:
        tile = MatmulTile(options.tile.m, options.tile.n, options.tile.k)
        return tile, tile
    if not machine.cuda:
        return _CPU_TILE, _CPU_TILE
    return MatmulTile.heuristic(m), MatmulTile.heuristic(m)


def _refuse(options: WorkloadOptions, what: str, *unfit: str) -> None:
    """Options that would silently mean nothing are errors."""
    given = [f"--{name}" for name in unfit if getattr(options, name) is not None]
    if given:
        raise BadInput(f"{', '.join(given)} cannot be combined with {what}")


def _activate(xp: Any, activation: Activation, x: Any) -> Any:
    """The activation on NumPy or torch arrays, written apart from the one that tile bodies use."""
    if activation is Activation.SILU:
        return x * (0.5 * (1 + xp.tanh(0.5 * x)))  # x * sigmoid(x), without the overflow of exp
    if activation is Activation.GELU_TANH:
        return 0.5 * x * (1 + xp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    if activation is Activation.RELU:
        return x * (x > 0)
    return x


def input_bytes(graph: Graph) -> int:
    """Bytes of all inputs together."""
    return sum(graph.tensor(name).nbytes for name in graph.inputs)
