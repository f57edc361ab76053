"""Causal attention of whole prompts with its output product: our executors against PyTorch, each in CUDA graphs.

    python benchmarks/prefill.py benchmarks/results/prefill-h200.json --seconds 90

Needs a GPU. Rivals are ``scaled_dot_product_attention`` by FlashAttention and by cuDNN, each with ``linear`` (cuBLAS)
behind it. All variants of a case run interleaved on the same random inputs, rotated past twice the L2, and the first
and last rows of every prompt are checked against float64 first. Cases follow one another until the seconds are spent;
the record is written after each, and a later call takes those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from script import format_command, format_error, make_parser, measure_jobs

from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.core.errors import InterlaceError
from interlace.deploy import current_device, make_executor
from interlace.executors import DeviceExecutor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import CudaGraphExecutor, PdlExecutor
from interlace.workloads import PrefillAttention

_REPEATS = 5
PROTOCOL = (
    f"CUDA graphs of several runs each, {describe_protocol(_REPEATS)}, random inputs in bf16 rotated past twice the L2"
)
EXECUTORS: tuple[type[DeviceExecutor], ...] = (
    MegakernelExecutor,
    CudaGraphExecutor,
    PdlExecutor,
    SemaphoreStreamsExecutor,
    PersistentTicketExecutor,
)
#: Model, prompts, tokens of each.
Case = tuple[str, int, int]
#: All cases.
CASES: tuple[Case, ...] = tuple(
    (model, batch, tokens)
    for batch, tokens in ((1, 2048), (1, 512), (8, 512), (1, 8192), (8, 2048), (8, 8192))
    for model in ("llama3.1-8b", "llama3.2-1b")
)
_CHECKED = 64  # rows at either end of each prompt


def rivals(torch: Any, work: PrefillAttention) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """The workload's own PyTorch under each backend that has a kernel of its own."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def by(backend: Any) -> Callable[[dict[str, Any]], Any]:
        def run(tensors: dict[str, Any]) -> Any:
            with sdpa_kernel(backend):
                return work.run_dense(torch, tensors)["out"]

        return run

    return {"flash + cuBLAS": by(SDPBackend.FLASH_ATTENTION), "cuDNN + cuBLAS": by(SDPBackend.CUDNN_ATTENTION)}


def error(torch: Any, work: PrefillAttention, out: Any, tensors: dict[str, Any]) -> float:
    """Relative, against float64, over the rows at both ends of each prompt."""
    count, d = min(_CHECKED, work.tokens), work.head_dim
    rows = sorted({*range(count), *range(work.tokens - count, work.tokens)})
    wrong = right = 0.0
    for b in range(work.batch):
        mine = slice(b * work.tokens, (b + 1) * work.tokens)
        q, k, v = (tensors[name][mine].view(work.tokens, -1, d).transpose(0, 1).double() for name in "qkv")
        k, v = (each.repeat_interleave(work.heads // work.kv_heads, 0) for each in (k, v))
        of = torch.tensor(rows, device=q.device)
        scores = q[:, of] @ k.transpose(1, 2) / d**0.5
        scores.masked_fill_(torch.arange(work.tokens, device=q.device) > of[:, None], float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(rows), -1)
        gold = attended @ tensors["o"].double().T
        wrong += float((out[mine][of].double() - gold).square().sum())
        right += float(gold.square().sum())
    return float((wrong / right) ** 0.5)


def describe(case: Case) -> str:
    """Return a case's name."""
    model, batch, tokens = case
    return f"{model}, {batch} x {tokens} tokens"


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    import torch

    model, batch, tokens = case
    work = PrefillAttention.from_fields({"batch": batch, "tokens": tokens}, True, model)
    device = current_device()
    graph = work.build_graph(device)
    random = torch.Generator("cuda").manual_seed(0)

    def draw_input(name: str) -> Any:
        value = torch.randn(graph.tensor(name).shape, generator=random, device="cuda")
        return (value / value.shape[-1] ** 0.5 if name == "o" else value).bfloat16()

    names = [name for name in graph.inputs if name != "first"]
    nbytes = sum(graph.tensor(name).nbytes for name in (*names, "out"))
    first = torch.from_numpy(work.make_inputs(0)["first"]).to("cuda", torch.int32)
    sets = [{"first": first, **{n: draw_input(n) for n in names}} for _ in range(1 + 2 * device.l2_bytes // nbytes)]
    outs = [torch.empty(graph.tensor("out").shape, dtype=torch.bfloat16, device="cuda") for _ in sets]
    runs = len(sets) * max(1, round(2e3 / (work.flops / device.flops_per_s(work.dtype) * 1e6) / len(sets)))
    row: dict[str, Any] = {"model": model, "batch": batch, "tokens": tokens, "workload": work.to_data()}
    row |= {"flops": work.flops, "errors": {}, "left_out": {}}
    ways: dict[str, Callable[[], None]] = {}

    def every(run: Callable[[dict[str, Any], Any], Any]) -> Callable[[], None]:
        def call() -> None:
            for n in range(runs):
                run(sets[n % len(sets)], outs[n % len(sets)])

        return call

    def take(name: str, run: Callable[[dict[str, Any], Any], Any], result: Callable[[], Any]) -> None:
        row["errors"][name] = error(torch, work, result(), sets[0])
        ways[name] = every(run)

    for name, function in rivals(torch, work).items():
        try:
            take(name, lambda t, _, f=function: f(t), lambda f=function: f(sets[0]))
        except RuntimeError as problem:
            row["left_out"][name] = format_error(problem)
    for kind in EXECUTORS:
        try:
            executor = make_executor(graph, device, kind, kind.select_default(graph, device))

            def run(t: dict[str, Any], out: Any, executor: DeviceExecutor = executor) -> None:
                executor.run({**t, "out": out})

            def result(run: Callable[[dict[str, Any], Any], None] = run) -> Any:
                outs[0].fill_(float("nan"))
                run(sets[0], outs[0])
                return outs[0]

            take(kind.name, run, result)
        except InterlaceError as problem:
            row["left_out"][kind.name] = str(problem)
    row["times"] = {name: asdict(timing) for name, timing in time_rounds(ways, _REPEATS, runs).times.items()}
    return row


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=90.0, help="start no case later than this")
    given = parser.parse_args()
    measures = list_launch_sources(PrefillAttention.from_fields({}, True).build_graph(current_device()))
    rows = read_matching_rows(given.path, measures)
    known = {(row["model"], row["batch"], row["tokens"]) for row in rows}
    left = [case for case in CASES if case not in known]
    for _, row in measure_jobs(measure, left, describe, seconds=given.seconds):
        rows.append(row)
        write_record(given.path, format_command(given.path), PROTOCOL, measures, {"rows": rows})
        for way, figures in row["times"].items():
            rate = row["flops"] / figures["median_us"] / 1e6
            print(f"  {way:20} {figures['median_us']:9.1f} us {rate:6.0f} TFLOP/s, error {row['errors'][way]:.1e}")
        for way, reason in row["left_out"].items():
            print(f"  {way}: {reason}")


if __name__ == "__main__":
    main()
