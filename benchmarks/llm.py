"""Requests on an engine: inter-token latency, time to first token, and tokens a second of many requests together.

    python benchmarks/llm.py benchmarks/results/llm-h200.json --case llama3.2-1b
    python benchmarks/llm.py benchmarks/results/llm-h200.json --case llama3.1-8b --batches 16 --seconds 120

Needs a GPU. A case is a model with random weights; prompts are random token ids, other ones in each run, and every
token is brought to the host. ``LLM.generate`` is measured by the wall clock, host work included:

    first token    one prompt of 32, 512 and 1,024 ids and one new token; median and best of 5 after one that is not
                   counted
    request        one prompt of 32 ids and 128 new tokens: best of 5, over 128
    prefix         first token of 32 ids behind 1,024 that an earlier prompt had, and of all of them without a prefix
                   cache: median and best of 5
    latency        so many requests of 1,024 ids together, with 129 new tokens and with 1: best of 3 each, and the
                   difference over 128
    throughput     64 requests of 32 ids together with 128 new tokens each: best of 3 after a short one

Each batch has an engine of its own with as many slots. With ``--slots`` one engine with so many serves all, which has
launches of as many slots as each batch, as ``LLM`` has for 1 and 16. First tokens and the request are measured on the
engine of the first batch, throughput on that of the last. Only where a prefix is measured, prompts are kept in a cache,
of an engine on the first decoder. What does not begin within ``--seconds`` is left out.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from script import format_command, format_error, make_parser, measure_jobs
from shapes import MODELS

from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.core.errors import InterlaceError
from interlace.deploy import current_device
from interlace.models.llama import LlamaShape
from interlace.models.weights import list_weights
from interlace.workloads import build_decode_graph
from interlace.workloads.decode import build_rope_table

PROTOCOL = (
    "LLM.generate by the wall clock, greedy, each token on the host, random weights in bf16 and random prompts, prefix "
    "cache for prefixes alone; first token: of 5; request: best of 5, over its new tokens; latency: (best of 3 with "
    "129 new tokens - best of 3 with 1) / 128 at 1,024 ids; throughput: best of 3"
)

_FIRST = "median {median_ms:.2f} ms, best {best_ms:.2f}"
#: Text of each figure, printed as soon as it is measured: a run that is ended loses its row.
_TEXTS = {
    "first_token": _FIRST,
    "request": "{token_us:.0f} us a token",
    "prefix": _FIRST,
    "latency": "{latency_us:.0f} us, {tokens_per_s:.0f} tokens/s",
    "throughput": "{tokens_per_s:.0f} tokens/s",
}


@dataclass(frozen=True)
class Sizes:
    """Numbers of a protocol: ids of prompts, new tokens, and repeats.

    Attributes:
        first: ids of the prompts whose first token is measured.
        context, new: ids of the prompts, and new tokens after the first one, whose latency is measured.
        requests, ids, more: number of requests together, ids of each prompt, and new tokens of each.
        firsts, repeats: number of runs for the first token, and for all else.
    """

    first: tuple[int, ...] = (32, 512, 1024)
    context: int = 1024
    new: int = 128
    requests: int = 64
    ids: int = 32
    more: int = 128
    firsts: int = 5
    repeats: int = 3


@dataclass(frozen=True)
class Case:
    """Measurements of a model.

    Attributes:
        model: name of the model.
        batches: numbers of requests together.
        slots: slots of one engine for all batches; None for an engine of each batch, with as many.
        chunk: most prompt tokens of a step.
        has_blocks: True for a cache in blocks, False for memory of each slot's own.
        seconds: time after which nothing more begins.
    """

    model: str
    batches: tuple[int, ...]
    slots: int | None
    chunk: int
    has_blocks: bool
    seconds: float

    def __str__(self) -> str:
        return f"{self.model}, {', '.join(map(str, self.batches))} requests"


class Runs:
    """Runs of one engine.

    Args:
        llm: language model without a tokenizer.
        vocabulary: number of token ids.
        synchronize: function that waits for the device.
    """

    def __init__(self, llm: Any, vocabulary: int, synchronize: Any) -> None:
        self._llm, self._vocabulary, self._synchronize = llm, vocabulary, synchronize
        self._random = random.Random(1)

    def draw(self, count: int, length: int) -> list[list[int]]:
        return [[self._random.randrange(self._vocabulary) for _ in range(length)] for _ in range(count)]

    def time_s(self, prompts: list[list[int]], new: int) -> float:
        """Return the seconds in which all prompts get so many new tokens."""
        from interlace.engine import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        self._synchronize()
        begin = time.perf_counter()
        results = self._llm.generate(prompts, params)
        self._synchronize()
        seconds = time.perf_counter() - begin
        assert [len(result.outputs[0].token_ids) for result in results] == [new] * len(prompts)
        return seconds

    def measure_first_token(self, length: int, sizes: Sizes) -> dict[str, float]:
        self.time_s(self.draw(1, length), 1)
        times = [self.time_s(self.draw(1, length), 1) for _ in range(sizes.firsts)]
        return {"best_ms": min(times) * 1e3, "median_ms": median(times) * 1e3}

    def measure_prefix(self, sizes: Sizes) -> dict[str, float]:
        """Return the time to the first token of prompts that begin alike, all after one that is not counted."""
        (shared,) = self.draw(1, sizes.context)
        ends = self.draw(sizes.firsts + 1, sizes.ids)
        times = [self.time_s([[*shared, *end]], 1) for end in ends][1:]
        return {"best_ms": min(times) * 1e3, "median_ms": median(times) * 1e3}

    def measure_request(self, sizes: Sizes) -> dict[str, float]:
        """Return the microseconds of a request of one prompt, over its new tokens."""
        self.time_s(self.draw(1, sizes.ids), min(8, sizes.more))
        best = min(self.time_s(self.draw(1, sizes.ids), sizes.more) for _ in range(sizes.firsts))
        return {"token_us": best / sizes.more * 1e6}

    def measure_latency(self, batch: int, sizes: Sizes) -> dict[str, Any]:
        prompts = self.draw(batch, sizes.context)
        self.time_s(prompts, 1)
        self.time_s(prompts, min(4, sizes.new))
        pairs = [(self.time_s(prompts, 1), self.time_s(prompts, sizes.new + 1)) for _ in range(sizes.repeats)]
        one, many = (min(times) for times in zip(*pairs, strict=True))
        latency = (many - one) / sizes.new
        found = {"latency_us": latency * 1e6, "tokens_per_s": batch / latency, "prompts_ms": one * 1e3}
        return found | {"pairs_us": [(b - a) / sizes.new * 1e6 for a, b in pairs]}

    def measure_throughput(self, sizes: Sizes) -> dict[str, Any]:
        prompts = self.draw(sizes.requests, sizes.ids)
        self.time_s(prompts, min(8, sizes.more))
        times = [self.time_s(prompts, sizes.more) for _ in range(sizes.repeats)]
        return {"tokens_per_s": sizes.requests * sizes.more / min(times), "seconds": times}


def draw_weights(torch: Any, shape: LlamaShape, device: str) -> dict[str, Any]:
    """Return random weights on a device: in bf16 on a GPU, in fp32 on a CPU."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    weights = {}
    for name, extents in list_weights(shape).items():
        value = torch.randn(extents, generator=generator, device=device, dtype=dtype)
        weights[name] = value * extents[-1] ** -0.5 if len(extents) == 2 else 1 + value / 8
    return weights


def measure_shape(shape: LlamaShape, case: Case, sizes: Sizes = Sizes(), device: str = "cuda") -> dict[str, Any]:
    """Return the row of a case.

    Args:
        case: see ``Case``; its model is only a name.
    """
    import torch

    from interlace.engine import LLM, Engine
    from interlace.nn import Decoder

    begin = time.monotonic()
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    weights = draw_weights(torch, shape, device)
    longest = sizes.context + max(sizes.new, sizes.ids) + 2, sizes.ids + sizes.more + 1, *(n + 2 for n in sizes.first)
    capacity = -(-max(longest) // 64)
    rope = torch.from_numpy(build_rope_table(capacity * 64, shape.head_dim)).to(device)
    row: dict[str, Any] = {"model": case.model, "slots": case.slots, "chunk": case.chunk, "blocks": case.has_blocks}
    row |= {name: {} for name in ("first_token", "request", "prefix", "latency", "throughput")}
    row |= {"build_s": {}, "how": {}, "left_out": {}}

    def leave_out(what: str, reason: str) -> None:
        row["left_out"][what] = reason
        print(f"  left out: {what}: {reason}", flush=True)

    def attempt(what: str, into: str, name: str, function: Any, *arguments: Any) -> None:
        if time.monotonic() - begin > case.seconds:
            return leave_out(what, "no time left")
        try:
            row[into][name] = function(*arguments, sizes)
            print(f"  {what}: {_TEXTS[into].format(**row[into][name])}", flush=True)
        except InterlaceError as error:
            leave_out(what, format_error(error))

    def measure_prefix(decoder: Any, is_cached: bool, sizes: Sizes) -> dict[str, float]:
        engine = Engine(decoder, max_num_batched_tokens=case.chunk, enable_prefix_caching=is_cached)
        try:
            return Runs(LLM(engine), shape.vocabulary, synchronize).measure_prefix(sizes)
        finally:
            engine.close()

    engine: Any = None
    for number, batch in enumerate(case.batches):
        if time.monotonic() - begin > case.seconds:
            leave_out(f"batch {batch}", "no time left")
            continue
        if engine is None:
            start, slots = time.monotonic(), case.slots or batch
            blocks = slots * capacity if case.has_blocks else None
            decoder = Decoder.from_weights(shape, weights, rope, batch=slots, num_blocks=blocks)
            decoder.build_batches(case.batches if case.slots else ())
            engine = Engine(decoder, max_num_batched_tokens=case.chunk, enable_prefix_caching=False)
            synchronize()
            row["build_s"][str(slots)], row["how"][str(slots)] = time.monotonic() - start, str(decoder.explain())
            print(
                f"  engine of {slots} slots: {row['build_s'][str(slots)]:.1f} s; {row['how'][str(slots)]}", flush=True
            )
            runs = Runs(LLM(engine), shape.vocabulary, synchronize)
        for length in sizes.first if not number else ():
            attempt(f"first token of {length} ids", "first_token", str(length), runs.measure_first_token, length)
        if not number:
            attempt("request", "request", f"{sizes.ids}:{sizes.more}", runs.measure_request)
        attempt(f"latency of {batch}", "latency", str(batch), runs.measure_latency, batch)
        if number == len(case.batches) - 1:
            attempt("throughput", "throughput", f"{sizes.requests}:{sizes.ids}:{sizes.more}", runs.measure_throughput)
        if not case.slots:
            engine.close()
            for what in ("no cache", "prefix cache") if not number and case.has_blocks else ():
                args = measure_prefix, decoder, what == "prefix cache"
                attempt(f"first token behind a prefix, {what}", "prefix", what, *args)
            engine = decoder = runs = None
            if device == "cuda":
                torch.cuda.empty_cache()
    return row


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case of a known model, on the current GPU."""
    print(f"{case}:", flush=True)
    return measure_shape(MODELS[case.model], case)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", action="append", required=True, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batches", default="1,16,64", help="numbers of requests together")
    parser.add_argument("--slots", type=int, help="slots of one engine for all; by default each batch has its own")
    parser.add_argument("--chunk", type=int, default=8192, help="most prompt tokens of a step, by default LLM's")
    parser.add_argument("--plain", action="store_true", help="memory of each slot's own in place of blocks")
    parser.add_argument("--seconds", type=float, default=240.0, help="of each case, after which nothing more begins")
    given = parser.parse_args()
    graph = build_decode_graph(MODELS["llama3.2-1b"], 1, 64, current_device(), chunk=16)
    measures = (*list_launch_sources(graph), "engine", "nn/decoder")
    rows = read_matching_rows(given.path, measures)
    batches = tuple(map(int, given.batches.split(",")))
    cases = [Case(name, batches, given.slots, given.chunk, not given.plain, given.seconds) for name in given.case]
    options = [f"--case {name}" for name in given.case]
    options += [f"--batches {given.batches}", f"--chunk {given.chunk}", f"--seconds {given.seconds:g}"]
    options += ["--plain"] * given.plain + ([] if given.slots is None else [f"--slots {given.slots}"])
    for _, row in measure_jobs(measure, cases, str):
        rows.append(row)
        write_record(given.path, format_command(given.path, *options), PROTOCOL, measures, {"rows": rows})


if __name__ == "__main__":
    main()
