"""A mixture of experts as one launch under several dispatches, against PyTorch and against our Triton bodies.

    python benchmarks/moe.py benchmarks/results/moe-h200.json --case mixtral-8x7b:16:balanced

Needs a Hopper GPU. A case is a preset, tokens and how they spread over experts. All variants run interleaved in CUDA
graphs on the same random weights, rotated past twice the L2, and are checked against float64 first. Rivals route,
sort, multiply by ``torch._grouped_mm`` and add up on the device, eager and compiled: as the workload is written, and
with gate and up stored as one operand. Cases share the GPUs and take turns. The record is written after each case.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from interlace.bench.gpus import on_gpus
from interlace.bench.problem import Problem
from interlace.bench.record import kept_rows, write_record
from interlace.bench.sources import launched
from interlace.bench.timing import rounds_us
from interlace.core.errors import InterlaceError
from interlace.deploy import Deployment, here, plan_graph
from interlace.executors.cuda_graph import CudaGraphExecutor
from interlace.executors.one_launch import OneLaunchExecutor
from interlace.plan.plan import Dispatch
from interlace.workloads import MoE
from interlace.workloads.moe import Routing

PROTOCOL = (
    "CUDA graphs, replayed with variants interleaved, median of 5 rounds, random weights in bf16 rotated past twice "
    "the L2, logits drawn once"
)
DISPATCHES = Dispatch.STATIC, Dispatch.TICKET, Dispatch.STEALING, Dispatch.QUEUE
_REPEATS = 5
_KEY = "preset", "tokens", "routing"


@dataclass(frozen=True)
class Case:
    """A preset and its problem."""

    preset: str
    work: MoE

    @property
    def key(self) -> tuple[str, int, str]:
        return self.preset, self.work.tokens, self.work.routing.value


def measure(case: Case) -> dict[str, Any]:
    """The row of a case."""
    import torch

    device, work = here(), case.work
    problem = Problem(work, device)
    graph = work.graph(device)
    row: dict[str, Any] = dict(zip(_KEY, case.key, strict=True))
    row |= {"workload": work.facts(), "floor_us": max(problem.bytes_us, problem.flops_us)}
    row |= {"pytorch_relative_error": problem.pytorch_error, "executors": {}, "left_out": {}}
    # Gate and up of an expert behind each other are one operand.
    joined = [{**each, "both": torch.cat([each["gate"], each["up"]], dim=1)} for each in problem.weights]
    ways: dict[str, Callable[[], None]] = {}
    for label, one, weights in (
        ("", lambda t: work.grouped(torch, t), problem.weights),
        (", joined", lambda t: work.grouped(torch, t, t["both"]), joined),
    ):
        ways[f"eager{label}"] = problem.every(one, weights)
        ways[f"compile{label}"] = problem.every(torch.compile(one, dynamic=False), weights)
        ways[f"compile{label}"]()  # compiles, which is no work for the GPU
    libraries = [*ways]
    deployment = Deployment(graph, device, OneLaunchExecutor)
    made: dict[str, Callable[[], Any]] = {
        "one launch": lambda: deployment.make(deployment.default),
        "CUDA graph of Triton bodies": lambda: CudaGraphExecutor(plan_graph(graph, device, CudaGraphExecutor)),
    }
    for dispatch in DISPATCHES:
        made[dispatch.value] = lambda dispatch=dispatch: OneLaunchExecutor(  # type: ignore[misc]
            plan_graph(graph, device, OneLaunchExecutor, dispatch=dispatch)
        )
    for name, make in made.items():
        try:
            executor = make()
            row["executors"][name] = {"relative_error": problem.check(executor)}
            ways[name] = problem.every(problem.run(executor))
        except InterlaceError as error:
            row["left_out"][name] = str(error)
    times = rounds_us(ways, _REPEATS, problem.runs).times
    row["libraries"] = {name: asdict(times[name]) for name in libraries}
    for name, told in row["executors"].items():
        told |= asdict(times[name])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", action="append", required=True, metavar="PRESET:TOKENS:ROUTING")
    parser.add_argument("--gpus", type=int, default=1, help="measure on so many GPUs at once")
    given = parser.parse_args()
    measures = launched(MoE.of({}, True).graph(here()))
    rows = kept_rows(given.path, measures)
    cases = []
    for asked in given.case:
        preset, tokens, routing = asked.split(":")
        cases.append(Case(preset, MoE.of({"tokens": int(tokens), "routing": Routing(routing)}, True, preset)))
    for case, row in on_gpus(measure, cases, given.gpus, -(-len(cases) // given.gpus)):
        rows = sorted([r for r in rows if _key(r) != case.key] + [row], key=_key)
        command = f"python benchmarks/moe.py benchmarks/results/{given.path.name}"
        command += "".join(f" --case {r['preset']}:{r['tokens']}:{r['routing']}" for r in rows)
        write_record(given.path, command, PROTOCOL, measures, {"rows": rows})
        print(f"{':'.join(map(str, case.key))}: floor {row['floor_us']:.0f} us", flush=True)
        for way, figures in {**row["libraries"], **row["executors"]}.items():
            error = f", error {figures['relative_error']:.1e}" if "relative_error" in figures else ""
            print(f"  {way:28} {figures['median_us']:8.1f} us{error}", flush=True)
        for way, reason in row["left_out"].items():
            print(f"  {way}: {reason}", flush=True)


def _key(row: Mapping[str, Any]) -> tuple[str, int, str]:
    preset, tokens, routing = (row[column] for column in _KEY)
    return str(preset), int(tokens), str(routing)


if __name__ == "__main__":
    main()
