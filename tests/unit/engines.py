"""Engines on small models with random weights, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from interlace.engine import Engine, RequestOutput
from interlace.nn import Decoder

from .llama import SHAPE, ToyForCausalLM, stored_names
from .model_files import TOKENS, VOCABULARY, gguf_bytes, gguf_metadata, gguf_tensors

SMALL = replace(SHAPE, vocabulary=len(TOKENS))
TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"


@cache
def make_model() -> ToyForCausalLM:
    """Return the model of all engines, in float64: texts do not depend on how prompts are cut."""
    return ToyForCausalLM(SMALL)


def make_engine(batch: int = 2, capacity: int = 64, num_blocks: int | None = None, **options: Any) -> Engine:
    decoder = Decoder.from_model(make_model(), batch=batch, max_seq_len=capacity, num_blocks=num_blocks)
    decoder.stop_token_ids = (3,)
    return Engine(decoder, **options)


def generate_alone(prompt: list[int], count: int, stop: Iterable[int] = (3,)) -> list[int]:
    """Return the greedy text of a prompt by a decoder of its own, without its stop token."""
    decoder = Decoder.from_model(make_model(), max_seq_len=len(prompt) + count)
    return decoder.generate(prompt, count, stop_token_ids=[*stop])


def write_model(path: Path, **more: Any) -> Path:
    """Write a small model with a tokenizer and a chat template, and return its path."""
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "tokenizer.ggml.eos_token_id": 5}
    metadata |= {"tokenizer.chat_template": TEMPLATE, **more}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    return path


def collect(engine: Engine, results: dict[str, list[RequestOutput]] | None = None) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left; return all outputs by request."""
    results = {} if results is None else results
    for _ in range(10_000):
        if not engine.has_unfinished:
            return results
        for news in engine.step():
            results.setdefault(news.request_id, []).append(news)
    raise AssertionError("the engine does not come to an end")


def join_tokens(news: list[RequestOutput], index: int = 0) -> list[int]:
    return [token for each in news for part in each.outputs if part.index == index for token in part.token_ids]


def join_text(news: list[RequestOutput], index: int = 0) -> str:
    return "".join(part.text for each in news for part in each.outputs if part.index == index)


def find_end(news: list[RequestOutput], index: int = 0) -> tuple[str | None, int | str | None]:
    """Return finish and stop reason of a text, which only its last part has."""
    parts = [part for each in news for part in each.outputs if part.index == index]
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    return parts[-1].finish_reason, parts[-1].stop_reason
