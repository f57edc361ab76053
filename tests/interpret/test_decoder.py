"""A decoder whose steps are launches, under the Triton interpreter."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import interlace as il
from interlace.nn import Decoder, SlotSampling
from interlace.nn.decoder import launch
from interlace.nn.decoder.batches import BatchLaunches
from interlace.nn.decoder.reader import PromptReader

from ..linear_cost import LinearCost
from ..unit.llama import SHAPE, ToyForCausalLM, oracle, relative_error

PROMPTS = ([3, 1, 4, 1, 5], [7])


def test_steps_of_an_executor_are_those_of_the_model_while_sequences_join_and_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = replace(SHAPE, layers=1, qk_norm=True, qkv_bias=True)
    model = ToyForCausalLM(shape, dtype=torch.float32)
    monkeypatch.setattr(launch, "device_fallback_reason", lambda device: None)
    told = Decoder.from_model(model, batch=2, max_seq_len=8).explain()
    assert told.executor is None
    for reason in ("one_launch: ", "; pdl: the pdl executor needs a CUDA GPU, and 'cpu' is none"):
        assert reason in told.why
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (*launch.STEP_EXECUTORS, il.SerialExecutor))
    decoder = Decoder.from_model(model, batch=2, max_seq_len=8)
    assert decoder.explain().executor == "serial"
    texts = {decoder.add(prompt): list(prompt) for prompt in PROMPTS[:1]}
    for joining in (None, PROMPTS[1], None):
        if joining is not None:
            texts[decoder.add(joining)] = list(joining)
        for slot, ids in texts.items():
            ids.append(int(decoder.next[slot]))
        logits, following = decoder.step()
        for slot, ids in texts.items():
            right = oracle(model, shape, ids)[-1]
            assert relative_error(logits[slot], right) < 1e-5
            assert following[slot] == right.argmax()
    assert decoder.lengths == (8, 3)
    decoder.abort(0)
    decoder.step()
    assert decoder.lengths == (0, 4)
    assert decoder._slots.position.tolist() == [0, 4]


@pytest.mark.parametrize("pages", [None, 3])
def test_launches_sample_from_the_start(pages: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of other sequences stays as it was, wherever steps were tried."""
    model = ToyForCausalLM(replace(SHAPE, layers=1), dtype=torch.float32)
    hot = SlotSampling(temperature=2.0, top_k=40, top_p=0.95, seed=3)
    plain = Decoder.from_model(model, batch=2, max_seq_len=12)
    monkeypatch.setattr(launch, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (il.SerialExecutor,))
    monkeypatch.setattr(launch.StepLaunch, "measure_step_us", lambda self: self._enqueue() or 1.0)
    decoder = Decoder.from_model(model, batch=2, max_seq_len=12, num_blocks=pages)
    for each in (decoder, plain):
        each.add([*PROMPTS[0], *PROMPTS[0]])
        each.step()
    first = decoder._launch
    for each in (decoder, plain):
        each.add(PROMPTS[1], sampling=hot)
        each.step()
    assert decoder._launch is first
    assert decoder.explain().executor == "serial"
    assert decoder._slots.position.tolist() == plain._slots.position.tolist() == [12, 2]
    assert decoder.next.tolist() == plain.next.tolist()
    assert (decoder.logits - plain.logits).norm() < 1e-5 * plain.logits.norm()
    for each in (decoder, plain):
        each.abort(0)
        each.step()
    assert decoder.next[1] == plain.next[1]


def test_the_first_executor_that_can_run_a_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooLarge(il.SerialExecutor):
        name = title = "too_large"

        def run(self, tensors: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory.")

        def synchronize(self) -> None:
            raise AssertionError("it never ran")

    class Other(il.SerialExecutor):
        name = title = "other"

        def __init__(self, *given: object) -> None:
            raise AssertionError("it is not asked for")

    at: list[list[int]] = []

    def step_us(self: launch.StepLaunch) -> float:
        at.append(self._tensors["position"].tolist())
        self._enqueue()
        return 10.0

    monkeypatch.setattr(launch, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (TooLarge, il.SerialExecutor, Other))
    monkeypatch.setattr(launch.StepLaunch, "measure_step_us", step_us)
    decoder = Decoder.from_model(ToyForCausalLM(replace(SHAPE, layers=1), dtype=torch.float32), batch=2, max_seq_len=8)
    assert decoder.explain().executor == "serial"
    assert "; without too_large: CUDA out of memory." in decoder.explain().why
    assert at == [[4, 4], [4, 4]], "with half of the caches full"
    assert decoder._slots.position.tolist() == [0, 0]


@pytest.mark.parametrize("pages", [pytest.param(None, marks=pytest.mark.thorough), 4])
def test_steps_that_read_prompts_are_launches_and_texts_stay_the_same(
    pages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, then sampled; PyTorch's own ops are said to take longer than any launch."""
    model = ToyForCausalLM(replace(SHAPE, layers=1), dtype=torch.float32)
    prompts = [[3, 1, 4, 1, 5], [7], [*range(20, 40)]]
    ways = ({}, {"temperature": 2.0, "top_k": 40, "seed": 3})
    plain = Decoder.from_model(model, batch=2, max_seq_len=64)
    monkeypatch.setattr(launch, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (il.SerialExecutor,))
    decoder = Decoder.from_model(model, batch=2, max_seq_len=64, num_blocks=pages)
    library = SimpleNamespace(find_us=lambda tokens, start: 1e9, times_us={})
    decoder._reader = PromptReader(decoder._chunks, library, LinearCost(1.0, 1.0, 1.0), 1.0)
    monkeypatch.setattr(
        decoder._chunks, "measure_alone", lambda chunk, _: decoder._chunks.alone_us.update({chunk: 9.0})
    )
    decoder.read_in_chunks(16)
    assert "launches read chunks of 16 in 18 us (predicted, 17 more than a step)" in decoder.explain().why

    def fail(*given: object) -> None:
        raise AssertionError("PyTorch's own ops read a prompt")

    monkeypatch.setattr(decoder, "_read_tokens", fail)
    for way in ways:
        assert decoder.generate(prompts, 4, **way) == plain.generate(prompts, 4, **way)
    assert decoder.lengths == (0, 0)
    assert [*decoder._chunks.launches] == [16]


@pytest.mark.parametrize("pages", [None, 4])
def test_steps_of_few_sequences_run_in_launches_of_few_slots(
    pages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPE, layers=1)
    model = ToyForCausalLM(shape, dtype=torch.float32)
    monkeypatch.setattr(launch, "device_fallback_reason", lambda device: None)
    monkeypatch.setattr(launch, "STEP_EXECUTORS", (il.SerialExecutor,))
    sizes: list[int] = []
    monkeypatch.setattr(launch.StepLaunch, "measure_step_us", lambda self: self._enqueue() or float(len(self._advance)))
    run = launch.StepLaunch.run
    monkeypatch.setattr(launch.StepLaunch, "run", lambda self: (sizes.append(len(self._advance)), run(self)))
    decoder = Decoder.from_model(model, batch=3, max_seq_len=12, num_blocks=pages)
    texts = {decoder.add(prompt): list(prompt) for prompt in PROMPTS}
    names: list[str] = []
    decoder.build_batches((1, 2, 3, 5), lambda every: (names.append(name) or name for name in every))
    assert names == [f"steps of {size} sequences" for size in (2, 1)]
    assert decoder._batches.sizes == (1, 2, 3)

    def step() -> None:
        for slot, ids in texts.items():
            ids.append(int(decoder.next[slot]))
        logits, following = decoder.step()
        for slot, ids in texts.items():
            right = oracle(model, shape, ids)[-1]
            assert relative_error(logits[slot], right) < 1e-5
            assert following[slot] == right.argmax()

    step()
    texts[decoder.add([9, 9], sampling=SlotSampling(temperature=0.0))] = [9, 9]
    step()
    decoder.abort(0)
    texts.pop(0)
    step()
    decoder.abort(1)
    texts.pop(1)
    step()
    decoder.abort(2)
    texts.pop(2)
    texts[decoder.add([4])] = [4]
    step()
    step()
    assert sizes == [2, 3, 3, 3, 1, 1]
    assert decoder._slots.position.tolist() == [3, 0, 0]
    assert decoder.lengths == (3, 0, 0)


def test_a_launch_of_few_slots_that_takes_longer_is_not_kept() -> None:
    times = {4: 10.0, 3: 12.0, 2: 8.0, 1: 9.0}
    made = {}
    for size, step_us in times.items():
        made[size] = launch.StepLaunch.__new__(launch.StepLaunch)
        made[size].step_us = step_us
    batches = BatchLaunches(4, made[4], lambda slots: made[slots] if slots != 1 else "no room")
    for size in (3, 2, 1):
        batches.build(size)
    assert batches.sizes == (2, 4)
    assert [batches.find(slots) for slots in (1, 2, 3, 4)] == [made[2], made[2], made[4], made[4]]
    BatchLaunches(4, "none", lambda slots: made[slots]).build(2)
