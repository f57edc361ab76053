"""Decode steps over their bytes, for published dense models: microseconds of a step over the time that its bytes take.

    python benchmarks/step_bytes.py benchmarks/results/step-bytes-h200.json --draw 10
    python benchmarks/step_bytes.py benchmarks/results/step-bytes-h200.json --model qwen2.5-1.5b --model phi-3-mini

Needs a GPU. Models have published shapes and random weights in bf16; ``--draw`` takes so many of them at random, by
``--seed``. For each batch and context a decoder is built as an engine builds it, with blocks, and steps are enqueued
one after another as in a loop of ``Decoder.step``. The bytes are those of weights and of cached tokens, each read once
at the memory's rate. Several models share the GPU, each in a process of its own, and take turns at what is timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from llm import draw_weights
from script import format_command, format_error, make_parser, measure_jobs
from shapes import MODELS

from interlace.bench.gpu_lock import hold_gpu
from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.core.errors import InterlaceError
from interlace.deploy import current_device
from interlace.executors.gpu import find_spec
from interlace.models.llama import LlamaShape
from interlace.workloads import LLAMAS, build_decode_graph
from interlace.workloads.decode import build_rope_table

PROTOCOL = (
    "Decoder.step in a loop, greedy, blocks of 64 tokens, random weights and caches in bf16; median of 5 rounds of 20 "
    "steps by CUDA events; ratio: over weights and cached tokens read once at the memory's rate"
)
#: Models of 0.5 to 8 billion parameters with heads of 64 to 128 elements.
_DRAWABLE = sorted(
    name for name, shape in MODELS.items() if 64 <= shape.head_dim <= 128 and shape.layers * shape.hidden > 20_000
)
_WARM, _ROUNDS, _STEPS = 10, 5, 20
_PAGE = 64  # tokens
_LAST = 255  # more positions than a context that a decoder has room for


@dataclass(frozen=True)
class Case:
    """Measurements of a model.

    Attributes:
        name, shape: the model.
        steps: batch and context of each measurement.
    """

    name: str
    shape: LlamaShape
    steps: tuple[tuple[int, int], ...]


def measure_step(shape: LlamaShape, weights: Mapping[str, Any], batch: int, context: int) -> dict[str, Any]:
    """Return the figures of a model's step with so many sequences of so many cached tokens."""
    import torch

    from interlace.nn import Decoder

    capacity = -(-(context + _LAST) // _PAGE) * _PAGE
    rope = torch.from_numpy(build_rope_table(capacity, shape.head_dim)).cuda()
    blocks, begin = batch * capacity // _PAGE, time.monotonic()

    def build() -> Decoder:
        return Decoder.from_weights(shape, weights, rope, batch=batch, num_blocks=blocks)

    build()  # plans and compiles while other processes measure
    build_s = time.monotonic() - begin
    torch.cuda.empty_cache()  # its blocks, for which others may have no room
    with hold_gpu():
        decoder = build()
        for tensor in (*decoder.cache.k, *decoder.cache.v):
            tensor.normal_()
        decoder._slots.grow(dict.fromkeys(range(batch), context))
        for slot in range(batch):
            decoder._slots.activate(slot, context)
        for _ in range(_WARM):
            decoder.step()
        times, before = [], decoder.lengths[0]
        for _ in range(_ROUNDS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(_STEPS):
                decoder.step()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / _STEPS * 1e3)
        report, middle = decoder.explain(), (before + decoder.lengths[0]) / 2
        position_bytes = decoder.cache.position_bytes
        del decoder, tensor
        torch.cuda.empty_cache()
    moved = report.weight_bytes + batch * middle * position_bytes
    floor_us = moved / find_spec("cuda").dram_bytes_per_s * 1e6
    step_us = sorted(times)[_ROUNDS // 2]
    return {
        "batch": batch,
        "context": context,
        "step_us": step_us,
        "floor_us": floor_us,
        "ratio": step_us / floor_us,
        "build_s": build_s,
        "executor": report.executor,
    }


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a model, on the current GPU."""
    import torch

    weights = draw_weights(torch, case.shape, "cuda")
    row: dict[str, Any] = {"model": case.name, "steps": [], "left_out": {}}
    for batch, context in case.steps:
        try:
            row["steps"].append(measure_step(case.shape, weights, batch, context))
        except (InterlaceError, torch.OutOfMemoryError) as error:
            row["left_out"][f"{batch}:{context}"] = format_error(error)
    return row


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--model", action="append", default=[], metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--draw", type=int, default=0, help="models to draw at random")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    parser.add_argument("--steps", default="1:1024,33:1024,1:5000", help="BATCH:CONTEXT of each measurement")
    parser.add_argument("--share", type=int, default=5, help="processes that share a GPU")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no model begins")
    given = parser.parse_args()
    graph = build_decode_graph(LLAMAS["llama3.2-1b"], 1, _PAGE, current_device())
    measures = (*list_launch_sources(graph), "nn/decoder")
    rows = read_matching_rows(given.path, measures)
    drawn = random.Random(given.seed).sample(_DRAWABLE, given.draw)
    steps = tuple((int(batch), int(context)) for batch, context in (s.split(":") for s in given.steps.split(",")))
    # The largest first, so that no process is left with one at the end.
    names = sorted({*given.model, *drawn}, key=lambda name: -MODELS[name].layers * MODELS[name].hidden)
    cases = [Case(name, MODELS[name], steps) for name in names]
    for case, row in measure_jobs(measure, cases, lambda case: case.name, seconds=given.seconds, share=given.share):
        rows = sorted([r for r in rows if r["model"] != case.name] + [row], key=lambda r: str(r["model"]))
        options = [f"--model {r['model']}" for r in rows] + [f"--steps {given.steps}"]
        write_record(given.path, format_command(given.path, *options), PROTOCOL, measures, {"rows": rows})
        for found in row["steps"]:
            over, how = f"{found['ratio']:.2f} of {found['floor_us']:.0f} us", f"{found['executor']}, built in"
            what = f"  batch {found['batch']:2} at {found['context']}: {found['step_us']:7.0f} us, {over}"
            print(f"{what} ({how} {found['build_s']:.0f} s)", flush=True)
        for what, reason in row["left_out"].items():
            print(f"  left out: {what}: {reason}", flush=True)
    for batch, context in steps:
        ratios = [f["ratio"] for r in rows for f in r["steps"] if (f["batch"], f["context"]) == (batch, context)]
        if ratios:
            print(f"batch {batch} at {context}: mean {mean(ratios):.2f}, largest {max(ratios):.2f} of {len(ratios)}")


if __name__ == "__main__":
    main()
