"""Prompts with fused ops under the Triton interpreter: against PyTorch's own ops, and float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from interlace.kernels import prompt_rows
from interlace.kernels.prompt_rows import PromptRows, add_and_normalize
from interlace.models.forward_torch import LayerOps
from interlace.models.llama import LlamaShape
from interlace.models.weights import list_weights
from interlace.nn import Decoder
from interlace.nn.decoder import fused
from interlace.nn.decoder import step as plain
from interlace.nn.decoder.cache import KVCache
from interlace.nn.decoder.library import find_bucket
from interlace.nn.decoder.pages import PagedKVCache
from interlace.workloads.decode import build_rope_table

from ..cases import relative_error
from ..thorough import some

CAPACITY = 100  # positions, not whole pages
SHAPES = {
    "norms of heads": LlamaShape(2, 48, 80, 6, 2, 16, 61, qk_norm=True),
    "biases, heads of 24, 5 of them": LlamaShape(2, 40, 48, 5, 1, 24, 61, qkv_bias=True, tied=True),
}
HALF = torch.finfo(torch.float16).eps / 2  # Triton's interpreter rounds to fp16, and truncates to bf16


def make_decoder(shape: LlamaShape, dtype: torch.dtype, pages: int | None = None) -> Decoder:
    random = torch.Generator().manual_seed(0)
    weights = {}
    for name, extents in list_weights(shape).items():
        value = torch.randn(extents, generator=random)
        value = value * extents[-1] ** -0.5 if len(extents) == 2 and name != "embed" else 1 + value / 8
        weights[name] = value.half().to(dtype)
    rope = torch.from_numpy(build_rope_table(CAPACITY, shape.head_dim))
    return Decoder.from_weights(shape, weights, rope, batch=3, num_blocks=pages)


def attend_last(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, key_ends: torch.Tensor
) -> torch.Tensor:
    """Compute what FlashAttention does, which no CPU runs, and check that it is asked for no other rows."""
    (first, count), (other, keys) = ends.tolist(), key_ends.tolist()
    assert (first, other, count) == (0, 0, len(q))
    assert count <= keys <= len(k)
    seen = torch.ones(count, keys, dtype=torch.bool).tril(keys - count)
    rows = (each[None].transpose(1, 2) for each in (q, k[:keys], v[:keys]))
    return scaled_dot_product_attention(*rows, seen, enable_gqa=True)[0].transpose(0, 1)


@pytest.fixture(autouse=True)
def _attention_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "attend_last", attend_last)
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("columns", [64, 200])
def test_a_residual_and_its_norm_are_rounded_once(columns: int) -> None:
    dtype = torch.float16
    torch.manual_seed(0)
    x, increment = (torch.randn(7, columns, dtype=dtype) for _ in range(2))
    weight = (1 + torch.randn(columns) / 8).to(dtype)
    for more in (None, increment):
        total, out = add_and_normalize(x, more, weight, 1e-5)
        exact = x.double() if more is None else x.double() + more.double()
        assert torch.equal(total, exact.to(dtype))
        right = rms_norm(exact, (columns,), weight.double(), 1e-5)
        torch.testing.assert_close(out.double(), right, rtol=1.02 * HALF, atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("paged", [False, True], ids=["plain", "pages"])
def test_heads_are_rotated_and_appended_where_tokens_are(
    name: str, paged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each element within half a unit in the last place of float64; no row of the cache but those of tokens."""
    monkeypatch.setattr(prompt_rows, "_ELEMENTS", 64)  # so that heads take several blocks, the last in part
    shape, dtype, count, start, last = SHAPES[name], torch.float16, 9, 60, 6
    torch.manual_seed(0)
    q, k, v = (torch.randn(count, heads, shape.head_dim, dtype=dtype) for heads in (shape.heads, *2 * [shape.kv_heads]))
    norms = None
    if shape.qk_norm:
        norms = tuple((1 + torch.randn(shape.head_dim) / 8).to(dtype) for _ in range(2))
    rope = torch.from_numpy(build_rope_table(CAPACITY, shape.head_dim))
    cache = KVCache.make(shape, 5, 64 if paged else CAPACITY, dtype, torch.device("cpu"))
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(float("nan"))
    slot, *at = (torch.tensor([number]) for number in (1, start, last))
    pages: tuple[torch.Tensor, int] | tuple[()] = ()
    if paged:
        pages = torch.tensor([[-1, -1], [4, 2], [0, -1]], dtype=torch.int32), 64
        cache = PagedKVCache(cache.k, cache.v, pages[0])
    rows = PromptRows(rope, slot, *at, *pages)
    queries, keys = rows.rotate_and_append(q, k, v, norms, shape.eps, (cache.k[0], cache.v[0]), True)
    angles = rope[start : start + count, None].double()
    exact = None if norms is None else tuple(weight.double() for weight in norms)
    right = LayerOps(torch, shape).rotate_heads(0, q.double(), k.double(), v, exact, angles)
    for found, exactly in zip((queries, keys), right, strict=True):
        torch.testing.assert_close(found.double(), exactly, rtol=1.02 * HALF, atol=1e-6)
    cached = cache.read(0, 1, start + last + 1)
    for tensor, new in zip(cached, (keys, v), strict=True):
        assert torch.equal(tensor[0, :, start:].transpose(0, 1), new[: last + 1])
        assert tensor[0, :, :start].isnan().all()
    assert cache.k[0].isfinite()[..., 0].sum() == cache.v[0].isfinite()[..., 0].sum() == (last + 1) * shape.kv_heads
    for tensor in (cache.k[0], cache.v[0]):
        tensor.nan_to_num_(2.0)
    for found, tensor in zip(rows.read_cached((cache.k[0], cache.v[0]), 79), cache.read(0, 1, 67), strict=True):
        assert torch.equal(found[:67], tensor[0].transpose(0, 1))
        assert not found[67:].any()


#: Cases of every run: each shape, and each kind of cache.
OFTEN = ("norms of heads", 7), ("biases, heads of 24, 5 of them", None)


@pytest.mark.parametrize("case", some(product(SHAPES, (None, 7)), OFTEN.__contains__), ids=str)
def test_padded_prompts_are_as_near_float64_as_those_of_pytorch(case: tuple[str, int | None]) -> None:
    """Prompts in two pieces, in poisoned caches, and logits, keys and values."""
    name, pages = case
    shape, dtypes = SHAPES[name], (torch.float16, torch.float16, torch.float64)
    decoders = [make_decoder(shape, dtype, pages) for dtype in dtypes]
    for decoder in decoders:
        decoder.add([1])
        decoder._slots.grow({2: CAPACITY})
        decoder._slots.upload()
        for tensor in (*decoder.cache.k, *decoder.cache.v):
            tensor.fill_(float("nan"))
    reads = fused.prefill_padded, plain.prefill_padded, plain.prefill_padded
    prompt = torch.randint(61, (CAPACITY,), generator=torch.Generator().manual_seed(1)).tolist()
    for start, end in ((0, 33), (33, 40), (40, CAPACITY)):
        bucket = find_bucket(end - start, start, CAPACITY)
        padding = [60] * (bucket.tokens - (end - start))
        ids = torch.tensor(prompt[start:end] + padding)
        at = [torch.tensor([number]) for number in (2, start, end - start - 1)]
        ours, theirs, right = (
            read(shape, decoder._weights, decoder._rope, decoder.cache, ids, *at, bucket.reach)
            for read, decoder in zip(reads, decoders, strict=True)
        )
        assert ours.shape == (1, shape.vocabulary)
        assert relative_error(ours, right) <= 1.2 * relative_error(theirs, right)
        for layer in range(shape.layers):
            for cached, other, exact in zip(*(each.cache.read(layer, 2, end) for each in decoders), strict=True):
                assert relative_error(cached, exact) <= 1.2 * relative_error(other, exact)
        written = decoders[0].cache.k[1].isfinite()[..., 0].sum()
        assert written == end * shape.kv_heads
