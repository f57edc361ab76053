"""One decode step of a language model with random weights, in the shapes of published models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import bf16
from interlace.core.errors import ArgumentError
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.kernels.matmul.tile import TileShape
from interlace.models import forward_numpy, forward_torch
from interlace.models.forward_numpy import compute_attention
from interlace.models.llama import LLAMAS, PAGE_TOKENS, LlamaShape, build_decode_graph
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload

#: Base of the rotary embeddings; with random weights any base serves as well.
_BASE = 10000.0
_ROUND = 64  # multiple that the default capacity is rounded up to, in positions
#: Size of the pool of random numbers that weights and caches repeat, each from a different start: models have more
#: elements than are worth drawing. A prime, so that no two rows of a matrix are equal.
RANDOM_NUMBERS = 1_048_583
#: Inputs that belong to a step, not to the model; caches do too.
_STEP = ("tokens", "position", "rope", "table")
_ATTENTION = "Attention"
#: Attention from queries (B, heads, 1, D), keys and values (B, kv_heads, capacity, D) to outputs shaped as queries.
Attend = Callable[[Any, Any, Any], Any]
_CACHES = ("k_cache", "v_cache")


def build_rope_table(capacity: int, head_dim: int, base: float = _BASE) -> NDArray[np.float32]:
    """Return cosines, then sines, of positions times base^(-2 d / head_dim) for d < head_dim / 2: (capacity, head_dim).

    Source: Su et al., RoFormer, 2021.
    """
    frequencies = base ** (-2 * np.arange(head_dim // 2) / head_dim)
    angles = np.arange(capacity)[:, None] * frequencies
    return np.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), np.float32)


def repeat_values(values: NDArray[np.float32], start: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Fill a shape by repeating the values cyclically from index ``start``."""
    return np.resize(np.roll(values, -start), prod(shape)).reshape(shape)


@dataclass(frozen=True)
class Decode(Workload):
    """One decode step of a language model of the Llama family, random weights.

    Raises:
        ArgumentError: the context needs more positions or pages than the cache has.
        ShapeError: the model shape is invalid; see ``LlamaShape`` and ``build_decode_graph``.
    """

    name: ClassVar[str] = "decode"
    presets: ClassVar[Presets] = {
        **{name: vars(shape) for name, shape in LLAMAS.items()},
        "tiny": {**vars(LLAMAS["tiny"]), "context": 150},
    }
    cpu_preset: ClassVar[str] = "tiny"
    gpu_preset: ClassVar[str] = "llama3.2-1b"
    size: ClassVar[str] = "batch"
    sizes: ClassVar[tuple[int, ...]] = (1, 16, 64)

    layers: Annotated[int, Option("Layers.", least=1, most=256)]
    hidden: Annotated[int, Option("Width of the model.", least=1)]
    ffn: Annotated[int, Option("Width between the matmuls of the FFN.", least=1)]
    heads: Annotated[int, Option("Heads of queries.", least=1, group=_ATTENTION)]
    kv_heads: Annotated[int, Option("Heads of keys and values.", least=1, group=_ATTENTION)]
    head_dim: Annotated[int, Option("Elements of a head.", least=16, group=_ATTENTION)]
    vocabulary: Annotated[int, Option("Tokens that the model knows.", least=1)]
    eps: Annotated[float, Option("Beside the mean square of every normalisation; 1e-5 by default.")] = 1e-5
    qkv_bias: Annotated[bool, Option("q, k and v with biases, or without.", group=_ATTENTION)] = False
    qk_norm: Annotated[bool, Option("Heads of q and k normalised, or not.", group=_ATTENTION)] = False
    tied: Annotated[bool, Option("The head is the table of embeddings, or a matrix of its own.")] = False
    batch: Annotated[int, Option("Sequences.", least=1)] = 1
    context: Annotated[int, Option("Positions of every sequence in the cache.", least=0)] = 1024
    capacity: Annotated[
        int | None, Option("Positions that the cache has room for; the context and one more by default.", least=1)
    ] = None
    pages: Annotated[
        int | None,
        Option(
            f"Pages of {PAGE_TOKENS} positions that all caches lie in; by default each has room of its own.", least=1
        ),
    ] = None
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        self.model  # noqa: B018  it checks the shape, and torch.compile traces what is made already
        if self.context >= self.cache_positions:
            raise ArgumentError(
                f"a step at position {self.context} needs a capacity of {self.context + 1} and has {self.capacity}; "
                "raise the capacity or lower the context"
            )
        needed = self.batch * (self.context // PAGE_TOKENS + 1)
        if self.pages is not None and self.pages < needed:
            raise ArgumentError(
                f"{self.batch} sequences at position {self.context} need {needed} pages of {PAGE_TOKENS} positions and "
                f"have {self.pages}; give more pages, or lower batch or context"
            )

    @property
    def cache_positions(self) -> int:
        """KV-cache capacity per sequence in positions."""
        return self.capacity if self.capacity is not None else -(-(self.context + 1) // _ROUND) * _ROUND

    @cached_property
    def model(self) -> LlamaShape:
        """Shape of the model."""
        return LlamaShape(**{f.name: getattr(self, f.name) for f in fields(LlamaShape)})

    @property
    def weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Inputs of the model itself: all except those of a step."""
        one = build_decode_graph(replace(self.model, layers=1), 1, 1, CPU).inputs
        own = [name for name in one if name not in _STEP and not name.endswith("_cache")]
        layers = range(self.layers)
        return tuple(dict.fromkeys(name.replace(".0.", f".{layer}.") for layer in layers for name in own))

    @property
    def title(self) -> str:
        known = [name for name, shape in LLAMAS.items() if shape == self.model]
        model = known[0] if known else f"{self.layers} layers of {self.hidden}"
        pages = "" if self.pages is None else f" in {self.pages} pages"
        return f"decode step of {model}, batch {self.batch}, context {self.context}{pages}, {self.dtype}"

    @property
    def flops(self) -> float:
        model = self.model
        wide = model.hidden * model.head_dim * 2 * (model.heads + model.kv_heads)
        layer = wide + 3 * model.hidden * model.ffn + 2 * model.heads * model.head_dim * (self.context + 1)
        return 2.0 * self.batch * (model.layers * layer + model.vocabulary * model.hidden)

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        return build_decode_graph(
            self.model, self.batch, self.cache_positions, device, tile, self.dtype, pages=self.pages
        )

    def make_inputs(self, seed: int) -> Inputs:
        """Fill weights from a pool of random numbers, norms around 1; every sequence is at position ``context``."""
        random = np.random.default_rng(seed)
        graph = self.build_graph(CPU)
        pool = random.standard_normal(RANDOM_NUMBERS, np.float32)
        drawn: dict[str, NDArray[np.float32]] = {
            "tokens": random.integers(0, self.vocabulary, self.batch).astype(np.float32),
            "position": np.full(self.batch, self.context, np.float32),
            "rope": build_rope_table(self.cache_positions, self.head_dim),
        }
        if self.pages is not None:
            drawn["table"] = self._make_page_table(random, self.pages)
        for name in graph.inputs:
            if name in drawn:
                continue
            tensor = graph.tensor(name)
            scale, around = 1.0, 0.0
            if name.endswith("norm"):
                scale, around = 0.1, 1.0
            elif len(tensor.shape) == 2 and name != "embed":
                scale = tensor.shape[-1] ** -0.5
            values = round_to(pool * np.float32(scale) + np.float32(around), self.dtype)
            drawn[name] = repeat_values(values, int(random.integers(RANDOM_NUMBERS)), tensor.shape)
        return drawn

    def _make_page_table(self, random: np.random.Generator, pages: int) -> NDArray[np.float32]:
        """Return the pages of each sequence in random order, -1 after those that it needs."""
        each = self.context // PAGE_TOKENS + 1
        table = np.full((self.batch, -(-self.cache_positions // PAGE_TOKENS)), -1, np.float32)
        table[:, :each] = random.permutation(pages)[: self.batch * each].reshape(self.batch, each)
        return table

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return _run_in_numpy(self.model, tensors) if xp is np else self.run_in_torch(xp, tensors)

    def run_in_torch(self, torch: Any, tensors: Mapping[str, Any], attend: Attend | None = None) -> Mapping[str, Any]:
        """Run a step in PyTorch, with a static cache written in place, as models are compiled for decoding.

        Args:
            torch: the module ``torch``.
            tensors: inputs; the fused matrices of ``forward_torch.FUSED_WEIGHTS`` may replace what they stack.
            attend: attention to use instead of ``scaled_dot_product_attention``.
        """
        return _run_in_torch(torch, self.model, tensors, attend)


def _run_in_numpy(model: LlamaShape, t: Mapping[str, Any]) -> dict[str, Any]:
    """Run a step in NumPy without writing the new token to the cache."""
    tokens, position = t["tokens"].astype(np.int64), t["position"].astype(np.int64)

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        caches = [t[f"layers.{layer}.{name}"] for name in _CACHES]
        if "table" in t:
            caches = [_gather_cache(pages, t["table"].astype(np.int64), len(t["rope"])) for pages in caches]
        out = np.empty_like(q)
        for b, at in enumerate(position):
            pairs = zip(caches, (k, v), strict=True)
            rows = (np.concatenate([cache[b, :, :at], new[b][:, None]], axis=1) for cache, new in pairs)
            out[b] = compute_attention(q[b], *rows)
        return out

    logits = forward_numpy.compute_logits(model, t, tokens, t["rope"][position], attend)
    return {"logits": logits, "next": logits.argmax(axis=1)}


def _gather_cache(pages: Any, table: Any, capacity: int) -> Any:
    """Gather a cache (B, heads, capacity, D) from its pages; entries without a page hold those of an arbitrary page."""
    found = pages[table].swapaxes(1, 2)
    return found.reshape(*found.shape[:2], -1, found.shape[-1])[:, :, :capacity]


def _run_in_torch(torch: Any, model: LlamaShape, t: Mapping[str, Any], attend: Attend | None) -> dict[str, Any]:
    """Run a step in PyTorch; see ``Decode.run_in_torch``."""
    tokens, position = t["tokens"].long(), t["position"].long()
    table = t["table"].long() if "table" in t else None
    where: tuple[Any, Any] = torch.arange(len(tokens), device=tokens.device), position
    if table is not None:
        where = table[where[0], position // PAGE_TOKENS], position % PAGE_TOKENS
    angles = t["rope"][position][:, None, :].to(t["embed"].dtype)
    capacity = t["rope"].shape[0]
    mask = (torch.arange(capacity, device=tokens.device) <= position[:, None])[:, None, None, :]

    def append_and_attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        caches = []
        for name, new in zip(_CACHES, (k, v), strict=True):
            cache = t[f"layers.{layer}.{name}"]
            cache[where[0], :, where[1]] = new
            caches.append(cache if table is None else _gather_cache(cache, table, capacity))
        # Fastest of the variants tried under torch.compile, alone and in batches (benchmarks/notes/decode.md).
        if attend is None:
            return torch.nn.functional.scaled_dot_product_attention(q[:, :, None], *caches, mask, enable_gqa=True)
        return attend(q[:, :, None], *caches)

    x = forward_torch.run_layers(torch, model, t, tokens, angles, append_and_attend)
    logits = forward_torch.compute_logits(torch, model, t, x)
    return {"logits": logits, "next": logits.argmax(-1)}
