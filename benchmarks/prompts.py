"""Steps that read prompts: microseconds with a chunk of each size aboard, and whole streams, next to PyTorch's ops.

    python benchmarks/prompts.py benchmarks/results/prompts-h200.json --case llama3.2-1b:16:1024
    python benchmarks/prompts.py benchmarks/results/prompts-h200.json --case llama3.2-1b:15:1024 --chunks 0,48,112,496
    python benchmarks/prompts.py benchmarks/results/prompts-h200.json --case qwen3-0.6b:33:256 --stream 33:32:128
    python benchmarks/prompts.py benchmarks/results/first-token-h200.json --case llama3.2-1b:1:1024 \
        --first-token 32,512,1024

Needs a GPU. A case is a model, sequences that decode, and the positions of each. One more sequence reads a chunk after
``--start`` positions of its own. Variants run in turns on the same random weights: the megakernel's step without and
with a chunk, and PyTorch's ops that read as many tokens, as a decoder does without ``read_in_chunks``, captured in a
CUDA graph and launch by launch. The logits of all sequences are compared with float64 first. A stream is so many
prompts of so many ids with so many new tokens each, through ``Decoder.generate`` in as many slots as sequences decode,
wall clock: whole prompts, chunks, and the automatic choice. ``--first-token`` measures only this: the wall clock from a
prompt of so many ids, in an empty decoder of so many slots, to its first token on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from script import format_command, format_error, make_parser, measure_jobs
from shapes import MODELS

from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.core.errors import InterlaceError
from interlace.deploy import current_device, make_executor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.models.step_rows import CHUNKS, PromptSegment, build_step_rows
from interlace.models.weights import list_weights
from interlace.workloads import build_decode_graph
from interlace.workloads.decode import build_rope_table

_REPEATS, _STREAMS, _TOKENS = 5, 3, 15
_FLOPS_PER_S = 700e12  # of the bound of a prompt
PROTOCOL = (
    f"each step in a CUDA graph, {describe_protocol(_REPEATS)}, random weights in bf16, larger than the L2; streams by "
    f"the wall clock, median of {_STREAMS} after one that is not counted; first tokens by the wall clock, in turns, "
    f"median of {_TOKENS} after three"
)
Stream = tuple[int, int, int]  # prompts, ids of each, new tokens of each
#: Model, sequences that decode, their positions, positions before the chunk, chunks, a stream or None, and ids of
#: prompts whose first tokens are measured.
Case = tuple[str, int, int, int, tuple[int, ...], Stream | None, tuple[int, ...]]


def describe(case: Case) -> str:
    """Return a case's name."""
    name, batch, context, start, _, stream, first = case
    if first:
        return f"{name}, {batch} slots, first tokens of {first}"
    return f"{name}, {batch} sequences at {context}, a chunk after {start}" + ("" if stream is None else f", {stream}")


def draw_model(torch: Any, name: str, capacity: int) -> tuple[dict[str, Any], Any]:
    """Return random weights, and the table of RoPE."""
    shape, random = MODELS[name], torch.Generator("cuda").manual_seed(0)
    weights = {}
    for each, extents in list_weights(shape).items():
        value = torch.randn(extents, generator=random, device="cuda", dtype=torch.bfloat16)
        weights[each] = value * extents[-1] ** -0.5 if len(extents) == 2 else 1 + value / 8
    return weights, torch.from_numpy(build_rope_table(capacity, shape.head_dim)).cuda()


def measure_error(found: Any, gold: Any) -> float:
    """Return the relative Frobenius error."""
    return float((found.double() - gold).norm() / gold.norm())


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    import torch

    from interlace.nn.decoder import step as plain
    from interlace.nn.decoder.cache import KVCache

    name, batch, context, start, chunks, stream, first = case
    if first:
        return measure_first_tokens(torch, case)
    shape, device, slots = MODELS[name], current_device(), batch + 1
    capacity = -(-max(context + 1, start + max(chunks)) // 64) * 64
    weights, rope = draw_model(torch, name, capacity)
    cache = KVCache.make(shape, slots, capacity, torch.bfloat16, torch.device("cuda"))
    random = torch.Generator("cuda").manual_seed(1)
    for tensor in (*cache.k, *cache.v):
        tensor.normal_(generator=random)
    exact_weights = {each: value.double() for each, value in weights.items()}
    ids = torch.randint(shape.vocabulary, (max(chunks),), generator=random, device="cuda")
    tokens = torch.randint(shape.vocabulary, (batch,), generator=random, device="cuda")

    def table_for(w: Mapping[str, Any]) -> Any:
        return rope.to(torch.promote_types(rope.dtype, w["embed"].dtype))

    def read_by_torch(count: int, w: Mapping[str, Any], kept: KVCache) -> Any:
        return plain.prefill(shape, w, table_for(w), kept, ids[:count], batch, start)

    def decode_by_torch(w: Mapping[str, Any], kept: KVCache) -> Any:
        at = torch.full((slots,), context, device="cuda")
        every = torch.cat([tokens, tokens[:1]])
        return plain.decode(shape, w, table_for(w), kept, every, at, context + 1)[:batch]

    def copy(dtype: Any) -> KVCache:
        return KVCache(*(tuple(each.to(dtype, copy=True) for each in both) for both in (cache.k, cache.v)))

    exact = copy(torch.float64)
    gold_decoded = decode_by_torch(exact_weights, exact)
    row: dict[str, Any] = {"model": name, "batch": batch, "context": context, "start": start, "left_out": {}}
    row |= {"errors": {}, "pytorch_errors": {"decoded": measure_error(decode_by_torch(weights, cache), gold_decoded)}}
    ways: dict[str, Callable[[], object]] = {}
    eager: dict[str, Callable[[], object]] = {}
    for chunk in chunks:
        graph = build_decode_graph(shape, slots, capacity, device, chunk=chunk)
        segments = [PromptSegment(batch, start, tuple(ids[:chunk].tolist()))] if chunk else []
        decoded = {slot: (int(token), context) for slot, token in enumerate(tokens)}
        rows = build_step_rows(slots, chunk, capacity, decoded, segments)
        if not chunk:
            rows["position"][batch] = start  # a step without a chunk writes a row of every sequence
        given = {each: torch.from_numpy(rows[each]).cuda() for each in rows if each in graph.inputs}
        given |= {**weights, **cache.tensors, "rope": rope}
        given["logits"] = torch.full((slots, shape.vocabulary), float("nan"), dtype=torch.bfloat16, device="cuda")
        given["next"] = torch.zeros(slots, dtype=torch.int32, device="cuda")
        try:
            schedule = MegakernelExecutor.select_default(graph, device)
            executor = make_executor(graph, device, MegakernelExecutor, schedule)
            executor.run(given)
            executor.synchronize()
        except InterlaceError as error:
            row["left_out"][f"step, chunk {chunk}"] = format_error(error)
        else:
            errors = {"decoded": measure_error(given["logits"][:batch], gold_decoded)}
            ways[f"step, chunk {chunk}"] = lambda run=executor, t=given: run.run(t)
            if chunk:
                gold = read_by_torch(chunk, exact_weights, exact)
                errors["read"] = measure_error(given["logits"][batch], gold)
                row["pytorch_errors"][f"read {chunk}"] = measure_error(read_by_torch(chunk, weights, cache), gold)
            row["errors"][f"step, chunk {chunk}"] = errors
        if chunk:
            ways[f"PyTorch reads {chunk}, captured"] = lambda n=chunk: read_by_torch(n, weights, cache)
            eager[f"PyTorch reads {chunk}"] = lambda n=chunk: read_by_torch(n, weights, cache)
    del exact, exact_weights
    torch.cuda.empty_cache()
    with torch.inference_mode():
        row["times"] = {each: asdict(timing) for each, timing in time_rounds(ways, _REPEATS).times.items()}
        row["wall_us"] = {each: measure_wall_us(torch, call) for each, call in eager.items()}
    row["streams"] = {} if stream is None else measure_streams(torch, case, weights, rope)
    return row


def measure_wall_us(torch: Any, call: Callable[[], object]) -> float:
    """Return the median microseconds of a call with its host work."""
    times = []
    for _ in range(_REPEATS + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return median(times[1:])


def measure_streams(torch: Any, case: Case, weights: Mapping[str, Any], rope: Any) -> dict[str, Any]:
    """Return milliseconds of a stream, and of one prompt to its first token, by how prompts are read."""
    from interlace.nn import Decoder

    name, batch, *_, stream, _ = case
    assert stream is not None
    count, length, new = stream
    random = torch.Generator().manual_seed(2)
    prompts = torch.randint(MODELS[name].vocabulary, (count, length), generator=random).tolist()
    decoder = Decoder.from_weights(MODELS[name], weights, rope, batch=batch)
    found: dict[str, Any] = {}
    texts = []
    for way, size in (("whole prompts", -1), ("chunks of 128", 128), ("chunks of 512", 512), ("automatic", None)):
        texts.append(decoder.generate(prompts, new, chunked_prefill_size=size))
        many, one = (
            [
                time_s(torch, lambda p=some, n=most, c=size: decoder.generate(p, n, chunked_prefill_size=c))
                for _ in range(_STREAMS)
            ]
            for some, most in ((prompts, new), (prompts[:1], 1))
        )
        found[way] = {"stream_ms": median(many) * 1e3, "first_token_ms": median(one) * 1e3}
        found[way] |= {"tokens_per_s": count * new / median(many), "how": str(decoder.explain())}
        same = sum(a == b for a, b in zip(texts[-1], texts[0], strict=True))
        found[way]["texts_as_whole"] = same / count
    return found


def measure_first_tokens(torch: Any, case: Case) -> dict[str, Any]:
    """Return milliseconds from prompts to their first tokens, by what reads them, and the larger of bytes and FLOPs."""
    from interlace.nn import Decoder
    from interlace.nn.decoder import step as plain
    from interlace.nn.decoder.library import LibraryReader

    name, batch, context, *_, lengths = case
    shape, device = MODELS[name], current_device()
    weights, rope = draw_model(torch, name, -(-max(context, *lengths) // 64) * 64 + 64)
    random = torch.Generator().manual_seed(3)
    graphs, launches, chosen = (Decoder.from_weights(shape, weights, rope, batch=batch) for _ in range(3))
    launches.read_in_chunks(CHUNKS[-1])
    launches.build_chunks()
    chosen.build_chunks()

    def add(decoder: Any, prompt: list[int]) -> int:
        slot = decoder.add(prompt)
        while decoder.unread:
            decoder.step()
        token = int(decoder.next[slot])
        decoder.abort(slot)
        return token

    def add_to_launches(prompt: list[int]) -> int:
        with patch.object(LibraryReader, "find_us", lambda *given: float("inf")):
            return add(launches, prompt)

    def read_eagerly(prompt: list[int]) -> int:
        ids = torch.tensor(prompt, device="cuda")
        with torch.inference_mode():
            return int(plain.prefill(shape, weights, rope, graphs.cache, ids, 0, 0).argmax())

    ways: dict[str, Callable[[list[int]], int]] = {
        "launches": add_to_launches,
        "PyTorch in CUDA graphs": lambda prompt: add(graphs, prompt),
        "generate": lambda prompt: chosen.generate(prompt, 1, stop_token_ids=())[0],
        "PyTorch, launch by launch": read_eagerly,
    }
    products = sum(value.numel() for each, value in weights.items() if each.startswith("layers."))
    streamed = graphs.explain().weight_bytes
    rows: dict[str, Any] = {}
    for length in lengths:
        prompt = torch.randint(shape.vocabulary, (length,), generator=random).tolist()
        times: dict[str, list[float]] = {way: [] for way in ways}
        tokens = {}
        for _ in range(_TOKENS + 3):
            for way, call in ways.items():
                torch.cuda.synchronize()
                begin = time.perf_counter()
                tokens[way] = call(prompt)
                times[way].append((time.perf_counter() - begin) * 1e3)
        bound_ms = max(streamed / device.dram_bytes_per_s, 2 * products * length / _FLOPS_PER_S) * 1e3
        rows[str(length)] = {"bound_ms": bound_ms, "tokens": tokens}
        rows[str(length)] |= {"ms": {way: median(each[3:]) for way, each in times.items()}}
    reports = {"launches": str(launches.explain()), "generate": str(chosen.explain())}
    return {"model": name, "slots": batch, "first_tokens": rows, "how": reports}


def time_s(torch: Any, call: Callable[[], object]) -> float:
    """Return the seconds of a call that ends with work on the device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def parse_case(text: str, start: int, chunks: str, stream: str | None, first: str | None) -> Case:
    """Parse ``MODEL:BATCH:CONTEXT``, numbers of tokens, ``PROMPTS:IDS:NEW``, and numbers of ids."""
    name, batch, context = text.split(":")
    of = name, int(batch), int(context), start, tuple(map(int, chunks.split(",")))
    lengths = () if first is None else tuple(map(int, first.split(",")))
    if stream is None:
        return *of, None, lengths
    count, length, new = map(int, stream.split(":"))
    return *of, (count, length, new), lengths


def print_first_tokens(row: Mapping[str, Any]) -> None:
    """Print milliseconds of first tokens."""
    for length, figures in row["first_tokens"].items():
        times = ", ".join(f"{way} {ms:.2f}" for way, ms in figures["ms"].items())
        print(f"  {length} ids: {times} ms; bound {figures['bound_ms']:.2f}; tokens {figures['tokens']}", flush=True)
    for way, how in row["how"].items():
        print(f"  {way}: {how}", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", action="append", required=True, metavar="MODEL:BATCH:CONTEXT")
    parser.add_argument("--start", type=int, default=0, help="positions before the chunk")
    chunks = ",".join(map(str, CHUNKS))
    parser.add_argument("--chunks", default=chunks, help=f"tokens of prompts, 0 for none; {chunks} by default")
    parser.add_argument("--stream", metavar="PROMPTS:IDS:NEW", help="prompts, ids of each, and new tokens")
    parser.add_argument(
        "--first-token", metavar="IDS", help="measure the first token of prompts of so many ids instead"
    )
    given = parser.parse_args()
    graph = build_decode_graph(MODELS["llama3.2-1b"], 1, 64, current_device(), chunk=16)
    measures = list_launch_sources(graph)
    rows = read_matching_rows(given.path, measures)
    cases = [parse_case(text, given.start, given.chunks, given.stream, given.first_token) for text in given.case]
    options = [f"--case {text}" for text in given.case] + [f"--start {given.start}", f"--chunks {given.chunks}"]
    options += [] if given.stream is None else [f"--stream {given.stream}"]
    options += [] if given.first_token is None else [f"--first-token {given.first_token}"]
    for _, row in measure_jobs(measure, cases, describe):
        rows.append(row)
        write_record(given.path, format_command(given.path, *options), PROTOCOL, measures, {"rows": rows})
        if "first_tokens" in row:
            print_first_tokens(row)
            continue
        for way, figures in row["times"].items():
            told = ", ".join(f"{what} {value:.1e}" for what, value in row["errors"].get(way, {}).items())
            print(f"  {way:28} {figures['median_us']:9.1f} us  {told}", flush=True)
        for way, us in row["wall_us"].items():
            print(f"  {way:28} {us:9.1f} us with its host work", flush=True)
        print("  errors of PyTorch:", ", ".join(f"{k} {v:.1e}" for k, v in row["pytorch_errors"].items()), flush=True)
        for way, figures in row["streams"].items():
            print(f"  {way}: {figures}", flush=True)
        for way, reason in row["left_out"].items():
            print(f"  {way}: {reason}", flush=True)


if __name__ == "__main__":
    main()
