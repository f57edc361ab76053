"""Prompts that PyTorch's own ops read in CUDA graphs, against the same ops in float64 and launch by launch."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch

from interlace.models.llama import LlamaShape
from interlace.nn import Decoder
from interlace.nn.decoder import fused, library
from interlace.nn.decoder import step as plain
from interlace.nn.decoder.library import find_bucket

from ..cases import relative_error
from .test_chunks import CAPACITY, SHAPES, make_decoder


def read_by_launches(decoder: Decoder, tokens: list[int], slot: int, start: int) -> torch.Tensor:
    """Return the logits of PyTorch's own ops, launch by launch."""
    ids = torch.tensor(tokens, device="cuda")
    with torch.inference_mode():
        return plain.prefill(decoder.shape, decoder._weights, decoder._rope, decoder.cache, ids, slot, start)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pages", [None, 30], ids=["plain", "pages"])
def test_prompts_in_graphs_have_the_logits_of_float64(name: str, pages: int | None) -> None:
    """Whole prompts and their continuations, in poisoned caches, twice: captured, and replayed on other data."""
    ours, gold = (make_decoder(SHAPES[name], dtype, pages) for dtype in (torch.bfloat16, torch.float64))
    random = torch.Generator().manual_seed(1)
    for _ in range(2):
        for count, more in ((1, 1), (31, 33), (64, 400), (500, 130), (700, 4)):
            prompt = torch.randint(3000, (count + more,), generator=random).tolist()
            for tensor in (*ours.cache.k, *ours.cache.v):
                tensor.fill_(float("nan"))
            ours.add([5])  # so that the prompt has slot 1
            slot = ours.add(prompt[:count])
            other = gold.add(prompt[:count])
            for tokens, start in ((prompt[:count], 0), (prompt[count:], count)):
                if start:
                    ours.prefill(tokens, slot)
                right = read_by_launches(gold, tokens, other, start)
                if start:
                    gold.prefill(tokens, other)
                found, followed = ours.logits[slot].clone(), int(ours.next[slot])
                limit = 1.5 * relative_error(read_by_launches(ours, tokens, slot, start), right)
                assert relative_error(found, right) <= max(limit, 0.02)
                assert followed == found.argmax()
            for decoder in (ours, gold):
                for active in decoder.active_slots:
                    decoder.abort(active)
    assert 5 <= len(ours._library._graphs) <= 10


def test_a_prompt_waits_for_nothing_once_its_graph_is_captured() -> None:
    decoder = make_decoder(SHAPES["heads of 64"], torch.bfloat16, None)
    prompt = [3, 1, 4, 1, 5]
    decoder.abort(decoder.add(prompt))
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.add(prompt)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_graphs_share_their_memory_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of 32 to 512 tokens hold little more than that of 512 alone."""
    monkeypatch.setattr(library, "_MAX_GRAPHS", 3)
    shape = LlamaShape(4, 2048, 8192, 32, 8, 64, 3000, tied=True)
    sizes = []
    for counts in ((500,), (500, 200, 100, 60, 30, 500, 200)):
        decoder = make_decoder(shape, torch.bfloat16, None)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for count in counts:
            decoder.abort(decoder.add([1] * count))
        torch.cuda.empty_cache()
        sizes.append(torch.cuda.memory_reserved() - before)
        assert len(decoder._library._graphs) == min(len(counts), 3)
        del decoder
    assert sizes[1] <= sizes[0] + (24 << 20)


def test_a_prompt_longer_than_the_largest_bucket_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "BUCKETS", (32, 64))
    ours, gold = (make_decoder(SHAPES["heads of 128"], dtype, None) for dtype in (torch.bfloat16, torch.float64))
    prompt = torch.randint(3000, (CAPACITY - 1,), generator=torch.Generator().manual_seed(2)).tolist()
    slot, other = ours.add(prompt), gold.add(prompt)
    right = read_by_launches(gold, prompt, other, 0)
    assert relative_error(ours.logits[slot], right) <= 0.03
    assert {bucket.tokens for bucket in ours._library._graphs} == {64}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pages", [None, 30], ids=["plain", "pages"])
def test_fused_ops_are_as_near_float64_as_those_of_pytorch(name: str, pages: int | None) -> None:
    """Sums of squared errors over prompts in two pieces: of logits, keys and values."""
    dtypes = torch.bfloat16, torch.bfloat16, torch.float64
    decoders = [make_decoder(SHAPES[name], dtype, pages) for dtype in dtypes]
    reads = fused.prefill_padded, plain.prefill_padded, plain.prefill_padded
    errors = torch.zeros(2, 3, dtype=torch.float64)
    random = torch.Generator().manual_seed(4)
    for count, more in ((31, 33), (64, 400), (300, 130), (513, 1), (600, 100)):
        prompt = torch.randint(3000, (count + more,), generator=random).tolist()
        for decoder in decoders:
            assert [decoder.add([5]) for _ in range(2)] == [0, 1]
            decoder._slots.grow({1: count + more})
            decoder._slots.upload()
        for start, end in ((0, count), (count, count + more)):
            bucket = find_bucket(end - start, start, CAPACITY)
            ids = torch.tensor(prompt[start:end] + [7] * (bucket.tokens - (end - start)), device="cuda")
            at = [torch.tensor([number], device="cuda") for number in (1, start, end - start - 1)]
            with torch.inference_mode():
                found = [
                    (
                        read(decoder.shape, decoder._weights, decoder._rope, decoder.cache, ids, *at, bucket.reach),
                        *decoder.cache.read(1, 1, end),
                    )
                    for read, decoder in zip(reads, decoders, strict=True)
                ]
            for ours, each in zip(errors, found[:2], strict=True):
                ours += torch.tensor([relative_error(*both) ** 2 for both in zip(each, found[2], strict=True)])
        for decoder in decoders:
            decoder.abort(0)
            decoder.abort(1)
    assert (errors[0] <= 1.1 * errors[1]).all(), errors.sqrt().tolist()


@pytest.mark.parametrize("count", [200, 1000])
@pytest.mark.parametrize("start", [0, 300])
def test_a_layer_is_few_kernels_and_attention_writes_no_scores(start: int, count: int, tmp_path: Path) -> None:
    shape = LlamaShape(3, 2048, 4096, 32, 8, 64, 3000, tied=True)
    decoder = make_decoder(shape, torch.bfloat16, None)
    model = shape, decoder._weights, decoder._rope, decoder.cache
    bucket = find_bucket(count, start, CAPACITY)
    at = [torch.tensor([number], device="cuda") for number in (0, start, min(count, CAPACITY - start) - 1)]

    def read() -> None:
        with torch.inference_mode():
            fused.prefill_padded(*model, torch.ones(bucket.tokens, dtype=torch.long, device="cuda"), *at, bucket.reach)
        torch.cuda.synchronize()

    read()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        read()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [event["name"].lower() for event in events if event.get("cat") == "kernel"]
    expected = {"_add_and_normalize": 2, "_rotate_and_append": 1, "_silu_and_mul": 1, "_read_cached": int(start > 0)}
    counted = {name: sum(name in kernel for kernel in kernels) for name in expected}
    assert counted == {name: shape.layers * each for name, each in expected.items()}
    assert sum("flash" in kernel or "sdpa" in kernel for kernel in kernels) == shape.layers, sorted(set(kernels))
    assert not [kernel for kernel in kernels if "softmax" in kernel]
    products = 7 * 2  # some in two kernels, of which one adds
    assert len(kernels) <= shape.layers * (products + 6) + 20, sorted(kernels)
