"""Cases of CuSync's benchmarks (Jangda et al., CGO 2024): MLPs, attention and convolutions, with their policies.

Each case has one of 8 GPUs' share of a layer of GPT-3 175B (width 12288) or LLaMA 65B (width 8192), or the convolutions
of ResNet and VGG, at the sizes of CuSync's scripts. Two things differ from its scripts. Its attention multiplies two
matrices without a softmax and in one head as wide as all of them; here it is causal attention in heads of 128, because
that is what people run. Its tensors are fp16; these are bf16, as in the other records.

Policies carry over by name, except for CuSync's strided policy of attention. It has one semaphore for each row of tiles
of each of queries, keys and values, which are columns of one product there. Here they are three products, so that is
``RowSync``; ``ConsumerSync`` has one for each head's tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from uneven import Case

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32, int32
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend import BLOCK, attend, select_splits
from interlace.kernels.causal_attention import AttentionTile, causal_attention
from interlace.kernels.combine import combine
from interlace.kernels.matmul import Activation, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.policies.sync import ConsumerSync, Conv2DSync, RowSync, SyncPolicy, TileSync
from interlace.workloads import WORKLOADS, FeedForward, Workload
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, sample_inputs

HEAD_DIM = 128
#: Hidden width, width between the matmuls, and query heads, by model: the share of one of 8 GPUs.
MODELS = {"gpt3": (12288, 6144, 12), "llama": (8192, 2816, 8)}
#: Tokens of the MLPs.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, *range(512, 3073, 256))
#: Rows and cached positions of attention: prompts, then tokens of as many sequences.
PROMPTS = tuple((rows, 0) for rows in (64, 128, 256, 512))
STEPS = tuple((rows, total - rows) for total in (512, 1024, 2048) for rows in (1, 2, 4))
#: Images, and rows and columns of an image by channels.
IMAGES = (1, 4, 8, 12, 16, 20, 24, 28, 32)
EDGES = {64: 56, 128: 28, 256: 14, 512: 7}
CHANNELS = {"conv-pair": (64, 128, 256, 512), "conv-chain": (256, 512)}
#: Policies of each family; launches need none.
POLICIES: Mapping[str, tuple[SyncPolicy, ...]] = {
    "mlp": (RowSync(), TileSync()),
    "attention": (RowSync(), TileSync(), ConsumerSync()),
    "conv-pair": (RowSync(), TileSync(), Conv2DSync()),
    "conv-chain": (RowSync(), TileSync(), Conv2DSync()),
}
_PROJECTIONS = ("q", "k", "v")


@dataclass(frozen=True)
class AttentionLayer(Workload):
    """Attention with the products before and after it: a prompt, or one token each of several sequences."""

    name: ClassVar[str] = "attention-layer"
    presets: ClassVar[Presets] = {
        "small": {"hidden": 64, "heads": 2, "head_dim": 16, "rows": 5},
        **{name: {"hidden": hidden, "heads": heads} for name, (hidden, _, heads) in MODELS.items()},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "gpt3"
    size: ClassVar[str] = "rows"
    weights: ClassVar[tuple[str, ...]] = ("w_q", "w_k", "w_v", "w_o", "k_cache", "v_cache")

    hidden: Annotated[int, Option("Width of the model.", least=1)]
    heads: Annotated[int, Option("Heads of queries, keys and values.", least=1)]
    rows: Annotated[int, Option("Tokens of the prompt, or sequences.", least=1)] = 16
    cached: Annotated[int, Option("Cached positions of each sequence; 0 for a prompt.", least=0)] = 0
    head_dim: Annotated[int, Option("Elements of a head.", least=16)] = HEAD_DIM
    dtype: DTypeField = bf16

    @property
    def capacity(self) -> int:
        """KV-cache capacity per sequence in positions."""
        return -(-(self.cached + 1) // BLOCK) * BLOCK

    @property
    def flops(self) -> float:
        wide, pairs = self.heads * self.head_dim, self.rows * (self.cached + 1)
        if not self.cached:
            pairs = self.rows * (self.rows + 1) // 2
        return 8.0 * self.rows * self.hidden * wide + 4.0 * pairs * wide

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        wide, given = self.heads * self.head_dim, self._list_inputs()
        t = {name: Tensor(name, shape, dtype) for name, (shape, dtype) in given.items()}
        rows = {name: Tensor(name, (self.rows, wide), self.dtype) for name in (*_PROJECTIONS, "attended")}
        out = Tensor("out", (self.rows, self.hidden), self.dtype)
        block = select_matmul_tile(self.rows, device, tile)
        ops: list[Op] = [matmul(name, t["x"], t[f"w_{name}"], rows[name], tile=block) for name in _PROJECTIONS]
        left: tuple[Tensor, ...] = ()
        projected = [rows[name] for name in _PROJECTIONS]
        if not self.cached:
            own = AttentionTile.heuristic(self.head_dim, self.dtype.itemsize, device)
            attended = rows["attended"]
            ops.append(causal_attention("attend", *projected, t["first"], attended, head_dim=self.head_dim, tile=own))
        else:
            shared = [t[name] for name in ("position", "rope", "k_cache", "v_cache")]
            splits = self._select_splits(device)
            if splits == 1:
                ops.append(attend("attend", *projected, *shared, rows["attended"]))
            else:
                part = (self.rows, self.heads, splits, 1)
                shapes = {"parts": (*part, self.head_dim), "peak": part, "total": part}
                left = tuple(Tensor(name, shape, fp32) for name, shape in shapes.items())
                ops.append(attend("attend", *projected, *shared, *left))
                ops.append(combine("combine", *left, rows["attended"]))
        ops.append(matmul("o", rows["attended"], t["w_o"], out, tile=block))
        return Graph(self.name, (*t.values(), *rows.values(), *left, out), tuple(ops), tuple(t), ("out",))

    def _select_splits(self, device: DeviceSpec) -> int:
        """Return the number of splits of each head's cache."""
        row_bytes = 2 * self.head_dim * self.dtype.itemsize
        return select_splits(device, self.rows, self.heads, self.capacity, row_bytes) if device.architecture else 1

    def _list_inputs(self) -> dict[str, tuple[tuple[int, ...], DType]]:
        """Return shape and dtype of each input."""
        wide, dtype = self.heads * self.head_dim, self.dtype
        held = (self.rows, self.heads, self.capacity, self.head_dim)
        more: dict[str, tuple[tuple[int, ...], DType]] = {"first": ((self.rows,), int32)}
        if self.cached:
            more = {
                "position": ((self.rows,), int32),
                "rope": ((self.capacity, self.head_dim), fp32),
                "k_cache": (held, dtype),
                "v_cache": (held, dtype),
            }
        weights = {f"w_{name}": ((wide, self.hidden), dtype) for name in _PROJECTIONS}
        return {"x": ((self.rows, self.hidden), dtype), **weights, "w_o": ((self.hidden, wide), dtype), **more}

    def make_inputs(self, seed: int) -> Inputs:
        drawn = dict(sample_inputs(self.build_graph(CPU), seed))
        for name in ("k_cache", "v_cache"):
            if name in drawn:
                drawn[name] = drawn[name] * np.float32(self.head_dim**0.5)
        return {**drawn, **self.make_host_inputs(seed)}

    def make_host_inputs(self, seed: int) -> Inputs:
        """Return positions, and a table that rotates nothing, or the row in which the prompt begins."""
        if not self.cached:
            return {"first": np.zeros(self.rows, np.float32)}
        half = np.ones((self.capacity, self.head_dim // 2), np.float32)
        return {
            "position": np.full(self.rows, self.cached, np.float32),
            "rope": np.concatenate([half, 0.0 * half], axis=1),
        }

    def get_deviation(self, tensor: Tensor) -> float:
        return 1.0 if tensor.name.endswith("_cache") else super().get_deviation(tensor)

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute the layer; ``w_qkv``, if there is one, stacks the three weights."""
        x = tensors["x"]
        if "w_qkv" in tensors:
            rows = (x @ tensors["w_qkv"].T).reshape(self.rows, 3, self.heads, self.head_dim)
            q, k, v = (rows[:, n] for n in range(3))
        else:
            q, k, v = (
                (x @ tensors[f"w_{name}"].T).reshape(self.rows, self.heads, self.head_dim) for name in _PROJECTIONS
            )
        attended = self._attend_numpy(q, k, v, tensors) if xp is np else self._attend_torch(xp, q, k, v, tensors)
        return {"out": attended.reshape(self.rows, -1) @ tensors["w_o"].T}

    def _attend_torch(self, torch: Any, q: Any, k: Any, v: Any, t: Mapping[str, Any]) -> Any:
        attention = torch.nn.functional.scaled_dot_product_attention
        if not self.cached:
            q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
            return attention(q, k, v, is_causal=True)[0].transpose(0, 1)
        for name, value in (("k_cache", k), ("v_cache", v)):
            t[name][:, :, self.cached] = value
        keys, values = (t[name][:, :, : self.cached + 1] for name in ("k_cache", "v_cache"))
        return attention(q[:, :, None], keys, values)

    def _attend_numpy(self, q: Any, k: Any, v: Any, t: Mapping[str, Any]) -> Any:
        """Return attention of rows (rows, heads, head_dim)."""
        if self.cached:
            keys, values = (
                np.concatenate([t[name][:, :, : self.cached], own[:, :, None]], axis=2)
                for name, own in (("k_cache", k), ("v_cache", v))
            )
            scores = np.einsum("rhd,rhkd->rhk", q, keys)
        else:
            scores = np.einsum("rhd,khd->rhk", q, k)
            scores = np.where(np.tri(self.rows, dtype=bool)[:, None], scores, -np.inf)
            values = np.broadcast_to(v.transpose(1, 0, 2), (self.rows, self.heads, self.rows, self.head_dim))
        scores = scores / self.head_dim**0.5
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        return np.einsum("rhk,rhkd->rhd", weights / weights.sum(axis=2, keepdims=True), values)


def make_case(family: str, model: str, rows: int, cached: int, work: Workload) -> Case:
    """Return a case by the columns that the record and CuSync's published figures share."""
    return Case((("family", family), ("model", model), ("rows", rows), ("cached", cached)), work)


def list_cases(workloads: tuple[type[Workload], ...] = WORKLOADS) -> list[Case]:
    """Return all cases; those of convolutions need workloads of their names."""
    return [*_iter_transformers(), *_iter_convolutions({kind.name: kind for kind in workloads})]


def rank_cases(cases: Sequence[Case]) -> dict[str, float]:
    """Return a number for each case's name, in whose order any beginning covers all families and sizes.

    Cases of one model or number of channels are in the order of their numbers with the bits reversed, as van der
    Corput's sequence is: 0, 4, 2, 6, 1, 5, 3, 7 of eight.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for case in cases:
        key = dict(case.key)
        groups.setdefault((key["family"], key["model"], bool(key["cached"])), []).append(case.name)
    ranks = {}
    for names in groups.values():
        order = sorted(range(len(names)), key=lambda n: f"{n:08b}"[::-1])
        ranks |= {names[n]: place / len(names) for place, n in enumerate(order)}
    return ranks


def _iter_transformers() -> Iterator[Case]:
    for model, (hidden, ffn, _) in MODELS.items():
        gated = model == "llama"
        activation = Activation.SILU if gated else Activation.GELU_TANH
        for m in TOKENS:
            yield make_case("mlp", model, m, 0, FeedForward(hidden, ffn, m, gated, activation))
    for model, (hidden, _, heads) in MODELS.items():
        for rows, cached in (*PROMPTS, *STEPS):
            yield make_case("attention", model, rows, cached, AttentionLayer(hidden, heads, rows, cached))


def _iter_convolutions(kinds: Mapping[str, type[Workload]]) -> Iterator[Case]:
    for family, all_channels in CHANNELS.items():
        if family in kinds:
            for channels in all_channels:
                for images in IMAGES:
                    sizes = {"channels": channels, "edge": EDGES[channels], "images": images}
                    yield make_case(family, str(channels), images, 0, kinds[family].from_fields(sizes, gpu=True))
