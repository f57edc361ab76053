"""Steps that read prompts on a GPU: launches against the same decoder in float64, over many chunks and sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pytest
import torch

from interlace.models.weights import list_weights
from interlace.nn import Decoder
from interlace.nn.decoder.library import LibraryReader
from interlace.workloads import LlamaShape
from interlace.workloads.decode import build_rope_table

from ..cases import relative_error

CAPACITY = 704
SHAPES = {
    "heads of 64": LlamaShape(2, 512, 1024, 8, 2, 64, 3001, tied=True),
    "heads of 80": LlamaShape(2, 320, 608, 6, 2, 80, 3000, qk_norm=True),
    "heads of 96": LlamaShape(2, 384, 608, 4, 2, 96, 3000, qkv_bias=True),
    "heads of 112": LlamaShape(2, 448, 704, 7, 1, 112, 3000, tied=True),
    "heads of 128": LlamaShape(2, 256, 768, 16, 2, 128, 3000, qk_norm=True),
    "heads of 160": LlamaShape(2, 320, 640, 4, 4, 160, 3000, tied=True),
    "heads of 256": LlamaShape(2, 512, 1024, 8, 2, 256, 3000, qk_norm=True),
}
LENGTHS = 300, 1, 64, 129, 17, 600  # of prompts; two wait for a slot


def make_decoder(shape: LlamaShape, dtype: torch.dtype, pages: int | None) -> Decoder:
    random = torch.Generator("cuda").manual_seed(0)
    weights = {}
    for name, extents in list_weights(shape).items():
        value = torch.randn(extents, generator=random, device="cuda", dtype=torch.float64)
        value = value * extents[-1] ** -0.5 if len(extents) == 2 and name != "embed" else 1 + value / 8
        weights[name] = value.to(torch.bfloat16).to(dtype)
    rope = torch.from_numpy(build_rope_table(CAPACITY, shape.head_dim)).cuda()
    return Decoder.from_weights(shape, weights, rope, batch=4, num_blocks=pages)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pages", [None, 30])
@pytest.mark.parametrize("chunk", [40, 512])
def test_prompts_that_steps_read_have_the_logits_of_float64_while_others_decode(
    name: str, pages: int | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LibraryReader, "find_us", lambda *given: math.inf)
    ours, gold = make_decoder(SHAPES[name], torch.bfloat16, pages), make_decoder(SHAPES[name], torch.float64, pages)
    plain = make_decoder(SHAPES[name], torch.bfloat16, pages)
    ours.read_in_chunks(chunk)
    for cache in (*ours.cache.k, *ours.cache.v):
        cache.fill_(float("nan"))

    def fail(*given: object) -> None:
        raise AssertionError("PyTorch's own ops read a prompt")

    monkeypatch.setattr(ours, "_read_tokens", fail)
    random = torch.Generator().manual_seed(1)
    waiting = [torch.randint(3000, (length,), generator=random).tolist() for length in LENGTHS]
    prompts: dict[int, list[int]] = {}
    for turn in range(24):
        while waiting and len(ours.active_slots) < ours.batch:
            prompt = waiting.pop(0)
            prompts[ours.add(prompt)] = prompt
        tokens = torch.randint(3000, (ours.batch,), generator=random).tolist()
        decoding = [slot for slot in ours.active_slots if slot not in ours.unread]
        logits, following = ours.step(tokens)
        for slot in ours.active_slots:
            if slot in decoding:
                prompts[slot] = [*prompts[slot], tokens[slot]]
            elif slot in ours.unread:
                continue
            of_gold, of_plain = (other.add(prompts[slot]) for other in (gold, plain))
            right = gold.logits[of_gold]
            limit = 1.5 * relative_error(plain.logits[of_plain], right)
            assert relative_error(logits[slot], right) <= max(limit, 0.02)
            assert following[slot] == logits[slot].argmax()
            gold.abort(of_gold)
            plain.abort(of_plain)
        if turn % 8 == 7:
            done = max(ours.active_slots, key=lambda slot: len(prompts[slot]))
            ours.abort(done)
    assert not waiting


def test_generate_builds_the_launches_that_prompts_need_when_they_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(SHAPES["heads of 64"], torch.bfloat16, None)
    random = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3000, (length,), generator=random).tolist() for length in LENGTHS]
    whole = decoder.generate(prompts, 8, chunked_prefill_size=-1)
    assert not decoder._chunks.launches
    assert "PyTorch's own ops in CUDA graphs read prompts; launches read" in str(decoder.explain())
    by_choice = decoder.generate(prompts, 8)
    assert " tokens in " in str(decoder.explain()), "PyTorch's ops are measured"
    assert sum(a == b for a, b in zip(by_choice, whole, strict=True)) >= 3, "others differ by rounding alone"
    monkeypatch.setattr(LibraryReader, "find_us", lambda *given: math.inf)
    assert decoder.generate([*range(50)], 4, chunked_prefill_size=60)
    assert 60 in decoder._chunks.launches
    for _ in range(3):  # all times that decide are measured
        by_launches = decoder.generate(prompts, 8)
    assert by_launches == decoder.generate(prompts, 8), "what launches read repeats bit for bit"
    assert sum(a == b for a, b in zip(by_launches, whole, strict=True)) >= 3
    assert "launches read chunks of 60 in" in str(decoder.explain())


def test_launches_are_built_ahead_with_progress() -> None:
    decoder, names = make_decoder(SHAPES["heads of 64"], torch.bfloat16, 30), []

    def show(steps: Iterable[str]) -> Iterator[str]:
        for step in steps:
            names.append(step)
            yield step

    decoder.build_chunks(show)
    assert names == [f"chunks of {chunk} tokens" for chunk in (36, 60, 124, 508)]
    assert [*decoder._chunks.launches] == [36, 60, 124, 508], decoder.explain()
    assert (decoder.active_slots, decoder.lengths) == ((), (0, 0, 0, 0))
    slot = decoder.add([5] * 40)  # whole, by a launch if that is faster
    right = make_decoder(SHAPES["heads of 64"], torch.float64, 30)
    assert relative_error(decoder.logits[slot], right.logits[right.add([5] * 40)]) <= 0.02
    assert decoder._chunks.alone_us


@pytest.mark.parametrize("pages", [None, 30])
def test_launches_that_are_built_while_sequences_decode_change_none_of_them(
    pages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LibraryReader, "find_us", lambda *given: math.inf)
    ours, alone = (make_decoder(SHAPES["heads of 64"], torch.bfloat16, pages) for _ in range(2))
    for decoder in (ours, alone):
        decoder.add([3, 1, 4, 1, 5] * 20)
    ours.read_in_chunks(512)
    for turn in range(4):
        if turn == 1:
            assert not ours._chunks.launches
            ours.add([9] * 30)
        found, right = (decoder.step([5] * 4).logits[0].double() for decoder in (ours, alone))
        assert relative_error(found, right) <= 0.02
    assert ours._chunks.launches
    assert (ours.lengths, alone.lengths) == ((104, 32, 0, 0), (104, 0, 0, 0))
