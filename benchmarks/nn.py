"""The modules of ``interlace.nn`` against the better of eager PyTorch and torch.compile, on FFNs of public models.

    python benchmarks/nn.py benchmarks/results/nn-h200.json --seconds 100
    python benchmarks/nn.py benchmarks/results/nn-h200.json --seconds 100 --update      go on where that stopped

Needs a Hopper GPU. Each FFN is timed back to back and in a layer, x + ffn(rms_norm(x) * gain), all variants in CUDA
graphs replayed interleaved, weights rotated past twice the L2. In a layer the module too may be part of what
torch.compile compiles, and each side counts with the faster of its two ways, picked on other rounds than those
reported. Beside it stands the module that is the whole layer, with the norm and the sum in it, likewise. The record is
written after each row, and rows come in an order in which any beginning says most. As many rows are under way as there
are CPUs; whatever is timed has its GPU alone.

    python benchmarks/nn.py launches.json --launches

``--launches``: the modules run a launch in any case, on as many tokens as there are, of the models that the table which
ships has, those that are whole layers up to as many tokens as they may; beside them PyTorch's ops with a fused gate.
``choose.py --table`` makes a table of that.

    python benchmarks/nn.py benchmarks/results/nn-drawn-h200.json --seed 1 --rows 48

``--seed`` draws rows at random instead: any of the models, its network shared by 1, 2, 4 or 8 GPUs, 1 to 1,000 tokens.
Then the launch of exactly so many tokens is timed too, whatever the module runs, and beside PyTorch's other ways
torch.compile's max-autotune.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from script import format_command, make_parser, measure_jobs

from interlace.bench.gpu_lock import lock_autotuning
from interlace.bench.gpus import count_processes
from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.bench.workload import MODES
from interlace.deploy import Choice, choose, choose_launch_rows, current_device, make_executor
from interlace.deploy.store import CacheEntry, store_cached
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.matmul import Activation
from interlace.workloads.ffn import FeedForward, FFNShape, ffn

MEASURES = (
    "core/devices",
    "csrc",
    "deploy",
    "executors/device.py",
    "executors/megakernel.py",
    "megakernel/parts.py",
    "megakernel/table.py",
    "kernels/abi",
    "kernels/cuda",
    "kernels/gated.py",
    "kernels/gelu.py",
    "kernels/matmul",
    "kernels/primitives",
    "megakernel",
    "nn/choice.py",
    "nn/instances.py",
    "nn/op.py",
    "nn/plain.py",
    "planner/build.py",
    "planner/predict.py",
    "planner/retile.py",
    "planner/waits.py",
    "policies",
    "sim",
)
_REPEATS = 5
PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(_REPEATS)}, bf16, weights rotated past twice the L2; alone: "
    "back to back; layer: x + ffn(rms_norm(x) * gain); whole: the module has all of that; ratio: the best of eager "
    "PyTorch and torch.compile (static shapes; default mode, of drawn rows max-autotune, too) over the module, median "
    "of those of the rounds; rows are compiled beside each other, and what is timed has the GPU alone"
)
GATED, GELU, RELU = (Activation.SILU, True), (Activation.GELU_TANH, False), (Activation.RELU, False)
#: The table that the module chooses by has half of them; the others are beside it.
MODELS = {
    "llama3-8b": FFNShape(4096, 14336, *GATED),
    "qwen2.5-7b": FFNShape(3584, 18944, *GATED),
    "qwen2.5-0.5b": FFNShape(896, 4864, *GATED),
    "phi-2": FFNShape(2560, 10240, *GELU),
    "gpt2-xl": FFNShape(1600, 6400, *GELU),
    "mistral-nemo-12b": FFNShape(5120, 14336, *GATED),
    "llama3.2-1b": FFNShape(2048, 8192, *GATED),
    "stablelm-3b": FFNShape(2560, 6912, *GATED),
    "llama3-70b": FFNShape(8192, 28672, *GATED),
    "gpt-j-6b": FFNShape(4096, 16384, *GELU),
    "opt-1.3b": FFNShape(2048, 8192, *RELU),
    "yi-34b": FFNShape(7168, 20480, *GATED),
    "falcon-7b": FFNShape(4544, 18176, *GELU),
    "qwen2.5-3b": FFNShape(2048, 11008, *GATED),
    "gpt-neox-20b": FFNShape(6144, 24576, *GELU),
    "internlm2-20b": FFNShape(6144, 16384, *GATED),
}
#: What else the table has.
OTHERS = {
    "smollm2-135m": FFNShape(576, 1536, *GATED),
    "llama2-7b": FFNShape(4096, 11008, *GATED),
    "opt-6.7b": FFNShape(4096, 16384, *RELU),
    "qwen2.5-1.5b": FFNShape(1536, 8960, *GATED),
    "starcoder": FFNShape(6144, 24576, *GELU),
    "qwen2.5-32b": FFNShape(5120, 27648, *GATED),
    "llama3.2-3b": FFNShape(3072, 8192, *GATED),
    "llama2-13b": FFNShape(5120, 13824, *GATED),
}
_TABLED = "llama3-8b", "qwen2.5-0.5b", "phi-2", "gpt2-xl", "llama3.2-1b", "llama3-70b", "opt-1.3b", "falcon-7b"
TABLED = {name: MODELS[name] for name in _TABLED} | OTHERS
TOKENS = (
    *(1, 16, 17, 48, 64, 97, 200, 512, 1024),
    *(2, 8, 9, 32, 33, 65, 128, 129, 160, 192, 256, 300, 384, 777, 2048, 4096),
)
#: How many GPUs may share a drawn network, and its most tokens.
SHARES, MOST_TOKENS = (1, 2, 4, 8), 1000
_BAR = 0.97


@dataclass(frozen=True)
class Job:
    """A model's FFN over some tokens.

    Attributes:
        forced: the module runs a launch in any case.
        share: the GPUs that share it.
        drawn: at random; then the launch of exactly its tokens is timed too, and max-autotune.
    """

    model: str
    tokens: int
    forced: bool = False
    share: int = 1
    drawn: bool = False

    @property
    def shape(self) -> FFNShape:
        whole = (MODELS | OTHERS)[self.model]
        return replace(whole, ffn=whole.ffn // self.share)

    @property
    def workload(self) -> FeedForward:
        return FeedForward(self.shape.hidden, self.shape.ffn, self.tokens, self.shape.gated, self.shape.activation)

    @property
    def layered(self) -> FFNShape:
        """With the norm of the layer in which it is timed."""
        layer = self.workload.layer_workload
        assert isinstance(layer, FeedForward)
        return layer.shape

    @property
    def modes(self) -> tuple[str, ...]:
        """How torch.compile is told to compile PyTorch's ops: some of ``MODES``."""
        return ("compile", "max-autotune") if self.drawn else ("compile",)

    @property
    def row(self) -> tuple[str, int, int]:
        """Key that distinguishes the job from others."""
        return self.model, self.tokens, self.share


#: Tensors by name -> the outputs by name, or of a layer (x, tensors by name) -> what it gives.
Network = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Layer = Callable[[Any, Mapping[str, Any]], Any]


def networks(job: Job) -> tuple[Network, Network]:
    """As a user of PyTorch writes it, and as the module runs it."""
    import torch

    from interlace.nn.op import ffn as operator

    def run_plain(t: Mapping[str, Any]) -> Mapping[str, Any]:
        return job.workload.run_dense(torch, t)

    def module(t: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": operator(t["x"], t["w_up"], t["w_down"], job.shape.activation, t.get("w_gate"))}

    return run_plain, module


def gain_of(job: Job) -> Any:
    """Return the weights of the norm in a layer."""
    import torch

    return torch.ones(job.shape.hidden, dtype=torch.bfloat16, device="cuda")


def whole_layer(job: Job) -> Layer:
    """As the module has it, which then has the norm and the sum, too."""
    from interlace.nn.op import ffn as operator

    gain = gain_of(job)

    def run_whole(x: Any, t: Mapping[str, Any]) -> Any:
        weights = t["w_up"], t["w_down"], job.shape.activation, t.get("w_gate")
        return operator(x, *weights, w_norm=gain, norm=job.layered.norm)

    return run_whole


def in_a_layer(job: Job, network: Network) -> Layer:
    """The FFN as a layer of a model has it."""
    from interlace.nn.plain import apply_in_layer

    gain, norm = gain_of(job), job.layered.norm
    assert norm is not None
    return lambda x, t: apply_in_layer(x, gain, norm, lambda y: network({**t, "x": y})["out"])


def compile_all(job: Job) -> tuple[dict[str, Network], dict[str, Layer]]:
    """Compile PyTorch's FFN by mode, and layers: PyTorch's by mode, with the module, and the module's own."""
    import torch

    def compile_way(way: Any, mode: str = "compile") -> Any:
        return torch.compile(way, dynamic=False, mode=MODES[mode])

    plain, module = networks(job)
    torch.compiler.reset()
    lock_autotuning()
    ways = {mode: compile_way(plain, mode) for mode in job.modes}
    layers = {mode: compile_way(in_a_layer(job, plain), mode) for mode in job.modes}
    return ways, layers | {"module": compile_way(in_a_layer(job, module)), "whole": compile_way(whole_layer(job))}


def make_exact(job: Job) -> Any:
    """The launch of exactly its tokens."""
    device = current_device()
    graph = job.workload.build_graph(device)
    return make_executor(graph, device, MegakernelExecutor, MegakernelExecutor.select_default(graph, device))


def force(job: Job) -> None:
    """Let the modules run a launch, as if ``interlace tune`` had found it faster."""
    device = current_device()
    for shape in (job.shape, job.layered):
        graph = ffn(choose_launch_rows(job.tokens, shape, device), shape)
        entry = CacheEntry(MegakernelExecutor.select_default(graph, device), 1.0, library_us=2.0)
        store_cached(graph, device, MegakernelExecutor, entry)


def choose_module(job: Job) -> Choice:
    """Return the module's choice."""
    rows = choose_launch_rows(job.tokens, job.shape, current_device())
    return choose(ffn(job.tokens, job.shape), current_device(), ffn(rows, job.shape))


def whole_runs(job: Job) -> str:
    """Name what runs the module that is the whole layer: a launch of all, one of the FFN alone, or the library."""
    import torch

    from interlace.core.dtypes import bf16
    from interlace.nn.choice import MAX_NORM_TOKENS, choose_ffn

    device = torch.device("cuda", torch.cuda.current_device())
    whole, alone = (choose_ffn(device, shape, bf16, False, job.tokens).executor for shape in (job.layered, job.shape))
    if whole is not None and job.tokens <= MAX_NORM_TOKENS:
        return "launch"
    return "library" if alone is None else "launch of the FFN"


def measure(job: Job) -> dict[str, Any]:
    """One row."""
    import torch

    from interlace.bench.problem import BenchProblem
    from interlace.nn.choice import MAX_NORM_TOKENS

    if job.forced:
        force(job)
    problem = BenchProblem(job.workload, current_device())
    plain, module = networks(job)
    said = choose_module(job)
    with torch.no_grad():
        compiled_ways, compiled_layers = compile_all(job)
        ways = {"eager": plain, **compiled_ways, "module": module}
        layers = {
            "eager": in_a_layer(job, plain),
            **{mode: compiled_layers[mode] for mode in job.modes},
            "module": in_a_layer(job, module),
            "module, compiled": compiled_layers["module"],
        }
        if not job.forced or job.tokens <= MAX_NORM_TOKENS:
            layers |= {"whole": whole_layer(job), "whole, compiled": compiled_layers["whole"]}
        if job.forced or job.drawn:
            ways["fused"], layers["fused"] = problem.run_fused, in_a_layer(job, problem.run_fused)
        if job.drawn:
            executor = make_exact(job)
            problem.check(executor)
            run = problem.make_run(executor)
            ways["exact"], layers["exact"] = run, in_a_layer(job, run)
        error = problem.check_function(module, "the module")
        # Else all this would be compiled in the turn of what is timed.
        for way in (module, *compiled_ways.values()):
            problem.run_once(way)
        for name, layer in layers.items():
            if name in job.modes or name == "module, compiled" or name.startswith("whole"):
                problem.run_layer_once(layer)
        by = {
            "alone": time_rounds(
                {name: problem.make_rotation(way) for name, way in ways.items()}, _REPEATS, problem.runs
            ),
            "layer": time_rounds(
                {name: problem.make_layer_rotation(layer) for name, layer in layers.items()}, _REPEATS, problem.runs
            ),
        }
    found = {"model": job.model, "share": job.share, "tokens": job.tokens, "eps": job.layered.norm}
    found |= vars(job.shape) | {"activation": job.shape.activation.value}
    why = "in any case" if job.forced else said.why
    runs, executor = ("library", None) if said.executor is None else ("launch", said.executor.name)
    found |= {"runs": runs, "executor": executor, "why": why, "relative_error": error}
    for where, rounds in by.items():
        best, ours, whole = (
            [name for name in rounds.reported if test(name)]
            for test in (
                MODES.__contains__,
                lambda name: name.startswith("module"),
                lambda name: name.startswith("whole"),
            )
        )
        found |= {where: {name: asdict(t) for name, t in rounds.times.items()}}
        library = rounds.find_fastest(best)
        found |= {f"{where}_ratio": rounds.compute_ratio(library, rounds.find_fastest(ours))}
        if whole:
            found |= {
                "whole_ratio": rounds.compute_ratio(library, rounds.find_fastest(whole)),
                "whole_runs": whole_runs(job),
            }
    return found


def describe(job: Job) -> str:
    """Return a job's name."""
    return f"{job.model}/{job.share}, {job.tokens} tokens"


def worse(row: Mapping[str, Any]) -> float:
    return min(float(row[name]) for name in ("alone_ratio", "layer_ratio", "whole_ratio") if name in row)


def of_launches(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The mean speed of launches of exactly their tokens over the best of PyTorch's, alone, by tokens."""
    found: dict[str, list[float]] = {}
    for row in rows:
        times = {name: told["median_us"] for name, told in row["alone"].items()}
        if "exact" in times:
            size = "up to 64" if row["tokens"] <= 64 else "from 65"
            found.setdefault(size, []).append(min(times[name] for name in MODES if name in times) / times["exact"])
    return {size: geometric_mean(ratios) for size, ratios in found.items()}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise all rows so far."""
    kinds = "alone", "layer", "whole"
    ratios = {where: [row[f"{where}_ratio"] for row in rows if f"{where}_ratio" in row] for where in kinds}
    return {
        "models": len({row["model"] for row in rows}),
        "launches": sum(row["runs"] == "launch" for row in rows),
        **{f"mean_{where}": geometric_mean(values) for where, values in ratios.items() if values},
        "launch_means": of_launches(rows),
        "worst": min(map(worse, rows)),
        "below": [[row["model"], row["tokens"], worse(row)] for row in rows if worse(row) < _BAR],
    }


def key(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """``Job.row`` of a row of a record."""
    return row["model"], row["tokens"], row["share"]


def draw_jobs(seed: int) -> Iterator[Job]:
    """Jobs at random without end; numbers of tokens are spread evenly by their logarithms."""
    numbers = random.Random(seed)
    while True:
        model, share = numbers.choice(list(MODELS)), numbers.choice(SHARES)
        tokens = round(math.exp(numbers.uniform(0.0, math.log(MOST_TOKENS))))
        yield Job(model, tokens, share=share, drawn=True)


def jobs(done: list[dict[str, Any]], *, launches: bool = False, seed: int | None = None, rows: int = 1000) -> list[Job]:
    """Return the remaining jobs of the first rows, the most important first, or drawn from a seed."""
    every: Iterator[Job] = (Job(model, m) for m in TOKENS for model in MODELS)
    if launches:
        every = (Job(model, m, forced=True) for m in TOKENS for model in TABLED)
    if seed is not None:
        every = draw_jobs(seed)
    known = {key(row) for row in done if not launches or "fused" in row["alone"]}
    return [job for job in islice(every, rows) if job.row not in known]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long; 600 by default")
    parser.add_argument("--update", action="store_true", help="keep the rows that are there")
    parser.add_argument("--launches", action="store_true", help="run one in any case")
    parser.add_argument("--rows", type=int, default=1000, help="only the first so many")
    parser.add_argument("--seed", type=int, help="draw the rows at random")
    parser.add_argument("--gpus", type=int, default=1, help="measure on so many GPUs at once")
    given = parser.parse_args()
    # What a user tuned on this machine is not what the package ships.
    os.environ["INTERLACE_CACHE_DIR"] = tempfile.mkdtemp()
    rows = read_matching_rows(given.path, MEASURES) if given.update else []
    left = jobs(rows, launches=given.launches, seed=given.seed, rows=given.rows)
    options = ["--launches"] * given.launches
    options += [] if given.seed is None else [f"--seed {given.seed} --rows {given.rows}"]
    command, share = format_command(given.path, *options), count_processes(given.gpus, cpus=1)
    for job, row in measure_jobs(measure, left, describe, seconds=given.seconds, gpus=given.gpus, share=share):
        rows = [r for r in rows if key(r) != job.row] + [row]
        write_record(given.path, command, PROTOCOL, MEASURES, {"seed": given.seed, **summary(rows), "rows": rows})
        ratios = (f"{where} {row.get(f'{where}_ratio', 0.0):.3f}" for where in ("alone", "layer", "whole"))
        print(f"  {row['runs']}: {', '.join(ratios)}", flush=True)
    if rows:
        for name, value in summary(rows).items():
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
