"""Proof by exploration that a rewritten kernel has no hazard, for given small extents.

For one tensor after the other, all reachable states of a block are visited (``explore``), with the events of that
tensor and the meetings of threads; leaving out the waits for other tensors allows more interleavings, never fewer. One
run of all tensors together then shows that every wait completes.

The model does not know tiles that share bytes (there ``smem`` relies on the meetings that the rewrite puts before each
first write), nor fences between proxies, which the rewrite places by rule; a store by TMA is read at once in it (what
the emitter awaits later, ``cuda/peepholes`` counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from interlace.core.errors import CountHazard, SharedBarrierHazard
from interlace.pipeline.agents import Agent, Arrival, Barrier, Begin, Event, Meet, Traces, Write, trace
from interlace.pipeline.explore import Explorer
from interlace.pipeline.ir import Kernel, Load
from interlace.pipeline.nest import blocks
from interlace.pipeline.traverse import walk


@dataclass(frozen=True)
class Explored:
    """What a proof looked at: blocks of the grid, and states over all of their tensors."""

    blocks: int
    states: int


def check_hazards(
    source: Kernel, kernel: Kernel, sizes: Mapping[str, int], of: Iterable[Mapping[str, int]] | None = None
) -> Explored:
    """Explores ``kernel``, the rewritten ``source``, with run-time extents ``sizes``: small ones, a few steps a ring.

    Args:
        of: values of the block loops' variables, for each block to look at; all blocks by default.

    Raises:
        HazardError: the subclass names the hazard, the message the tensor and the events that lead to it.
        PipelineError: the extents are too large to visit all states.
    """
    owners: dict[str, str] = {}
    for stmt in walk(kernel.body):
        if isinstance(stmt, Load) and stmt.barrier is not None:
            other = owners.setdefault(stmt.barrier.name, stmt.dst.tensor)
            if other != stmt.dst.tensor:
                raise SharedBarrierHazard(
                    f"kernel {kernel.name!r}: {stmt.barrier.name} counts bytes of {other!r} and {stmt.dst.tensor!r}; "
                    "give each tensor its own barriers"
                )
    seen: dict[object, int] = {}
    count = 0
    for values in blocks(kernel, sizes) if of is None else of:
        count += 1
        traces = trace(source, kernel, {**sizes, **values})
        same = _wherever(traces)
        if same not in seen:
            seen[same] = _explore_block(kernel.name, traces)
    return Explored(count, sum(seen.values()))


def _wherever(traces: Traces) -> object:
    """What a block does, wherever in the tensors: origins are numbered as they appear."""
    numbers: dict[object, int] = {}

    def number(tensor: str, origin: object) -> int:
        return numbers.setdefault((tensor, origin), len(numbers))

    contents = tuple((part, tuple(number(part[0], at) for at in origins)) for part, origins in traces.origins.items())
    readings = tuple(
        (at, tuple((r.tensor, r.slot, number(r.tensor, r.origin)) for r in some))
        for agent in traces.agents
        for at, some in agent.readings.items()
    )
    return contents, readings, tuple(tuple(agent.events) for agent in traces.agents)


def _explore_block(name: str, traces: Traces) -> int:
    _check_bytes(name, traces)
    states = 0
    for tensor in dict.fromkeys(traces.owners.values()):
        agents = [_project(agent, tensor, traces.owners) for agent in traces.agents]
        states += Explorer(name, tensor, agents, traces).explore()
    Explorer(name, "", traces.agents, traces).run_once()
    return states


def _check_bytes(name: str, traces: Traces) -> None:
    """Over each barrier's life, as many bytes are expected as are copied."""
    balance: dict[Barrier, int] = {}
    for event in (e for agent in traces.agents for e in agent.events):
        if isinstance(event, Arrival):
            balance[event.barrier] = balance.get(event.barrier, 0) + event.bytes
        elif isinstance(event, Begin) and event.barrier is not None:
            balance[event.barrier] = balance.get(event.barrier, 0) - event.bytes
    for (barrier, slot), left in balance.items():
        if left:
            raise CountHazard(
                f"kernel {name!r}, {traces.owners.get(barrier)!r}: {barrier}{{{slot}}} expects {abs(left)} bytes "
                f"{'more' if left > 0 else 'less'} than are copied; expect each copy's bytes once"
            )


def _project(agent: Agent, tensor: str, owners: dict[str, str]) -> Agent:
    """The agent's events for one tensor, and its meetings (those with nothing in between once)."""
    out = Agent(agent.name, agent.threads)
    for position, event in enumerate([*agent.events, None]):
        mine = [r for r in agent.readings.get(position, []) if r.tensor == tensor]
        if mine:
            out.readings.setdefault(len(out.events), []).extend(mine)
        if event is not None and _tensor(event, owners) in (tensor, None):
            out.events.append(event)
    return out


def _tensor(event: Event, owners: dict[str, str]) -> str | None:
    match event:
        case Meet():
            return None
        case Begin() | Write():
            return event.part[0]
        case _:
            return owners.get(event.barrier[0])
