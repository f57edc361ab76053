"""An engine on a GPU: the tokens of steps that are enqueued ahead, and no wait but that for the last step's tokens."""

from __future__ import annotations

import pytest
import torch

from interlace.engine import LLM, Engine, RequestOutput, SamplingParams

from .test_chunks import SHAPES, make_decoder

NAMES = pytest.mark.parametrize("name", ["heads of 64", "heads of 128"])
PARAMS = (
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, seed=1, n=2, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=0.0, presence_penalty=1.0, logit_bias={5: 3.0}, max_tokens=50, ignore_eos=True),
    SamplingParams(temperature=0.7, min_p=0.1, seed=2, logprobs=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.3, top_k=40, seed=3, min_tokens=9, repetition_penalty=1.2, max_tokens=70),
    SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, ignore_eos=True),
)


def draw_prompts() -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(3000, (length,), generator=random).tolist() for length in (300, 1, 64, 129, 17, 500)]


def run(engine: Engine) -> dict[str, list[RequestOutput]]:
    results: dict[str, list[RequestOutput]] = {}
    for number, (prompt, params) in enumerate(zip(draw_prompts(), PARAMS, strict=True)):
        engine.add_request(f"r{number}", prompt, params)
    while engine.has_unfinished:
        for news in engine.step():
            results.setdefault(news.request_id, []).append(news)
    return results


def join(news: list[RequestOutput], index: int = 0) -> list[int]:
    return [token for each in news for part in each.outputs if part.index == index for token in part.token_ids]


@NAMES
@pytest.mark.parametrize("pages", [None, 40, 16], ids=["plain", "blocks", "few blocks"])
def test_tokens_are_the_same_whether_steps_are_enqueued_ahead_or_not(name: str, pages: int | None) -> None:
    decoder = make_decoder(SHAPES[name], torch.bfloat16, pages)
    texts = []
    for runs_ahead in (True, True, False, True):  # the first time launches are built and measured
        engine = Engine(decoder, max_num_batched_tokens=112, runs_ahead=runs_ahead, enable_prefix_caching=False)
        results = run(engine)
        texts.append([join(results[f"r{n}"], index) for n, p in enumerate(PARAMS) for index in range(p.n)])
        assert engine.stats().block_usage == 0
        engine.close()
    assert texts[1] == texts[2] == texts[3]
    for text, count in zip(texts[1], (40, 30, 30, 50, 20, 70, 1), strict=True):
        assert len(text) == count


def test_an_engine_that_may_not_build_launches_reads_prompts_by_pytorchs_ops() -> None:
    decoder = make_decoder(SHAPES["heads of 64"], torch.bfloat16, None)
    prompts = draw_prompts()
    whole = [decoder.generate(prompt, 8, chunked_prefill_size=-1) for prompt in prompts]
    llm = LLM(Engine(decoder, max_num_batched_tokens=500, can_build=False))
    params = SamplingParams(temperature=0.0, max_tokens=8)
    assert [[id for part in llm.stream(prompt, params) for id in part.token_ids] for prompt in prompts] == whole
    assert (decoder._chunks.launches, decoder._library.times_us) == ({}, {}), "nothing is built, and nothing timed"


@NAMES
def test_greedy_tokens_are_nearly_the_likeliest_in_float64(name: str) -> None:
    gold = make_decoder(SHAPES[name], torch.float64, None)
    decoder = make_decoder(SHAPES[name], torch.bfloat16, 40)
    decoder.build_batches((1, 2))
    engine = Engine(decoder, max_num_batched_tokens=112)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    results = []
    for _ in range(2):  # the second time prompts are in the prefix cache
        for number, prompt in enumerate(draw_prompts()):
            engine.add_request(f"r{number}", prompt, params)
        news: dict[str, list[RequestOutput]] = {}
        while engine.has_unfinished:
            for each in engine.step():
                news.setdefault(each.request_id, []).append(each)
        results.append(news)
    assert [results[1][f"r{n}"][0].num_cached_tokens for n in range(6)] == [256, 0, 0, 128, 0, 448]
    for news in results:
        for number, prompt in enumerate(draw_prompts()):
            made = join(news[f"r{number}"])
            slot = gold.add(prompt)
            for token in made:
                x = gold.logits[slot]
                rounding = x.abs().max() * 2**-8  # of two logits in bf16
                assert x[token] >= x.max() - 0.05 * (x.max() - x.min()) - rounding
                gold.prefill([token], slot)
            gold.abort(slot)


def test_a_step_waits_for_nothing_but_the_tokens_of_the_last_one() -> None:
    engine = Engine(make_decoder(SHAPES["heads of 64"], torch.bfloat16, 16), max_num_batched_tokens=112)
    run(engine)  # builds launches, and captures graphs
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = run(engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(results) == len(PARAMS)
    logprobs = [each for news in results["r3"] for part in news.outputs for each in part.logprobs or ()]
    assert len(logprobs) == 20
    assert all(logprob.logprob <= 0 for each in logprobs for logprob in each.values())
