"""Attention of one new token for each of several sequences of mixed length, as in a server's decode step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import CPU, DEFAULT_GPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32, int32
from interlace.core.errors import ShapeError
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.attend import BLOCK, attend, compute_max_splits
from interlace.kernels.attend.shares import COLUMNS, build_share_table, count_table_rows
from interlace.kernels.combine import combine
from interlace.kernels.matmul.tile import TileShape
from interlace.kernels.rope import apply_rope
from interlace.models.forward_torch import rotate
from interlace.models.llama import LLAMAS
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload
from interlace.workloads.decode import RANDOM_NUMBERS, build_rope_table, repeat_values

_ATTENTION, _LENGTHS = "Attention", "Lengths"
_EXPONENT = 1.2  # exponent of Zipf's law
_SMALL = 64  # minimum ratio of the giant sequence's length to the others'


class Lengths(Enum):
    """Distribution of sequence lengths: uniform, by Zipf's law, or one giant sequence among short ones."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    GIANT = "giant"


def ragged_attention(
    batch: int,
    capacity: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: DType = bf16,
    *,
    parts: int,
    shares: bool,
) -> Graph:
    """Build ``out``: attention of one token per sequence over its cache and its own key; see ``kernels/attend``.

    Args:
        batch: number of sequences (B).
        capacity: KV-cache capacity per sequence in positions.
        heads, kv_heads, head_dim: query heads, key and value heads, elements of a head.
        dtype: dtype of q, k, v, the caches and ``out``.
        parts: number of splits of a head's cache: over all sequences together with ``shares``, else per sequence.
        shares: True if a table assigns sequence positions to each split.

    Inputs: ``q`` (B, heads * head_dim), ``k`` and ``v`` (B, kv_heads * head_dim), ``position`` (B,) of int32, ``rope``
    (capacity, head_dim) of float32, ``k_cache`` and ``v_cache`` (B, kv_heads, capacity, head_dim); with ``shares`` also
    ``shares`` (parts + B, 3), ``first`` (B + 1,) and ``rows`` (parts + B,) of int32, from ``build_share_table``.

    Raises:
        ArgumentError, ShapeError: invalid or inconsistent extents.
    """
    wide, narrow, cached = heads * head_dim, kv_heads * head_dim, (batch, kv_heads, capacity, head_dim)
    given = {
        **{name: Tensor(name, (batch, n), dtype) for name, n in (("q", wide), ("k", narrow), ("v", narrow))},
        "position": Tensor("position", (batch,), int32),
        "rope": Tensor("rope", (capacity, head_dim), fp32),
        **{name: Tensor(name, cached, dtype) for name in ("k_cache", "v_cache")},
    }
    of, owners = parts, batch
    listed: dict[str, Tensor] = {}
    inputs = dict(given)
    if shares:
        of, owners = 1, count_table_rows(parts, batch)
        given["shares"] = Tensor("shares", (owners, COLUMNS), int32)
        listed = {"first": Tensor("first", (batch + 1,), int32), "rows": Tensor("rows", (owners,), int32)}
        inputs = {**given, **listed}
    out = Tensor("out", (batch, wide), dtype)
    left: tuple[Tensor, ...] = ()
    if of == 1 and not shares:
        ops = [attend("attend", **given, out=out)]  # type: ignore[arg-type]
    else:
        part = (owners, kv_heads, of, heads // kv_heads)
        split, peak, total = left = tuple(
            Tensor(name, shape, fp32) for name, shape in (("parts", (*part, head_dim)), ("peak", part), ("total", part))
        )
        ops = [
            attend("attend", **given, out=split, peak=peak, total=total),  # type: ignore[arg-type]
            combine("combine", split, peak, total, out, **listed),
        ]
    return Graph("ragged-attention", (*inputs.values(), *left, out), tuple(ops), tuple(inputs), ("out",))


@dataclass(frozen=True)
class RaggedAttention(Workload):
    """Attention of one token for each of several sequences of mixed length.

    Raises:
        ShapeError: ``heads`` is not a multiple of ``kv_heads``.
    """

    name: ClassVar[str] = "ragged-attention"
    presets: ClassVar[Presets] = {
        **{
            model: {name: getattr(LLAMAS[model], name) for name in ("heads", "kv_heads", "head_dim")}
            for model in ("llama3.2-1b", "llama3.1-8b")
        },
        "small": {"heads": 4, "kv_heads": 2, "head_dim": 16, "batch": 5, "longest": 200},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "llama3.1-8b"
    size: ClassVar[str] = "batch"
    sizes: ClassVar[tuple[int, ...]] = (8, 32)
    weights: ClassVar[tuple[str, ...]] = ("k_cache", "v_cache")

    heads: Annotated[int, Option("Heads of queries.", least=1, group=_ATTENTION)]
    kv_heads: Annotated[int, Option("Heads of keys and values.", least=1, group=_ATTENTION)]
    head_dim: Annotated[int, Option("Elements of a head.", least=16, group=_ATTENTION)]
    batch: Annotated[int, Option("Sequences.", least=1, most=1 << 20)] = 32
    longest: Annotated[int, Option("Cached positions of a sequence at most.", least=1, group=_LENGTHS)] = 4096
    lengths: Annotated[
        Lengths, Option("How long sequences are", names={kind.value: kind for kind in Lengths}, group=_LENGTHS)
    ] = Lengths.UNIFORM
    draw: Annotated[int, Option("Seed of the lengths.", least=0, most=1 << 128, group=_LENGTHS)] = 0
    shares: Annotated[
        int | None,
        Option(
            "Equal shares that all positions of a head of keys are cut into; by default one for each SM of a GPU; "
            "0 cuts each sequence into as many of its own.",
            least=0,
        ),
    ] = None
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.heads} heads do not share {self.kv_heads} heads of keys evenly; use a multiple")
        self.cached_lengths  # noqa: B018  torch.compile traces what is drawn already

    @property
    def title(self) -> str:
        heads = f"{self.heads} heads of {self.head_dim} over {self.kv_heads}"
        mixed = f"{self.lengths.value} lengths up to {max(self.cached_lengths)}, {sum(self.cached_lengths)} in all"
        return f"attention of {self.batch} sequences of {mixed}, {heads}, {self.dtype}"

    @cached_property
    def cached_lengths(self) -> tuple[int, ...]:
        """Cached positions of each sequence."""
        random, n = np.random.default_rng((self.draw, self.batch)), self.batch
        if self.lengths is Lengths.ZIPF:
            drawn = random.permutation(np.ceil(self.longest * np.arange(1.0, n + 1) ** -_EXPONENT).astype(int))
        elif self.lengths is Lengths.UNIFORM:
            drawn = random.integers(1, self.longest + 1, n)
        else:
            drawn = random.integers(1, max(self.longest // _SMALL, 1) + 1, n)
            drawn[int(random.integers(n))] = self.longest
        return tuple(drawn.tolist())

    @property
    def capacity(self) -> int:
        """KV-cache capacity per sequence in positions."""
        return -(-(self.longest + 1) // BLOCK) * BLOCK

    @property
    def num_splits(self) -> int:
        """Requested number of splits, at most the number of blocks of positions."""
        usual = DEFAULT_GPU.sms // self.kv_heads if self.shares is None else self.shares
        return max(1, min(usual, sum(-(-at // BLOCK) for at in self.cached_lengths)))

    @property
    def read_share(self) -> float:
        return sum(self.cached_lengths) / (self.batch * self.capacity)

    @property
    def flops(self) -> float:
        return 4.0 * self.heads * self.head_dim * (sum(self.cached_lengths) + self.batch)

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        shares = self.shares != 0
        parts = self.num_splits if shares else compute_max_splits(device.sms, self.batch, self.kv_heads, self.capacity)
        shape = self.batch, self.capacity, self.heads, self.kv_heads, self.head_dim
        return ragged_attention(*shape, self.dtype, parts=parts, shares=shares)

    def make_inputs(self, seed: int) -> Inputs:
        """Draw all inputs from N(0, 1), caches from a pool of random numbers; lengths are the same for all seeds."""
        random, graph = np.random.default_rng(seed), self.build_graph(CPU)
        pool = round_to(random.standard_normal(RANDOM_NUMBERS, np.float32), self.dtype)
        of = dict(self.make_host_inputs(seed))
        for name in (name for name in graph.inputs if name not in of):
            of[name] = repeat_values(pool, int(random.integers(RANDOM_NUMBERS)), graph.tensor(name).shape)
        return of

    def make_host_inputs(self, seed: int) -> Inputs:
        of = {
            "position": np.array(self.cached_lengths, np.float32),
            "rope": build_rope_table(self.capacity, self.head_dim),
        }
        if self.shares != 0:
            tables = zip(
                ("shares", "first", "rows"), build_share_table(self.cached_lengths, self.num_splits, BLOCK), strict=True
            )
            of |= {name: value.astype(np.float32) for name, value in tables}
        return of

    def get_deviation(self, tensor: Tensor) -> float:
        return 1.0

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"out": self._run_in_numpy(tensors) if xp is np else self._run_in_torch(xp, tensors)}

    def _run_in_numpy(self, t: Mapping[str, Any]) -> Any:
        group, d = self.heads // self.kv_heads, self.head_dim
        out = np.zeros_like(t["q"]).reshape(self.batch, self.kv_heads, group, d)
        for b, at in enumerate(self.cached_lengths):
            for head in range(self.kv_heads):
                angles, own = t["rope"][at], (slice(b, b + 1), slice(head * d, (head + 1) * d))
                queries = apply_rope(t["q"][b].reshape(-1, group, d)[head], angles, None, 0.0)
                keys = np.vstack([t["k_cache"][b, head, :at], apply_rope(t["k"][own], angles, None, 0.0)])
                values = np.vstack([t["v_cache"][b, head, :at], t["v"][own]])
                scores = queries @ keys.T / np.sqrt(d)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                out[b, head] = weights @ values / weights.sum(axis=1, keepdims=True)
        return out.reshape(t["q"].shape)

    def list_alternatives(self, torch: Any) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Return attention over all sequences at once with a mask; it reads the caches to full capacity."""

        def attend_padded(t: Mapping[str, Any]) -> Mapping[str, Any]:
            q = self.append_kv(torch, t)
            mask = torch.arange(self.capacity, device=q.device) <= t["position"].long()[:, None]
            attention = torch.nn.functional.scaled_dot_product_attention
            out = attention(q[:, :, None], t["k_cache"], t["v_cache"], mask[:, None, None], enable_gqa=True)
            return {"out": out.reshape(self.batch, -1)}

        return {"padded": attend_padded}

    def _run_in_torch(self, torch: Any, t: Mapping[str, Any]) -> Any:
        """Run sequence by sequence, so that only cached positions are read."""
        q = self.append_kv(torch, t)

        def one(b: int, end: int) -> Any:
            k, v = (t[name][b, None, :, :end] for name in ("k_cache", "v_cache"))
            return torch.nn.functional.scaled_dot_product_attention(q[b, None, :, None], k, v, enable_gqa=True)

        return torch.cat([one(b, at + 1) for b, at in enumerate(self.cached_lengths)]).reshape(self.batch, -1)

    def append_kv(self, torch: Any, t: Mapping[str, Any]) -> Any:
        """Write keys and values into the caches and return the rotated queries (B, heads, D)."""
        batch, d = self.batch, self.head_dim
        position = t["position"].long()
        cos, sin = t["rope"][position][:, None, :].to(t["q"].dtype).chunk(2, -1)

        sequences = torch.arange(batch, device=position.device)
        t["k_cache"][sequences, :, position] = rotate(torch, t["k"].view(batch, -1, d), cos, sin)
        t["v_cache"][sequences, :, position] = t["v"].view(batch, -1, d)
        return rotate(torch, t["q"].view(batch, -1, d), cos, sin)
