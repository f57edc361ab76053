"""Prefix cache and preemption: the same texts with and without them, and nothing is lost."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from interlace.core.errors import PageError  # noqa: E402
from interlace.engine import SamplingParams  # noqa: E402
from interlace.engine.blocks import PrefixCache  # noqa: E402
from interlace.nn.decoder.mirror import MirroredTensors  # noqa: E402
from interlace.nn.decoder.pages import PageAllocator  # noqa: E402

from .engines import collect, generate_alone, join_tokens, make_engine  # noqa: E402

AHEAD = pytest.mark.parametrize("runs_ahead", [False, True])


def make_params(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)


def make_allocator(count: int, batch: int = 3, capacity: int = 256) -> PageAllocator:
    return PageAllocator(count, MirroredTensors(PageAllocator.list_fields(batch, capacity), torch.device("cpu")))


def test_pages_are_shared_and_the_least_recently_released_is_reused_first() -> None:
    pages = make_allocator(5)
    pages.grow({0: 130})
    assert pages.list_pages(0) == [0, 1, 2]
    pages.grow({1: 180}, {1: [0, 1]})
    assert (pages.list_pages(1), pages.num_free) == ([0, 1, 3], 1)
    assert pages.num_users == [2, 2, 1, 1, 0]
    with pytest.raises(PageError, match="slots \\[2\\] need 2 more pages of 64 positions, and 1 of the 5 are free"):
        pages.grow({2: 256}, {2: [0, 1]})
    assert pages.num_users == [2, 2, 1, 1, 0]
    pages.release(0)
    assert (pages.num_free, pages.num_users) == (2, [1, 1, 0, 1, 0])
    pages.release(1)
    with pytest.raises(PageError, match="need 3 more pages of 64 positions, and 2 of the 5 are free"):
        pages.grow({2: 64 * 6}, {2: [0, 1, 3]})
    generation = pages.generation.copy()
    pages.grow({2: 192})
    assert pages.list_pages(2) == [4, 2, 3], "page 2 was released before 3, 1 and 0, in this order"
    assert [now - then for now, then in zip(pages.generation, generation, strict=True)] == [0, 0, 1, 1, 1]


def test_a_block_is_found_by_all_tokens_before_its_end_until_it_is_reused() -> None:
    pages = make_allocator(4)
    cache = PrefixCache(pages)
    tokens = [*range(200)]
    pages.grow({0: 192})
    cache.insert(tokens, [], pages.list_pages(0), 0, 3)
    assert cache.find(tokens, []) == [0, 1, 2]
    assert cache.find(tokens[:192], []) == [0, 1], "the last token is always read"
    assert cache.find(tokens[:64], []) == []
    assert cache.find([*tokens[:100], 0, *tokens[101:]], []) == [0]
    assert cache.find([1, *tokens[1:]], []) == [], "later blocks depend on the first"
    cache.insert(tokens, [], [2, 2, 2], 0, 3)
    assert cache.find(tokens, []) == [0, 1, 2], "what a block holds already is not entered again"
    other = [*range(100, 164), *range(64, 128)]
    pages.grow({0: 64 * 4})
    cache.insert(other, [], [3], 0, 1)
    assert cache.find([*other, 1], []) == [3], "block 1 has these tokens, after others"
    pages.release(0, 192)
    pages.release(0)
    pages.grow({1: 1, 2: 1})
    assert [*pages.list_pages(1), *pages.list_pages(2)] == [3, 2]
    assert cache.find(tokens, []) == [0, 1]
    cache.insert([7] * 64, [], [2], 0, 1)
    assert len(cache._blocks) == 4, "entries of reused blocks go"


@AHEAD
def test_a_prompt_that_begins_like_another_reads_the_rest_only(
    runs_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = [n % 41 for n in range(150)]
    prompts = [[*prefix, 1, 2], [*prefix[:130], 5], prefix[:128], [*prefix, 1, 2]]
    right = [generate_alone(prompt, 9, ()) for prompt in prompts]
    counts: list[int] = []
    for enabled, cached in ((False, [0, 0, 0, 0]), (True, [0, 128, 64, 128])):
        engine = make_engine(batch=2, capacity=192, num_blocks=6, enable_prefix_caching=enabled, runs_ahead=runs_ahead)
        read = engine.decoder._read_tokens
        with monkeypatch.context() as patch:
            patch.setattr(engine.decoder, "_read_tokens", lambda ids, *a, f=read: (counts.append(len(ids)), f(ids, *a)))
            for prompt, text, hit in zip(prompts, right, cached, strict=True):
                counts.clear()
                engine.add_request("a", prompt, make_params(9))
                news = collect(engine)["a"]
                assert join_tokens(news) == text
                assert {each.num_cached_tokens for each in news} == {hit}
                assert counts == [len(prompt) - hit]
        stats = engine.stats()
        assert stats.prefix_cache_queries_total == enabled * sum(map(len, prompts))
        assert stats.prefix_cache_hits_total == sum(cached)
        assert stats.block_usage == 0


def test_blocks_that_an_aborted_prompt_has_not_read_are_not_shared() -> None:
    engine = make_engine(batch=2, capacity=256, num_blocks=8, max_num_batched_tokens=64)
    for tensor in (*engine.decoder.cache.k, *engine.decoder.cache.v):
        tensor.fill_(float("nan"))
    prompt = [n % 41 for n in range(230)]
    engine.add_request("a", prompt, make_params(4))
    engine.step()
    engine.abort("a")
    engine.add_request("b", prompt, make_params(4))
    news = collect(engine)["b"]
    assert join_tokens(news) == generate_alone(prompt, 4, ())
    assert news[0].num_cached_tokens == 64


def test_logits_after_a_hit_are_bit_for_bit_those_without_the_cache() -> None:
    """Prompts are cut at the same tokens with and without the cache."""
    prompt = [n % 41 for n in range(150)]
    logits = []
    for enabled in (False, True):
        engine = make_engine(
            batch=1, capacity=192, num_blocks=6, max_num_batched_tokens=64, enable_prefix_caching=enabled
        )
        for _ in range(2):
            engine.add_request("a", prompt, make_params(4))
            collect(engine)
        assert engine.stats().prefix_cache_hits_total == enabled * 128
        logits.append(engine.decoder.logits.clone())
    assert torch.equal(*logits)


def test_texts_of_one_prompt_read_its_full_blocks_once() -> None:
    engine = make_engine(batch=4, capacity=192, num_blocks=9)
    prompt = [n % 41 for n in range(140)]
    engine.add_request("a", prompt, SamplingParams(n=3, max_tokens=5, seed=1, ignore_eos=True))
    news = collect(engine)["a"]
    assert engine.stats().prefix_cache_hits_total == 2 * 128
    alone = make_engine(batch=4, capacity=192)
    alone.add_request("a", prompt, SamplingParams(n=3, max_tokens=5, seed=1, ignore_eos=True))
    right = collect(alone)["a"]
    assert [join_tokens(news, index) for index in range(3)] == [join_tokens(right, index) for index in range(3)]


@AHEAD
@pytest.mark.parametrize("seed", range(4))
def test_texts_are_those_of_each_prompt_alone_when_blocks_run_out(runs_ahead: bool, seed: int) -> None:
    """Prompts begin alike, blocks suffice for two or three texts at once, requests come at any time, some go."""
    draw = random.Random(seed)
    engine = make_engine(batch=4, capacity=256, num_blocks=6, max_num_batched_tokens=70, runs_ahead=runs_ahead)
    begin = [draw.randrange(42) for _ in range(150)]
    requests: dict[str, tuple[list[int], int]] = {}
    results: dict[str, list] = {}
    aborted = set()
    while len(requests) < 10 or engine.has_unfinished:
        if len(requests) < 10 and draw.random() < 0.3:
            prompt = [
                *begin[: draw.choice((40, 64, 128, 150))],
                *(draw.randrange(42) for _ in range(draw.randint(1, 9))),
            ]
            name = f"r{len(requests)}"
            requests[name] = prompt, draw.randint(1, 90)
            engine.add_request(name, prompt, make_params(requests[name][1]))
        if requests and draw.random() < 0.01:
            aborted.add(name := draw.choice([*requests]))
            engine.abort(name)
        for news in engine.step():
            results.setdefault(news.request_id, []).append(news)
    for name, (prompt, count) in requests.items():
        made, alone = join_tokens(results[name]), generate_alone(prompt, count, ())
        assert made == (alone[: len(made)] if name in aborted else alone)
    stats = engine.stats()
    assert stats.num_preemptions_total > 0
    assert stats.prefix_cache_hits_total > 0
    assert (stats.num_running, stats.num_waiting, stats.block_usage) == (0, 0, 0.0)
    pages = engine.decoder._pages
    assert pages is not None
    assert sorted(pages._free) == [*range(6)]
    assert not any(pages.num_users)


@AHEAD
def test_no_request_starves_however_many_come_after_it(runs_ahead: bool) -> None:
    """Each step brings a new request; each text needs all blocks, so that two cannot end together."""
    engine = make_engine(
        batch=3,
        capacity=192,
        num_blocks=3,
        max_num_batched_tokens=40,
        enable_prefix_caching=False,
        runs_ahead=runs_ahead,
    )
    ended: list[str] = []
    for number in range(4 * 140):
        if number < 400 and not number % 4:
            engine.add_request(f"r{number // 4}", [number % 42] * 40, make_params(140))
        ended += [news.request_id for news in engine.step() if news.finished]
    assert ended == [f"r{number}" for number in range(len(ended))], "in the order of arrival"
    assert len(ended) >= 3
    assert engine.stats().num_preemptions_total > 0
