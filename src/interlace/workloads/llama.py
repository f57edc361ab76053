"""One decode step of a language model of the Llama family, as a graph of ordinary ops.

Per layer: normalise; q, k, v; attention over the cache and the new token; append to the cache; output product with the
residual; normalise; gated FFN with the residual. Before them the embeddings of the tokens, behind them a norm, the
head, and the largest logit.

    x = embed[tokens]
    each layer:
        h = rms_norm(x);  q, k, v = h @ q.T, h @ k.T, h @ v.T  (+ biases)
        x = x + combine(attend(q, k, v, k_cache, v_cache)) @ o.T  (combine only where attention is split)
        append(k, v) to k_cache, v_cache
        x = x + (silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T)) @ down.T
    logits = rms_norm(x) @ head.T;  next = argmax(logits)

Lengths are data (``position``), so one plan serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from interlace.core.arguments import check_type, whole
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.append import append
from interlace.kernels.argmax import COLUMNS, first_of_most, most
from interlace.kernels.attend import attend, splits
from interlace.kernels.combine import combine
from interlace.kernels.embedding import embedding
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.rms_norm import rms_norm
from interlace.workloads.base import Tile, matmul_tile


@dataclass(frozen=True)
class LlamaShape:
    """A model of the Llama family: Llama 2 and 3, Mistral, Qwen 2.5 and 3, SmolLM 2.

    Attributes:
        layers: how many.
        hidden, ffn: widths of the model and between the matmuls of its FFN.
        heads, kv_heads: of queries, and of keys and values.
        head_dim: elements of each.
        vocabulary: tokens.
        eps: of every RMS normalisation.
        qkv_bias: q, k and v have biases, as in Qwen 2.
        qk_norm: heads of q and k are normalised, as in Qwen 3.
        tied: the head is the table of embeddings.

    Raises:
        ArgumentError: an attribute of another type.
        ShapeError: an extent that is not positive, or heads that do not share those of keys evenly.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "eps":
                check_type(value, float, "LlamaShape", "eps", "1e-5")
            elif isinstance(field.default, bool):
                check_type(value, bool, "LlamaShape", field.name, "True")
            elif whole(value, "LlamaShape", field.name) < 1:
                raise ShapeError(f"LlamaShape has {field.name} {value}; use a positive number")
        if self.heads % self.kv_heads:
            raise ShapeError(
                f"LlamaShape has {self.heads} heads and {self.kv_heads} of keys; each of those serves as many"
            )

    @property
    def group(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.kv_heads


#: Models that are well known.
LLAMAS = {
    "llama3.2-1b": LlamaShape(16, 2048, 8192, 32, 8, 64, 128256, tied=True),
    "llama3.1-8b": LlamaShape(32, 4096, 14336, 32, 8, 128, 128256),
    "smollm2-135m": LlamaShape(30, 576, 1536, 9, 3, 64, 49152, tied=True),
    "qwen2.5-0.5b": LlamaShape(24, 896, 4864, 14, 2, 64, 151936, eps=1e-6, qkv_bias=True, tied=True),
    "qwen3-0.6b": LlamaShape(28, 1024, 3072, 16, 8, 128, 151936, eps=1e-6, qk_norm=True, tied=True),
    "tiny": LlamaShape(2, 64, 96, 4, 2, 16, 160, qk_norm=True),
}


def decode_graph(
    model: LlamaShape,
    batch: int,
    capacity: int,
    device: DeviceSpec,
    tile: Tile | None = None,
    dtype: DType = bf16,
) -> Graph:
    """One token of each of ``batch`` sequences through a model.

    Args:
        model: its shape.
        batch: sequences (B); those without a token have position 0, and what they give means nothing.
        capacity: positions of each sequence's cache, with this step's.
        device: for whose tiles.
        tile: of every matmul, otherwise as it suits the device.
        dtype: of weights, caches and logits.

    Inputs: ``tokens`` (B,) and ``position`` (B,) of int32, where a position is the index of the token in its sequence
    and so the number of cached positions that it attends to beside itself; ``rope`` (capacity, head_dim) of float32,
    cosines then sines; ``embed`` (V, H), ``norm`` (H,), and ``head`` (V, H) unless tied. Of layer l, as
    ``layers.l.NAME``: ``input_norm``, ``q``, ``k``, ``v`` (with ``_bias``, ``q_norm``, ``k_norm`` where the model has
    them), ``o``, ``post_norm``, ``gate``, ``up``, ``down``, weights (outputs, inputs); and ``k_cache``, ``v_cache``
    (B, kv_heads, capacity, head_dim), to which the step appends in place.

    Outputs: ``logits`` (B, V), in ``dtype``, and ``next`` (B,) of int32, the token of the largest.

    Raises:
        ArgumentError, ShapeError: arguments that are none, or heads that are no power of two of at least 16.
    """
    check_type(model, LlamaShape, "decode_graph", "model", "il.workloads.LLAMAS['llama3.2-1b']")
    for name, number in (("batch", batch), ("capacity", capacity)):
        if whole(number, "decode_graph", name) < 1:
            raise ShapeError(f"decode_graph has {name} {number}; use a positive number")
    return _Step(model, batch, capacity, device, matmul_tile(batch, device, tile), dtype).graph()


class _Step:
    """A graph in the making."""

    def __init__(
        self, model: LlamaShape, batch: int, capacity: int, device: DeviceSpec, tile: MatmulTile, dtype: DType
    ) -> None:
        self.model, self.batch, self.capacity, self.tile, self.dtype = model, batch, capacity, tile, dtype
        self.splits = splits(device.sms, batch, model.kv_heads, capacity)
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.ops: list[Op] = []

    def graph(self) -> Graph:
        model, batch = self.model, self.batch
        tokens, position = (self.input(name, batch, dtype=int32) for name in ("tokens", "position"))
        rope = self.input("rope", self.capacity, model.head_dim, dtype=fp32)
        table = self.input("embed", model.vocabulary, model.hidden)
        x = self.made("x", batch, model.hidden)
        self.ops.append(embedding("embedding", tokens, table, x))
        for layer in range(model.layers):
            x = self.ffn(f"layers.{layer}", self.attention(f"layers.{layer}", x, position, rope))
        normed = self.norm("normed", x, self.input("norm", model.hidden))
        head = table if model.tied else self.input("head", model.vocabulary, model.hidden)
        logits = self.matmul("logits", normed, head)
        tiles = -(-model.vocabulary // COLUMNS)
        best, at = self.made("best", batch, tiles, dtype=fp32), self.made("at", batch, tiles, dtype=int32)
        following = self.made("next", batch, dtype=int32)
        self.ops += [most("most", logits, best, at), first_of_most("next", best, at, following)]
        return Graph(
            "decode", tuple(self.tensors.values()), tuple(self.ops), tuple(self.inputs), ("logits", "next")
        )

    def attention(self, at: str, x: Tensor, position: Tensor, rope: Tensor) -> Tensor:
        """The first half of a layer: x with attention added."""
        model, batch, d = self.model, self.batch, self.model.head_dim
        normed = self.norm(f"{at}.normed", x, self.input(f"{at}.input_norm", model.hidden))
        of: dict[str, Tensor] = {}
        for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
            weight = self.input(f"{at}.{name}", heads * d, model.hidden)
            bias = self.input(f"{at}.{name}_bias", heads * d) if model.qkv_bias else None
            of[name] = self.matmul(f"{at}.{name}_heads", normed, weight, bias=bias)
        norms = {name: self.input(f"{at}.{name}", d) for name in ("q_norm", "k_norm") if model.qk_norm}
        caches = {
            name: self.input(f"{at}.{name}", batch, model.kv_heads, self.capacity, d)
            for name in ("k_cache", "v_cache")
        }
        finished = self.made(f"{at}.heads", batch, model.heads * d)
        shared: Mapping[str, Tensor] = {"position": position, "rope": rope, **caches}
        given: Mapping[str, Tensor] = {**of, **shared, **norms}
        if self.splits == 1:
            self.ops.append(attend(f"{at}.attend", **given, out=finished, eps=model.eps))  # type: ignore[arg-type]
        else:
            part = (batch, model.kv_heads, self.splits, model.group)
            parts = self.made(f"{at}.parts", *part, d, dtype=fp32)
            peak, total = (self.made(f"{at}.{name}", *part, dtype=fp32) for name in ("peak", "total"))
            left = {"out": parts, "peak": peak, "total": total}
            self.ops.append(attend(f"{at}.attend", **given, **left, eps=model.eps))  # type: ignore[arg-type]
            self.ops.append(combine(f"{at}.combine", parts, peak, total, finished))
        out = self.matmul(
            f"{at}.x_attended", finished, self.input(f"{at}.o", model.hidden, model.heads * d), residual=x
        )
        # Behind what others wait for: only the next step reads what it writes.
        key_norm = norms.get("k_norm")
        self.ops.append(append(f"{at}.append", of["k"], of["v"], **shared, k_norm=key_norm, eps=model.eps))
        return out

    def ffn(self, at: str, x: Tensor) -> Tensor:
        """The second half of a layer: x with its FFN added."""
        hidden, ffn = self.model.hidden, self.model.ffn
        normed = self.norm(f"{at}.post_normed", x, self.input(f"{at}.post_norm", hidden))
        gate, up = (self.input(f"{at}.{name}", ffn, hidden) for name in ("gate", "up"))
        inner = self.matmul(f"{at}.inner", normed, up, gate=gate, activation=Activation.SILU)
        return self.matmul(f"{at}.x", inner, self.input(f"{at}.down", hidden, ffn), residual=x)

    def input(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.inputs.append(name)
        return self.made(name, *shape, dtype=dtype)

    def made(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.tensors[name] = Tensor(name, shape, dtype or self.dtype)
        return self.tensors[name]

    def norm(self, name: str, x: Tensor, weight: Tensor) -> Tensor:
        """The op called as its result is."""
        out = self.made(name, *x.shape)
        self.ops.append(rms_norm(name, x, weight, out, self.model.eps))
        return out

    def matmul(
        self,
        name: str,
        x: Tensor,
        weight: Tensor,
        *,
        gate: Tensor | None = None,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        activation: Activation = Activation.NONE,
    ) -> Tensor:
        """The op called as its result is."""
        out = self.made(name, self.batch, weight.shape[0])
        self.ops.append(
            matmul(
                name,
                x,
                weight,
                out,
                gate=gate,
                bias=bias,
                residual=residual,
                activation=activation,
                tile=self.tile,
            )
        )
        return out
