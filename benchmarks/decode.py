"""Decode steps of whole models: every executor that can run one in time, and PyTorch's, each step in CUDA graphs.

    python benchmarks/decode.py benchmarks/results/decode-h200.json --case llama3.2-1b:1:1024 --case llama3.2-1b:16:1024

Needs a GPU. A case is a model of ``shapes.py``, a batch and the positions of every sequence. All
variants run interleaved on the same random weights, rotated past twice the L2, and are checked against float64 first;
rivals are eager PyTorch and torch.compile of ``workloads.decode``, in its default mode and, if asked for, by max-
autotune, and in other ways: with FlexAttention in place of SDPA, and with weights that multiply the same tokens joined
ahead. Cases share the GPUs, each in a process of its own, and take turns at what is timed. Of each executor the record
has the seconds of planning and proof, lowering, and compilation too, less where plans or binaries are kept from before,
and of the one launch the trace of a layer in the middle. The record is written after each case.
``--sampling`` times the launches that a decoder runs, which sample, too: with greedy rows, and with sampled ones.
``interlace bench decode`` adds other settings and transposed weights, which takes minutes for a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from script import format_command, format_error, make_cache_mask, make_parser, measure_jobs
from shapes import MODELS

from interlace.bench.gpu_lock import hold_gpu, lock_autotuning
from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.bench.workload import MODES
from interlace.core.devices import DeviceSpec
from interlace.core.errors import InterlaceError
from interlace.deploy import can_overlap, current_device, make_executor
from interlace.executors import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import CudaGraphExecutor, PdlExecutor
from interlace.megakernel.options import RunOptions
from interlace.models.forward_torch import FUSED_WEIGHTS
from interlace.plan.verify import Proof
from interlace.planner.proof_cache import prove_schedule
from interlace.workloads import Decode, build_decode_graph

_REPEATS = 5
PROTOCOL = (
    f"CUDA graphs of four steps or more, {describe_protocol(_REPEATS)}, random weights in bf16 rotated past twice the "
    "L2, caches written in place at one position"
)
EXECUTORS: tuple[type[DeviceExecutor], ...] = (MegakernelExecutor, PdlExecutor, CudaGraphExecutor)
_WARM = 6  # runs before the one that is traced
_KEY = "model", "batch", "context"


def moved_bytes(work: Decode) -> float:
    """Weights and caches that a step reads at least once: its floor."""
    model = work.model
    layer = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads) + 3 * model.hidden * model.ffn
    cache = 2 * work.batch * model.kv_heads * work.context * model.head_dim
    return float(work.dtype.itemsize * (model.layers * (layer + cache) + model.vocabulary * model.hidden))


def trace_layer(proof: Proof, dependent: bool, problem: BenchProblem, layer: int) -> list[dict[str, Any]]:
    """Trace one run after some others; return items of each op of a layer, and us from the layer's first item."""
    executor = MegakernelExecutor(proof, RunOptions(dependent_launch=dependent, trace=True))
    run = problem.make_run(executor)
    with hold_gpu():
        for n in range(_WARM):
            run({**problem.rest, **problem.weights[n % len(problem.weights)]})
        executor.synchronize()
    trace = executor.read_trace()
    mine = [(n, name) for n, name in enumerate(trace.ops) if name.startswith(f"layers.{layer}.")]
    begin = min(int(trace.start_ns[trace.op == n].min()) for n, _ in mine)
    ops = []
    for n, name in mine:
        start, end = ((column[trace.op == n] - begin) / 1e3 for column in (trace.start_ns, trace.end_ns))
        busy = float(np.median(end - start))
        times = {"first_start_us": float(start.min()), "last_end_us": float(end.max()), "busy_us": busy}
        ops.append({"op": name.rpartition(".")[2], "items": len(start), **times})
    return ops


Step = Callable[[Tensors], Tensors]
Way = tuple[Step, Sequence[Tensors] | None]  # a step, and the sets of weights that it takes if not the problem's


def as_written(work: Decode, problem: BenchProblem) -> Way:
    return problem.run_pytorch, None


def by_flex(work: Decode, problem: BenchProblem) -> Way:
    """FlexAttention, with a block mask that is made ahead, so that it passes over what is masked."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    mask = make_cache_mask(problem.rest["position"].long(), problem.rest["rope"].shape[0])

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    return lambda t: work.run_in_torch(torch, t, attend), None


def by_joined(work: Decode, problem: BenchProblem) -> Way:
    """One product in place of those of the same tokens, whose weights are there a second time."""
    return problem.run_pytorch, [{**weights, **join_weights(work, weights)} for weights in problem.weights]


def join_weights(work: Decode, weights: Tensors) -> dict[str, Any]:
    """The matrices of ``FUSED_WEIGHTS`` of all layers, and the biases beside them."""
    import torch

    found = {}
    for layer, (name, parts), what in product(range(work.layers), FUSED_WEIGHTS.items(), ("", "_bias")):
        each = [f"layers.{layer}.{part}{what}" for part in parts]
        if each[0] in weights:
            found[f"layers.{layer}.{name}{what}"] = torch.cat([weights[matrix] for matrix in each])
    return found


WAYS = {"": as_written, "FlexAttention": by_flex, "joined weights": by_joined}


#: Temperature, top_k and top_p of all rows, by how the tokens are sampled.
SAMPLING = {"sampling, greedy rows": (0.0, 0, 1.0), "sampling, sampled rows": (0.8, 50, 0.9)}


@dataclass(frozen=True)
class Case:
    """A model, its step, and how PyTorch is a rival: some of ``MODES``, each in some of ``WAYS``."""

    name: str
    work: Decode
    rivals: tuple[tuple[str, str], ...]
    has_sampling: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        return self.name, self.work.batch, self.work.context

    @property
    def label(self) -> str:
        return ":".join(map(str, self.key))


def build_sampling(work: Decode, problem: BenchProblem, device: DeviceSpec) -> dict[str, Step]:
    """Return runs of the step that samples, by the names of ``SAMPLING``."""
    import torch

    pages, more = work.pages, {"dtype": work.dtype, "has_sampling": True}
    graph = build_decode_graph(work.model, work.batch, work.cache_positions, device, pages=pages, **more)
    schedule = MegakernelExecutor.select_default(graph, device)
    executor = make_executor(graph, device, MegakernelExecutor, schedule)
    run, found = problem.make_run(executor), {}
    for way, (temperature, top_k, top_p) in SAMPLING.items():
        rows = {"temperature": temperature, "top_p": top_p}
        own = {name: torch.full((work.batch,), value, device="cuda") for name, value in rows.items()}
        own["top_k"] = torch.full((work.batch,), top_k, dtype=torch.int32, device="cuda")
        own["key"] = torch.arange(2 * work.batch, dtype=torch.int32, device="cuda").view(-1, 2)
        found[way] = lambda t, own=own: run({**t, **own})
        problem.check_function(found[way], way)
    return found


def measure(case: Case) -> dict[str, Any]:
    """The row of a case."""
    import torch

    device, work = current_device(), case.work
    problem = BenchProblem(work, device)
    graph = work.build_graph(device)
    row: dict[str, Any] = dict(zip(_KEY, case.key, strict=True))
    row |= {"workload": work.to_data(), "floor_us": moved_bytes(work) / device.dram_bytes_per_s * 1e6}
    row |= {"pytorch_relative_error": problem.pytorch_error, "executors": {}, "left_out": {}}
    ways = {}
    lock_autotuning()
    written = {way: WAYS[way](work, problem) for way in {way for _, way in case.rivals}}
    for mode, way in case.rivals:
        name = f"{mode}, {way}" if way else mode
        step, weights = written[way]
        as_asked = MODES[mode]
        rival = step if as_asked is None else torch.compile(step, mode=as_asked, dynamic=False)
        timed = problem.make_rotation(rival, weights)
        try:
            timed()  # torch.compile compiles, which is no work for the GPU but for what it times
        except RuntimeError as error:
            row["left_out"][name] = format_error(error)
        else:
            ways[name] = timed
    rivals = list(ways)
    for kind in EXECUTORS:
        try:
            moments = [time.perf_counter()]
            proof = prove_schedule(graph, kind.select_default(graph, device))
            moments.append(time.perf_counter())
            executor = kind(proof, RunOptions(dependent_launch=can_overlap(kind, proof.plan, device)))
            moments.append(time.perf_counter())
            for launch in executor.build_launches():
                launch.compile()
            moments.append(time.perf_counter())
            spans = (end - begin for begin, end in pairwise(moments))
            seconds = dict(zip(("plan_and_proof_s", "lowering_s", "compile_s"), spans, strict=True))
            row["executors"][kind.name] = {"relative_error": problem.check(executor), **seconds}
            ways[kind.name] = problem.make_rotation(problem.make_run(executor))
        except InterlaceError as error:
            row["left_out"][kind.name] = str(error)
    samplers = build_sampling(work, problem, device) if case.has_sampling else {}
    ways |= {way: problem.make_rotation(run) for way, run in samplers.items()}
    times = time_rounds(ways, _REPEATS, problem.runs).times
    if MegakernelExecutor.name in row["executors"]:
        proof = prove_schedule(graph, MegakernelExecutor.select_default(graph, device))
        dependent = can_overlap(MegakernelExecutor, proof.plan, device)
        row["layer"] = trace_layer(proof, dependent, problem, work.layers // 2)
    row["sampling"] = {name: asdict(times[name]) for name in samplers}
    row["libraries"] = {name: asdict(times[name]) for name in rivals}
    for name, told in row["executors"].items():
        told |= asdict(times[name])
    return row


def _key(row: Mapping[str, Any]) -> tuple[str, int, int]:
    name, batch, context = (row[column] for column in _KEY)
    return str(name), int(batch), int(context)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", action="append", required=True, metavar="MODEL:BATCH:CONTEXT", help=", ".join(MODELS))
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--max-autotune", action="store_true", help="torch.compile so too, which takes minutes")
    parser.add_argument("--all-ways", action="store_true", help="what is compiled in other ways too; see above")
    parser.add_argument("--sampling", action="store_true", help="time the launches that sample too")
    parser.add_argument("--gpus", type=int, default=1, help="measure on so many GPUs at once")
    given = parser.parse_args()
    measures = list_launch_sources(Decode.from_fields({}, True).build_graph(current_device()))
    rows = read_matching_rows(given.path, measures)
    modes = (*["compile"] * (not given.no_compile), *["max-autotune"] * given.max_autotune)
    rivals = (("eager", ""), *product(modes, WAYS if given.all_ways else [""]))
    cases = []
    for asked in given.case:
        name, batch, context = asked.split(":")
        fields = {"batch": int(batch), "context": int(context)}
        work = Decode.from_fields({**vars(MODELS[name]), **fields}, True)
        cases.append(Case(name, work, rivals, given.sampling))
    share = -(-len(cases) // given.gpus)
    for case, row in measure_jobs(measure, cases, lambda case: case.label, gpus=given.gpus, share=share):
        rows = sorted([r for r in rows if _key(r) != case.key] + [row], key=_key)
        options = ["--max-autotune"] * given.max_autotune + ["--all-ways"] * given.all_ways
        options += ["--sampling"] * given.sampling
        options += [f"--case {r['model']}:{r['batch']}:{r['context']}" for r in rows]
        command = format_command(given.path, *options)
        write_record(given.path, command, PROTOCOL, measures, {"rows": rows})
        told = {**row["libraries"], **row["executors"], **row["sampling"]}
        error = row["pytorch_relative_error"]
        print(f"  floor {row['floor_us']:.0f} us, error of PyTorch {error:.1e}", flush=True)
        for way, figures in told.items():
            error = f", error {figures['relative_error']:.1e}" if "relative_error" in figures else ""
            print(f"  {way:22} {figures['median_us']:8.1f} us{error}", flush=True)
        for way, reason in row["left_out"].items():
            print(f"  {way}: {reason}", flush=True)


if __name__ == "__main__":
    main()
