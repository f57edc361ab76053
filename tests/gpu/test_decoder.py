"""A decoder on a GPU: its launches against PyTorch's ops in float32, texts, and slots."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from interlace.executors import DeviceExecutor
from interlace.models.llama import LLAMAS, LlamaShape
from interlace.nn import Decoder, SlotSampling
from interlace.nn.decoder import launch
from interlace.nn.decoder.launch import StepLaunch

from ..unit.llama import ToyForCausalLM

SHAPES = {
    "tied": LlamaShape(2, 512, 1024, 8, 2, 64, 3001, tied=True),
    "bias": LlamaShape(2, 256, 768, 6, 2, 64, 1000, eps=1e-6, qkv_bias=True),
    "norms": LlamaShape(2, 256, 512, 4, 4, 128, 1000, eps=1e-6, qk_norm=True),
}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [53, 58, 9] * 40]


def decoders(shape: LlamaShape, dtype: torch.dtype, batch: int = 3) -> tuple[Decoder, Decoder]:
    """One that runs launches, and one in PyTorch's ops on the same weights in float32."""
    model = ToyForCausalLM(shape, dtype=dtype).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # tied embeddings too, else every token is followed by itself
                parameter.mul_(2 * parameter.shape[1] ** -0.5)
    ours = Decoder.from_model(model, batch=batch, max_seq_len=256)
    assert isinstance(ours._launch, StepLaunch), ours.explain()
    wide = Decoder.from_model(model.float(), batch=batch, max_seq_len=256)
    wide._launch = "in float32"
    return ours, wide


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_steps_are_no_further_from_float32_than_pytorchs_own(name: str, dtype: torch.dtype) -> None:
    ours, wide = decoders(SHAPES[name], dtype)
    plain, _ = decoders(SHAPES[name], dtype)
    plain._launch = "compared with"
    several = (ours, plain, wide)
    for prompt in PROMPTS:
        for decoder in several:
            decoder.add(prompt)
    errors = []
    for _ in range(6):
        tokens = wide.next.tolist()
        logits = [decoder.step(tokens).logits.double() for decoder in several]
        errors.append([((each - logits[2]).norm() / logits[2].norm()).item() for each in logits[:2]])
    assert ours.lengths == plain.lengths == tuple(len(prompt) + 6 for prompt in PROMPTS)
    assert ours._slots.position.tolist() == [*ours.lengths]
    launches, library = (max(each) for each in zip(*errors, strict=True))
    assert launches <= 1.5 * library, errors


def test_texts_are_those_of_each_prompt_alone_and_repeat_bit_for_bit() -> None:
    ours, _ = decoders(SHAPES["tied"], torch.bfloat16)
    whole = {"chunked_prefill_size": -1}  # chunks of other sizes round otherwise
    launch = ours._launch
    once = ours.generate([*PROMPTS, [1, 2]], 12, **whole)
    assert once == ours.generate([*PROMPTS, [1, 2]], 12, **whole)
    assert [ours.generate([prompt], 12, **whole)[0] for prompt in [*PROMPTS, [1, 2]]] == once
    way = {**whole, "temperature": 1.5, "top_k": 200, "top_p": 0.95, "seed": 3}
    drawn = ours.generate([*PROMPTS, [1, 2]], 12, **way)
    assert isinstance(ours._launch, StepLaunch), ours.explain()
    assert drawn == ours.generate([*PROMPTS, [1, 2]], 12, **way)
    assert drawn[0] == ours.generate(PROMPTS[0], 12, **way)
    assert drawn != once
    assert ours._launch is launch, "the launches sample from the start"
    assert ours.generate([*PROMPTS, [1, 2]], 12, **whole) == once


def test_steps_draw_what_pytorch_draws_from_the_same_logits() -> None:
    ours, _ = decoders(SHAPES["tied"], torch.bfloat16)
    ours.add(PROMPTS[0])
    for prompt in PROMPTS[1:]:
        ours.add(prompt, sampling=SlotSampling(temperature=1.2, top_k=50, top_p=0.9, seed=7, sequence=len(prompt)))
    differ = 0
    for _ in range(100):
        ours.step()
        right = ours._sampling.sample(ours.logits, ours._slots.position - 1, slice(None))
        assert ours.next[0] == ours.logits[0].argmax()
        differ += int((ours.next != right).sum())
    assert differ <= 2, "but where two scores are equal up to rounding"


def test_what_lies_beyond_a_sequence_in_the_cache_reaches_nobody() -> None:
    ours, _ = decoders(SHAPES["norms"], torch.bfloat16)
    right = ours.generate(PROMPTS[:2], 8, chunked_prefill_size=-1)
    for tensor in (*ours.cache.k, *ours.cache.v):
        tensor.fill_(float("nan"))
    assert ours.generate(PROMPTS[:2], 8, chunked_prefill_size=-1) == right


@pytest.mark.parametrize(("batch", "layers"), [(1, 8), (64, 2)])
def test_a_decoder_takes_weights_cache_and_64_mib(batch: int, layers: int) -> None:
    """At its peak, making, prompts and steps; a published model's widths and vocabulary."""
    model = ToyForCausalLM(replace(LLAMAS["llama3.2-1b"], layers=layers), dtype=torch.bfloat16).cuda()
    small, _ = decoders(SHAPES["tied"], torch.bfloat16)
    small.add([1])  # workspaces of cuBLAS, one for all captures
    del small, _
    gc.collect()  # what other tests have left
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours = Decoder.from_model(model, batch=batch, max_seq_len=1024)
    assert isinstance(ours._launch, StepLaunch), ours.explain()
    for slot in range(batch):
        ours.add([slot + 1] * (slot + 5))
    for _ in range(4):
        ours.step()
    torch.cuda.synchronize()
    cache = sum(tensor.nbytes for tensor in (*ours.cache.k, *ours.cache.v))
    assert torch.cuda.max_memory_allocated() - before - cache <= 64 << 20


def test_a_step_waits_for_nothing_on_the_host() -> None:
    ours, _ = decoders(replace(SHAPES["tied"], layers=1), torch.bfloat16)
    ours.add(PROMPTS[0])
    ours.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            ours.step()
        ours.step(ours.next.clone())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ours.lengths == (len(PROMPTS[0]) + 5, 0, 0)


@pytest.mark.parametrize("runner", launch.STEP_EXECUTORS)
def test_sequences_in_pages_decode_bit_for_bit_as_in_memory_of_their_own(
    runner: type[DeviceExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages come and go with sequences; a step that takes one waits for nothing on the host."""
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (runner,))
    plain, _ = decoders(SHAPES["tied"], torch.bfloat16)
    paged = Decoder.from_weights(plain.shape, plain._weights, plain._rope, batch=3, num_blocks=5)
    assert isinstance(paged._launch, StepLaunch), paged.explain()
    for decoder in (plain, paged):
        decoder.abort(decoder.add([5] * 100))
        for prompt in ([9] * 62, [53, 58, 9] * 40):
            decoder.add(prompt)
        decoder.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                decoder.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert paged.lengths == plain.lengths == (69, 127, 0)
    assert torch.equal(paged.logits[:2], plain.logits[:2])
    assert paged._pages.num_free == 1


@pytest.mark.parametrize("pages", [None, 9], ids=["plain", "paged"])
@pytest.mark.parametrize("runner", launch.STEP_EXECUTORS)
def test_steps_leave_alone_what_a_model_reads_into_its_slot(
    runner: type[DeviceExecutor], pages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a slot that is full, behind which there is no row for a step to write."""
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (runner,))
    made, _ = decoders(SHAPES["tied"], torch.bfloat16)
    ours, alone = (
        Decoder.from_weights(made.shape, made._weights, made._rope, batch=3, num_blocks=pages) for _ in range(2)
    )
    assert isinstance(ours._launch, StepLaunch), ours.explain()
    for decoder in (ours, alone):
        decoder.add(PROMPTS[2])
    past, kept = ours.kv_cache(), []
    for count in (64, 100, 91, 1):
        start = past.length
        for layer in range(made.shape.layers):
            pair = torch.randn(2, 1, 2, count, 64, device="cuda").bfloat16()
            keys, values = past.update(*pair, layer)
            assert torch.equal(torch.stack((keys, values))[:, :, :, start:], pair)
            kept.append((layer, start, pair))
        for decoder in (ours, alone):
            decoder.step()
        assert (ours.logits[0] - alone.logits[0]).norm() < 1e-2 * alone.logits[0].norm()
        for layer, start, pair in kept:
            found = torch.stack(ours.cache.read(layer, past.slot, min(past.length, 255)))[:, :, :, start:]
            width = min(pair.shape[3], found.shape[3])
            assert torch.equal(found[:, :, :, :width], pair[:, :, :, :width])
    assert ours.lengths == (len(PROMPTS[2]) + 4, 256, 0)
    ours.add([1] * 256, past)
    ours._slots.upload()
    assert ours._slots.position.tolist() == [*ours.lengths]
