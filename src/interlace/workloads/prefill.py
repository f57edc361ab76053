"""Causal attention of a prompt's tokens with its output projection: a layer's prefill without its other matmuls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.causal_attention import AttentionTile, causal_attention
from interlace.kernels.matmul import MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.models.llama import LLAMAS
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload, sample_inputs

_ATTENTION = "Attention"


def prefill_attention(
    rows: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: DType = bf16,
    *,
    longest: int | None = None,
    tile: AttentionTile | None = None,
    product: MatmulTile | None = None,
) -> Graph:
    """Build ``out = attended @ o.T``, where ``attended`` is causal attention of q over k and v; see
    ``causal_attention``.

    Args:
        rows: number of tokens of all sequences, packed.
        hidden: columns of the result.
        heads, kv_heads, head_dim: query heads, key and value heads, elements of a head.
        dtype: dtype of all tensors except ``first``.
        longest: maximum sequence length in tokens; by default all rows.
        tile, product: tiles of attention and of the matmul.

    Raises:
        ArgumentError, ShapeError: invalid or inconsistent extents.
    """
    wide, narrow = heads * head_dim, kv_heads * head_dim
    q, k, v = (Tensor(name, (rows, n), dtype) for name, n in (("q", wide), ("k", narrow), ("v", narrow)))
    first = Tensor("first", (rows,), int32)
    o = Tensor("o", (hidden, wide), dtype)
    attended, out = Tensor("attended", (rows, wide), dtype), Tensor("out", (rows, hidden), dtype)
    ops = (
        causal_attention("attention", q, k, v, first, attended, head_dim=head_dim, window=longest, tile=tile),
        matmul("product", attended, o, out, tile=product),
    )
    return Graph("prefill-attention", (q, k, v, first, o, attended, out), ops, ("q", "k", "v", "first", "o"), ("out",))


def pack_sequences(lengths: list[int] | tuple[int, ...], rows: int | None = None) -> NDArray[np.int32]:
    """Return ``first`` for packed sequences of these lengths, padded to ``rows``.

    Raises:
        ShapeError: the sequences have more tokens than rows.
    """
    starts = np.cumsum([0, *lengths])
    first = np.repeat(starts[:-1], lengths).astype(np.int32)
    rows = len(first) if rows is None else rows
    if len(first) > rows:
        raise ShapeError(f"sequences of {list(lengths)} tokens do not go into {rows} rows; give more")
    return np.concatenate([first, np.full(rows - len(first), rows, np.int32)])


@dataclass(frozen=True)
class PrefillAttention(Workload):
    """Causal attention of whole prompts, with its output product.

    Raises:
        ShapeError: ``heads`` is not a multiple of ``kv_heads``.
    """

    name: ClassVar[str] = "prefill-attention"
    presets: ClassVar[Presets] = {
        **{
            model: {name: getattr(LLAMAS[model], name) for name in ("hidden", "heads", "kv_heads", "head_dim")}
            for model in ("llama3.2-1b", "llama3.1-8b")
        },
        "small": {"hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "tokens": 50, "batch": 2},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "llama3.1-8b"
    size: ClassVar[str] = "tokens"
    sizes: ClassVar[tuple[int, ...]] = (512, 2048, 8192)
    weights: ClassVar[tuple[str, ...]] = ("o",)

    hidden: Annotated[int, Option("Width of the model.", least=1)]
    heads: Annotated[int, Option("Heads of queries.", least=1, group=_ATTENTION)]
    kv_heads: Annotated[int, Option("Heads of keys and values.", least=1, group=_ATTENTION)]
    head_dim: Annotated[int, Option("Elements of a head.", least=16, group=_ATTENTION)]
    tokens: Annotated[int, Option("Tokens of each prompt.", least=1)] = 2048
    batch: Annotated[int, Option("Prompts.", least=1)] = 1
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.heads} heads do not share {self.kv_heads} heads of keys evenly; use a multiple")

    @property
    def title(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim} over {self.kv_heads}"
        return f"attention of {self.batch} x {self.tokens} tokens, {heads}, to {self.hidden}, {self.dtype}"

    @property
    def flops(self) -> float:
        wide, rows = self.heads * self.head_dim, self.batch * self.tokens
        return 2.0 * rows * wide * (self.tokens + 1 + self.hidden)

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        rows = self.batch * self.tokens
        own = AttentionTile.heuristic(self.head_dim, self.dtype.itemsize, device)
        if tile is not None:
            own = AttentionTile(tile.m, tile.k)
        product = select_matmul_tile(rows, device, tile)
        heads = self.heads, self.kv_heads, self.head_dim
        return prefill_attention(rows, self.hidden, *heads, self.dtype, longest=self.tokens, tile=own, product=product)

    def make_inputs(self, seed: int) -> Inputs:
        """Draw q, k and v from N(0, 1) and o as any weight; ``first`` is that of packed prompts."""
        graph = self.build_graph(CPU)
        drawn = sample_inputs(graph, seed)
        for name in ("q", "k", "v"):
            drawn[name] *= np.float32(graph.tensor(name).shape[-1] ** 0.5)
        return {**drawn, "first": pack_sequences([self.tokens] * self.batch).astype(np.float32)}

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        attended = self._run_in_numpy(tensors) if xp is np else self._run_in_torch(xp, tensors)
        return {"out": attended.reshape(self.batch * self.tokens, -1) @ tensors["o"].T}

    def _run_in_torch(self, torch: Any, tensors: Mapping[str, Any]) -> Any:
        def split(name: str) -> Any:
            return tensors[name].view(self.batch, self.tokens, -1, self.head_dim).transpose(1, 2)

        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(split("q"), split("k"), split("v"), is_causal=True, enable_gqa=True).transpose(1, 2)

    def _run_in_numpy(self, tensors: Mapping[str, Any]) -> Any:
        q, k, v = (tensors[name].reshape(self.batch, self.tokens, -1, self.head_dim) for name in ("q", "k", "v"))
        k, v = (np.repeat(each, self.heads // self.kv_heads, axis=2) for each in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(self.head_dim)
        scores = np.where(np.tri(self.tokens, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(axis=-1, keepdims=True), v)
