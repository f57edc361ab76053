"""CuSync's four benchmarks: each policy under each executor that takes one, the plan of the rules, and PyTorch.

    python benchmarks/cusync.py benchmarks/results/cusync-h200.json --seconds 500
    python benchmarks/cusync.py benchmarks/results/cusync-h200.json --seconds 500 --update      go on where that stopped
    python benchmarks/cusync.py benchmarks/results/cusync-h200.json --case mlp:gpt3:1792:0

Needs a Hopper GPU. A case is a family (``mlp``, ``attention``, ``conv-pair``, ``conv-chain``), a model or channels,
rows or images, and cached positions. ``cusync_cases.py`` has them, ``rivals/cusync.json`` CuSync's published times.

The same Triton bodies run op by op (a CUDA graph of launches, or dependent launches), as one kernel per stream with
semaphores between them, which is CuSync's way, and as one persistent kernel. The megakernel runs its own bodies: under
a policy with semaphores alone, and as planned, as ``autoplan`` makes it, with LL hand-offs. Each runs in its default
tiling. PyTorch is eager, torch.compile and max-autotune, with weights as they are, transposed, and for attention
joined; the fastest counts, picked on other rounds than those reported. Cases run in an order in which any beginning
covers all families and sizes. See ``uneven.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import uneven
from cusync_cases import POLICIES, AttentionLayer, list_cases, rank_cases
from script import format_error
from uneven import Case

from interlace.bench.gpu_lock import hold_gpu, lock_autotuning
from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.timing import describe_protocol, time_medians, time_rounds
from interlace.bench.workload import MODES
from interlace.core.devices import DeviceSpec
from interlace.deploy import can_overlap, current_device, select_schedule
from interlace.executors import SINGLE_LAUNCH_EXECUTORS, DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import CudaGraphExecutor, PdlExecutor
from interlace.graph.graph import Graph
from interlace.megakernel.options import RunOptions
from interlace.planner.proof_cache import prove_schedule
from interlace.policies.schedule import Schedule
from interlace.policies.sync import SyncPolicy, TileSync
from interlace.policies.tiling import encode_tilings, format_tilings

REPEATS = 5
#: Name of the launches op by op, and of the plan that the rules make.
LAUNCHES, PLANNED = "launches", "as planned"
#: Executors that synchronise tiles, by their names in the record.
SYNCHRONISED: dict[str, type[DeviceExecutor]] = {
    "streams": SemaphoreStreamsExecutor,
    "persistent": PersistentTicketExecutor,
    "megakernel": MegakernelExecutor,
}
PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(REPEATS)}, random inputs in bf16, weights rotated past twice "
    "the L2; errors against float64 at most 1.5 times PyTorch's; each of our columns in its default tiling"
)
MEASURES = ("deploy", "workloads/ffn.py")


@dataclass(frozen=True)
class Variant:
    """An executor of a column.

    Attributes:
        has_ll: False to hand off by semaphores alone.
    """

    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]
    schedule: Schedule
    has_ll: bool = True

    @property
    def tiling(self) -> str:
        return f"{self.executor.name}, {format_tilings(self.schedule.op_tilings)}"

    def make_executor(self) -> DeviceExecutor:
        """Return an executor that is ready to run. Raises what the executors raise."""
        proof = prove_schedule(self.graph, self.schedule)
        overlaps = can_overlap(self.executor, proof.plan, self.device)
        return self.executor(proof, RunOptions(dependent_launch=overlaps, ll_tensors=None if self.has_ll else ()))


def list_variants(
    graph: Graph, device: DeviceSpec, policies: Sequence[SyncPolicy]
) -> tuple[dict[str, list[Variant]], dict[str, str]]:
    """Return the variants of each column, and the reason for each column that has none."""
    found: dict[str, list[Variant]] = {LAUNCHES: []}
    left_out: dict[str, str] = {}
    for kind in (CudaGraphExecutor, PdlExecutor):
        reason = kind.fallback_reason(graph, device)
        found[LAUNCHES] += [] if reason else [_select_variant(graph, device, kind, TileSync())]
        if reason:
            left_out[LAUNCHES] = reason
    for (name, kind), policy in product(SYNCHRONISED.items(), policies):
        column, reason = f"{name}, {policy}", kind.fallback_reason(graph, device)
        found[column] = [] if reason else [_select_variant(graph, device, kind, policy)]
        if reason:
            left_out[column] = reason
    able = [kind for kind in SINGLE_LAUNCH_EXECUTORS if kind.fallback_reason(graph, device) is None]
    found[PLANNED] = [Variant(graph, device, kind, select_schedule(graph, device, kind)) for kind in able[:1]]
    return {column: variants for column, variants in found.items() if variants}, left_out


def _select_variant(graph: Graph, device: DeviceSpec, kind: type[DeviceExecutor], policy: SyncPolicy) -> Variant:
    """Return an executor under a policy, in its default tiling."""
    schedule = replace(kind.select_default(graph, device), policy=policy)
    return Variant(graph, device, kind, schedule, has_ll=kind is not MegakernelExecutor)


@dataclass
class Contest:
    """Functions that are timed together.

    Attributes:
        calls: functions by name, each of ``problem.runs`` runs.
        errors: relative errors by name.
        columns: names of the functions of each column.
        left_out: reason of each column that has no function, as far as one failed.
    """

    problem: BenchProblem
    calls: dict[str, Callable[[], Any]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, column: str, name: str, make: Callable[[], tuple[float, Callable[[], Any]]]) -> None:
        """Add a function whose result is right and that can be captured; note why if it is not."""
        try:
            error, call = make()
            time_medians({name: call}, 1)  # what cannot be captured may not end what can
        except Exception as reason:  # noqa: BLE001  whatever it is, the others go on
            self.left_out.setdefault(column, format_error(reason))
            return
        self.calls[name], self.errors[name] = call, error
        self.columns.setdefault(column, []).append(name)

    def add_variant(self, column: str, variant: Variant) -> None:
        """Add an executor."""

        def make() -> tuple[float, Callable[[], Any]]:
            executor, problem = variant.make_executor(), self.problem
            for launch in executor.build_launches({**problem.rest, **problem.weights[0], **problem.outputs}):
                launch.compile()
            return problem.check(executor), problem.make_rotation(problem.make_run(executor))

        self.add(column, f"{column}: {variant.tiling}", make)

    def add_library(self, name: str, mode: str | None, weights: Sequence[Tensors]) -> None:
        """Add PyTorch in one mode, with weights stored in one way."""

        def make() -> tuple[float, Callable[[], Any]]:
            import torch

            run: Any = self.problem.run_pytorch
            if mode is not None:
                run = torch.compile(run, mode=mode, dynamic=False)
                self.problem.run_once(run, weights)
            return self.problem.check_function(run, name, weights), self.problem.make_rotation(run, weights)

        self.add(name, name, make)


def store_weights(problem: BenchProblem) -> dict[str, Sequence[Tensors]]:
    """Return the sets of weights as they are, transposed, and joined, by the suffix of a library's name."""
    with hold_gpu():
        stored: dict[str, Sequence[Tensors]] = {
            "": problem.weights,
            ", transposed weights": problem.transpose_weights(),
        }
        if isinstance(problem.workload, AttentionLayer):
            import torch

            stored[", joined weights"] = [
                {**each, "w_qkv": torch.cat([each[f"w_{name}"] for name in "qkv"])} for each in problem.weights
            ]
    return {suffix: weights for suffix, weights in stored.items() if weights}


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    device, work = current_device(), case.work
    lock_autotuning()
    problem = BenchProblem(work, device)
    contest = Contest(problem)
    variants, left_out = list_variants(work.build_graph(device), device, POLICIES[str(dict(case.key)["family"])])
    for (mode, option), (suffix, weights) in product(MODES.items(), store_weights(problem).items()):
        contest.add_library(mode + suffix, option, weights)
    by_name: dict[str, Variant] = {}
    for column, each in variants.items():
        for variant in each:
            by_name[f"{column}: {variant.tiling}"] = variant
            contest.add_variant(column, variant)
    compute_bound = problem.flops_us > problem.bytes_us
    rounds = time_rounds(contest.calls, REPEATS, problem.runs, read_clocks=compute_bound)
    left_out |= {column: reason for column, reason in contest.left_out.items() if column not in contest.columns}
    ways: dict[str, Any] = {}
    for column, names in contest.columns.items():
        best = rounds.find_fastest(names)
        ways[column] = asdict(rounds.times[best]) | {"picked_us": rounds.picking_us[best]}
        ways[column]["relative_error"] = contest.errors[best]
        if rounds.clocks is not None:
            ways[column]["sm_mhz"] = rounds.clocks.sm_mhz.get(best)
        if best in by_name:
            schedule = by_name[best].schedule
            ways[column] |= {"executor": by_name[best].executor.name, "policy": str(schedule.policy)}
            ways[column]["setting"] = encode_tilings(schedule.op_tilings)
    return {
        **dict(case.key),
        "workload": work.to_data(),
        "bytes_us": problem.bytes_us,
        "flops_us": problem.flops_us,
        "pytorch_relative_error": problem.pytorch_error,
        "ways": ways,
        "left_out": left_out,
        "watts": None if rounds.clocks is None else rounds.clocks.watts,
    }


main = partial(uneven.main, __doc__, PROTOCOL, list_cases(), measure, MEASURES, rank_cases(list_cases()))

if __name__ == "__main__":
    main()
