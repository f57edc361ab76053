"""A step of a model in variants: memory of each slot or blocks, argmax or sampling, prompts aboard; with traces.

    python benchmarks/step_variants.py benchmarks/results/step-variants-h200.json --case llama3.2-1b:64:1060
    python benchmarks/step_variants.py - --case llama3.2-1b:16:1024 --chunks 0,112 --only blocks --trace

Needs a GPU. A case is a model, a batch and the positions of every sequence. Each variant is a launch of its own, as a
decoder builds it, on the same random weights: four steps in a CUDA graph, the median of 40 replays. Where a launch
samples, it is timed with greedy rows and with rows at temperature 0.8, ``top_k`` 50 and ``top_p`` 0.9. With a chunk,
the last sequence reads so many tokens of a prompt, and the others decode. ``--trace`` prints when the items of each op
began and ended, for a layer in the middle and for all that follows the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from llm import draw_weights
from script import format_command, make_parser, measure_jobs
from shapes import MODELS

from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.core.dtypes import bf16
from interlace.deploy import can_overlap, current_device, select_schedule
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.graph import Graph
from interlace.megakernel.options import RunOptions
from interlace.models.llama import PAGE_TOKENS, build_decode_graph
from interlace.planner.proof_cache import prove_schedule
from interlace.workloads.decode import build_rope_table

PROTOCOL = "four steps in a CUDA graph, median of 40 replays; random weights and caches in bf16, pages in random order"
_STEPS, _REPLAYS, _WARM = 4, 40, 3
_ROOM = 128  # more positions than a case has
_HOT = {"temperature": 0.8, "top_p": 0.9, "top_k": 50}
_COLD = {"temperature": 0.0, "top_p": 1.0, "top_k": 0}


@dataclass(frozen=True)
class Case:
    """Variants of a step.

    Attributes:
        model: name of the model.
        batch, context: sequences, and positions of each.
        chunks: prompt tokens aboard, 0 for none.
        caches: names of ``CACHES``.
        has_trace: True to trace each variant.
    """

    model: str
    batch: int
    context: int
    chunks: tuple[int, ...]
    caches: tuple[str, ...]
    has_trace: bool

    def __str__(self) -> str:
        return f"{self.model}:{self.batch}:{self.context}"


CACHES = "slots", "blocks"


def draw_tensors(torch: Any, graph: Graph, weights: Mapping[str, Any], case: Case, chunk: int) -> dict[str, Any]:
    """Return inputs and outputs of a step on the current GPU."""
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}
    tensors: dict[str, Any] = {}
    for name in (*graph.inputs, *graph.outputs):
        own = graph.tensor(name)
        if name in weights:
            tensors[name] = weights[name]
        elif name == "table":
            tensors[name] = torch.randperm(int(np.prod(own.shape)), device="cuda").int().view(own.shape)
        else:
            tensors[name] = torch.zeros(own.shape, dtype=dtypes[own.dtype.name], device="cuda")
            if name.endswith("_cache"):
                tensors[name].normal_()
    tensors["position"].fill_(case.context)
    if chunk:  # of the last sequence, which decodes no token of its own
        last = case.batch - 1
        tensors["sequence"][: case.batch] = torch.arange(case.batch)
        tensors["sequence"][last], tensors["sequence"][case.batch :] = -1, last
        tensors["position"][last], tensors["position"][case.batch :] = 0, torch.arange(chunk, device="cuda")
        tensors["wanted"].copy_(torch.arange(case.batch))
        tensors["wanted"][last] = case.batch + chunk - 1
    return tensors


def set_sampling(tensors: Mapping[str, Any], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        tensors[name].fill_(value)


def time_us(torch: Any, executor: MegakernelExecutor, tensors: Mapping[str, Any]) -> float:
    """Return the microseconds of a step."""
    for _ in range(_WARM):
        executor.run(tensors)
    executor.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(_STEPS):
            executor.run(tensors)
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / _STEPS)
    executor.synchronize()  # raises if a wait failed
    return float(np.median(times))


def trace_ops(executor: MegakernelExecutor, tensors: Mapping[str, Any], layer: int) -> list[dict[str, Any]]:
    """Return the times of the ops of a layer, and of those after all layers, from the first item of each of the two."""
    for _ in range(_WARM):
        executor.run(tensors)
    executor.synchronize()
    trace, found = executor.read_trace(), []
    after = [name for name in trace.ops if not name.startswith("layers.") and name != "embedding"]
    for names in ([name for name in trace.ops if name.startswith(f"layers.{layer}.")], after):
        items = {name: trace.op == trace.ops.index(name) for name in names}
        begin = min(int(trace.start_ns[own].min()) for own in items.values() if own.any())
        for name, own in items.items():
            start, end = ((times[own] - begin) / 1e3 for times in (trace.start_ns, trace.end_ns))
            busy = float(np.median(end - start))
            times = {"first_start_us": float(start.min()), "last_end_us": float(end.max()), "busy_us": busy}
            found.append({"op": name.rpartition(".")[2], "items": len(start), **times})
    return found


def measure(case: Case) -> list[dict[str, Any]]:
    """Return a row for each variant of a case, on the current GPU."""
    import torch

    shape, device = MODELS[case.model], current_device()
    weights = draw_weights(torch, shape, "cuda")
    capacity = -(-(case.context + _ROOM) // PAGE_TOKENS) * PAGE_TOKENS
    weights["rope"] = torch.from_numpy(build_rope_table(capacity, shape.head_dim)).float().cuda()
    rows = []
    for chunk, cache, has_sampling in product(case.chunks, case.caches, (False, True)):
        pages = case.batch * capacity // PAGE_TOKENS if cache == "blocks" else None
        more = {"pages": pages, "chunk": chunk, "has_sampling": has_sampling, "dtype": bf16}
        graph = build_decode_graph(shape, case.batch, capacity, device, **more)
        proof = prove_schedule(graph, select_schedule(graph, device, MegakernelExecutor))
        options = RunOptions(dependent_launch=can_overlap(MegakernelExecutor, proof.plan, device))
        tensors = draw_tensors(torch, graph, weights, case, chunk)
        row = {"model": case.model, "batch": case.batch, "context": case.context, "chunk": chunk, "cache": cache}
        executor = MegakernelExecutor(proof, options)
        if has_sampling:
            for name, values in (("greedy_us", _COLD), ("sampled_us", _HOT)):
                set_sampling(tensors, values)
                row[name] = time_us(torch, executor, tensors)
        else:
            row["argmax_us"] = time_us(torch, executor, tensors)
        if case.has_trace:
            traced = MegakernelExecutor(proof, RunOptions(dependent_launch=options.dependent_launch, trace=True))
            row["ops"] = trace_ops(traced, tensors, shape.layers // 2)
        rows.append(row)
        del executor, tensors
        torch.cuda.empty_cache()
    return rows


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        times = ", ".join(f"{name.removesuffix('_us')} {row[name]:.0f}" for name in row if name.endswith("_us"))
        print(f"  chunk {row['chunk']}, {row['cache']}: {times} us", flush=True)
        for op in row.get("ops", ()):
            span = f"{op['first_start_us']:8.1f} to {op['last_end_us']:8.1f}"
            print(f"    {op['op']:18}{op['items']:6} items {span}, busy {op['busy_us']:6.2f}", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("record", help="file of the record, or - for none")
    parser.add_argument("--case", action="append", required=True, metavar="MODEL:BATCH:CONTEXT", help=", ".join(MODELS))
    parser.add_argument("--chunks", default="0", help="prompt tokens aboard, 0 for none")
    parser.add_argument("--only", choices=CACHES, help="one kind of cache")
    parser.add_argument("--trace", action="store_true", help="trace each variant")
    given = parser.parse_args()
    measures = list_launch_sources(build_decode_graph(MODELS["llama3.2-1b"], 1, 64, current_device(), chunk=16))
    path = Path(given.record)
    rows = [] if given.record == "-" else read_matching_rows(path, measures)
    chunks, caches = tuple(map(int, given.chunks.split(","))), (given.only,) if given.only else CACHES
    cases = []
    for text in given.case:
        model, batch, context = text.split(":")
        cases.append(Case(model, int(batch), int(context), chunks, caches, given.trace))
    for _, found in measure_jobs(measure, cases, str):
        print_rows(found)
        rows += found
        if given.record != "-":
            options = [*(f"--case {case}" for case in cases), f"--chunks {given.chunks}"]
            options += [f"--only {given.only}"] * bool(given.only) + ["--trace"] * given.trace
            write_record(path, format_command(path, *options), PROTOCOL, measures, {"rows": rows})


if __name__ == "__main__":
    main()
