"""Steps that read prompts on a GPU: launches against the same decoder in float64, over many chunks and sequences."""

from __future__ import annotations

import math

import pytest
import torch

from interlace.models.weights import list_weights
from interlace.nn import Decoder
from interlace.workloads import LlamaShape
from interlace.workloads.decode import build_rope_table

from ..cases import relative_error

CAPACITY = 704
SHAPES = {
    "heads of 64": LlamaShape(2, 512, 1024, 8, 2, 64, 3001, tied=True),
    "heads of 96, not in the megakernel": LlamaShape(2, 384, 608, 4, 2, 96, 3000, qkv_bias=True),
    "heads of 128": LlamaShape(2, 256, 768, 16, 2, 128, 3000, qk_norm=True),
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
    monkeypatch.setattr(Decoder, "_time_prefill", lambda decoder, tokens: math.inf)
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
