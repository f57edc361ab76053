"""One decode step of a language model of the Llama family, as a graph of ordinary ops.

Per layer: q, k, v; attention over the cache and the new token; append to the cache; output product with the residual;
gated FFN with the residual. Before them the embeddings of the tokens, behind them the head and the largest logit.

    x = embed[tokens]
    each layer:
        h = rms_norm(x);  q, k, v = h @ q.T, h @ k.T, h @ v.T  (+ biases)
        x = x + combine(attend(q, k, v, k_cache, v_cache)) @ o.T  (combine only where attention is split)
        append(k, v) to k_cache, v_cache
        x = x + (silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T)) @ down.T
    logits = rms_norm(x) @ head.T;  next = argmax(logits)

Normalisations are in the ops around them (``kernels/squares``): whichever writes x also writes it times the weight of
the norm that follows, and sums of squares by which the products of that are divided.

Layers leave what they compute in the same tensors: what overwrites one comes behind what has read it in any case, by
waits for other data (``plan/implied``). Lengths are data (``position``), so one plan serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from interlace.core.arguments import check_int, check_type
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32, int32
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.append import append
from interlace.kernels.argmax import block_argmax, reduce_argmax, select_columns
from interlace.kernels.attend import BLOCK, attend, select_splits
from interlace.kernels.combine import combine
from interlace.kernels.embedding import embedding
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.matmul.tilings import SKINNY_TOKENS
from interlace.kernels.sample import cutoff, gumbel_argmax, segment_stats
from interlace.kernels.sample.segments import count_segments
from interlace.kernels.squares import COLUMNS as SQUARED
from interlace.kernels.squares import FINE, count_blocks

#: Positions of a page of the cache: as many as attention takes at a time.
PAGE_TOKENS = BLOCK


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
            elif check_int(value, "LlamaShape", field.name) < 1:
                raise ShapeError(f"LlamaShape has {field.name} {value}; use a positive number")
        if self.heads % self.kv_heads:
            raise ShapeError(
                f"LlamaShape has {self.heads} heads and {self.kv_heads} of keys, each of which serves as many; use a "
                "number of heads that is a multiple of that of keys (heads, kv_heads)"
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


def build_decode_graph(
    model: LlamaShape,
    batch: int,
    max_seq_len: int,
    device: DeviceSpec,
    tile: TileShape | None = None,
    dtype: DType = bf16,
    has_sampling: bool = False,
    pages: int | None = None,
) -> Graph:
    """One token of each of ``batch`` sequences through a model.

    Args:
        model: its shape.
        batch: sequences (B); those without a token have position 0, and what they give means nothing.
        max_seq_len: positions of each sequence's cache, with this step's.
        device: for whose tiles.
        tile: of every matmul, otherwise as it suits the device; wider where that leaves sums of squares, if need be.
        dtype: of weights, caches and logits.
        has_sampling: the next tokens are drawn, of each sequence as its inputs say; otherwise they are the likeliest.
        pages: of ``PAGE_TOKENS`` positions each, from which all sequences take; by default each has a cache of its own.

    Inputs: ``tokens`` (B,) and ``position`` (B,) of int32, where a position is the index of the token in its sequence
    and so the number of cached positions that it attends to beside itself; ``rope`` (capacity, head_dim) of float32,
    cosines then sines; ``embed`` (V, H), ``add_norm_weight`` (H,), and ``head`` (V, H) unless tied. Of layer l, as
    ``layers.l.NAME``: ``input_norm``, ``q``, ``k``, ``v`` (with ``_bias``, ``q_norm``, ``k_norm`` where the model has
    them), ``o``, ``post_norm``, ``gate``, ``up``, ``down``, weights (outputs, inputs); and ``k_cache``, ``v_cache``
    (B, kv_heads, capacity, head_dim), to which the step appends in place. With pages these are (pages, kv_heads, PAGE,
    head_dim), and ``table`` (B, capacity / PAGE) of int32 has the pages of each sequence, the same in all layers; see
    ``kernels/pages``. Where tokens are drawn (``kernels/sample``):
    ``temperature`` and ``top_p`` (B,) of float32, ``top_k`` (B,) of int32, and ``key`` (B, 2) of int32.

    Outputs: ``logits`` (B, V), in ``dtype``, and ``next`` (B,) of int32, the token of the largest, or the one drawn.

    Raises:
        ArgumentError, ShapeError: arguments that are none, or heads of no multiple of 8 elements of at least 16.
    """
    check_type(model, LlamaShape, "build_decode_graph", "model", "il.workloads.LLAMAS['llama3.2-1b']")
    for name, number in (("batch", batch), ("capacity", max_seq_len), ("pages", 1 if pages is None else pages)):
        if check_int(number, "build_decode_graph", name) < 1:
            raise ShapeError(f"build_decode_graph has {name} {number}; use a positive number")
    return _StepBuilder(model, batch, max_seq_len, device, select_matmul_tile(batch, device, tile), dtype, pages).build(
        has_sampling
    )


@dataclass(frozen=True)
class _NormedTensors:
    """What an op leaves of x, with a norm behind it.

    Attributes:
        x: (B, H), None where nobody reads it.
        scaled: x times the weight of the norm.
        squares: of some columns each of x the sum of squares (``kernels/squares``).
    """

    x: Tensor | None
    scaled: Tensor
    squares: Tensor


class _StepBuilder:
    """A graph in the making."""

    def __init__(
        self,
        model: LlamaShape,
        batch: int,
        capacity: int,
        device: DeviceSpec,
        tile: MatmulTile,
        dtype: DType,
        pages: int | None,
    ) -> None:
        self.model, self.batch, self.capacity, self.tile, self.dtype = model, batch, capacity, tile, dtype
        self.pages = pages
        self.squared = FINE if batch <= SKINNY_TOKENS else SQUARED
        self.sms = device.sms
        row_bytes = 2 * model.head_dim * dtype.itemsize
        self.splits = select_splits(device, batch, model.kv_heads, capacity, row_bytes)
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.ops: list[Op] = []

    def build(self, has_sampling: bool) -> Graph:
        model, batch = self.model, self.batch
        tokens, position = (self.add_input(name, batch, dtype=int32) for name in ("tokens", "position"))
        shared = {"position": position, "rope": self.add_input("rope", self.capacity, model.head_dim, dtype=fp32)}
        if self.pages is not None:
            shared["table"] = self.add_input("table", batch, -(-self.capacity // PAGE_TOKENS), dtype=int32)
        table = self.add_input("embed", model.vocabulary, model.hidden)
        x = self.add_normed("embedded")
        scale = self.add_norm_weight(0)
        assert x.x is not None
        self.ops.append(embedding("embedding", tokens, table, x.x, scale=scale, scaled=x.scaled, squares=x.squares))
        for layer in range(model.layers):
            x = self.add_ffn(layer, self.add_attention(layer, x, shared))
        head = table if model.tied else self.add_input("head", model.vocabulary, model.hidden)
        logits = self.add_tensor("logits", batch, model.vocabulary)
        self.add_matmul("logits", x, head, logits)
        self.add_next_token(logits, position, has_sampling)
        return Graph("decode", tuple(self.tensors.values()), tuple(self.ops), tuple(self.inputs), ("logits", "next"))

    def add_next_token(self, logits: Tensor, position: Tensor, has_sampling: bool) -> None:
        """The next tokens."""
        batch, vocabulary = self.batch, self.model.vocabulary
        columns = select_columns(batch, vocabulary, self.sms)
        tiles = -(-vocabulary // columns)
        best, at = self.add_tensor("best", batch, tiles, dtype=fp32), self.add_tensor("at", batch, tiles, dtype=int32)
        if has_sampling:
            temperature, top_p = (self.add_input(name, batch, dtype=fp32) for name in ("temperature", "top_p"))
            top_k, key = self.add_input("top_k", batch, dtype=int32), self.add_input("key", batch, 2, dtype=int32)
            of = batch, count_segments(vocabulary)
            peak, weight = (self.add_tensor(f"logits_{name}", *of, dtype=fp32) for name in ("peak", "weight"))
            least = self.add_tensor("least", batch, dtype=fp32)
            self.ops += [
                segment_stats("outline", logits, temperature, peak, weight, columns),
                cutoff("cutoff", logits, peak, weight, temperature, top_k, top_p, least),
                gumbel_argmax("noisy", logits, least, temperature, position, key, best, at, columns),
            ]
        else:
            self.ops.append(block_argmax("most", logits, best, at, columns))
        self.ops.append(reduce_argmax("next", best, at, self.add_tensor("next", batch, dtype=int32)))

    def add_attention(self, layer: int, x: _NormedTensors, shared: Mapping[str, Tensor]) -> _NormedTensors:
        """The first half of a layer: x with attention added, by what all layers share."""
        model, batch, d, at = self.model, self.batch, self.model.head_dim, f"layers.{layer}"
        of: dict[str, Tensor] = {}
        for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
            weight = self.add_input(f"{at}.{name}", heads * d, model.hidden)
            bias = self.add_input(f"{at}.{name}_bias", heads * d) if model.qkv_bias else None
            # Nothing comes behind what appends keys and values, so those of each layer stay.
            out = self.add_tensor("q_heads" if name == "q" else f"{at}.{name}_heads", batch, heads * d)
            self.add_matmul(f"{at}.{name}_heads", x, weight, out, bias=bias)
            of[name] = out
        norms = {name: self.add_input(f"{at}.{name}", d) for name in ("q_norm", "k_norm") if model.qk_norm}
        held = (
            (batch, model.kv_heads, self.capacity) if self.pages is None else (self.pages, model.kv_heads, PAGE_TOKENS)
        )
        caches = {name: self.add_input(f"{at}.{name}", *held, d) for name in ("k_cache", "v_cache")}
        finished = self.add_tensor("heads", batch, model.heads * d)
        shared = {**shared, **caches}
        given: Mapping[str, Tensor] = {**of, **shared, **norms}
        if self.splits == 1:
            self.ops.append(attend(f"{at}.attend", **given, out=finished, eps=model.eps))  # type: ignore[arg-type]
        else:
            part = (batch, model.kv_heads, self.splits, model.group)
            parts = self.add_tensor("parts", *part, d, dtype=fp32)
            peak, total = (self.add_tensor(name, *part, dtype=fp32) for name in ("peak", "total"))
            left = {"out": parts, "peak": peak, "total": total}
            self.ops.append(attend(f"{at}.attend", **given, **left, eps=model.eps))  # type: ignore[arg-type]
            self.ops.append(combine(f"{at}.combine", parts, peak, total, finished))
        weight = self.add_input(f"{at}.o", model.hidden, model.heads * d)
        scale = self.add_input(f"{at}.post_norm", model.hidden)
        added = self.add_projection(f"{at}.x_attended", "x_attended", finished, weight, x, scale)
        # Behind what others wait for: only the next step reads what it writes.
        key_norm = norms.get("k_norm")
        self.ops.append(append(f"{at}.append", of["k"], of["v"], **shared, k_norm=key_norm, eps=model.eps))
        return added

    def add_ffn(self, layer: int, x: _NormedTensors) -> _NormedTensors:
        """The second half of a layer: x with its FFN added."""
        hidden, ffn, at = self.model.hidden, self.model.ffn, f"layers.{layer}"
        gate, up = (self.add_input(f"{at}.{name}", ffn, hidden) for name in ("gate", "up"))
        inner = self.add_tensor("inner", self.batch, ffn)
        self.add_matmul(f"{at}.inner", x, up, inner, gate=gate, activation=Activation.SILU)
        weight = self.add_input(f"{at}.down", hidden, ffn)
        last = layer + 1 == self.model.layers
        return self.add_projection(f"{at}.x", "x", inner, weight, x, self.add_norm_weight(layer + 1), is_kept=not last)

    def add_norm_weight(self, layer: int) -> Tensor:
        """The weight of the norm before a layer, or behind the last."""
        return self.add_input(f"layers.{layer}.input_norm" if layer < self.model.layers else "norm", self.model.hidden)

    def add_input(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.inputs.append(name)
        return self.add_tensor(name, *shape, dtype=dtype)

    def add_tensor(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.tensors[name] = Tensor(name, shape, dtype or self.dtype)
        return self.tensors[name]

    def add_normed(self, name: str, is_kept: bool = True) -> _NormedTensors:
        """The tensors of x under a name; of one that is not kept without x itself."""
        of = self.batch, self.model.hidden
        squares = self.add_tensor(
            f"{name}_squares", self.batch, count_blocks(self.model.hidden, self.squared), dtype=fp32
        )
        return _NormedTensors(
            self.add_tensor(name, *of) if is_kept else None, self.add_tensor(f"{name}_scaled", *of), squares
        )

    def add_matmul(
        self,
        name: str,
        x: _NormedTensors,
        weight: Tensor,
        out: Tensor,
        *,
        gate: Tensor | None = None,
        bias: Tensor | None = None,
        activation: Activation = Activation.NONE,
    ) -> None:
        """Products of the normalised x."""
        self.ops.append(
            matmul(
                name,
                x.scaled,
                weight,
                out,
                gate=gate,
                bias=bias,
                activation=activation,
                x_squares=x.squares,
                eps=self.model.eps,
                tile=self.tile,
            )
        )

    def add_projection(
        self,
        name: str,
        result: str,
        heads: Tensor,
        weight: Tensor,
        x: _NormedTensors,
        scale: Tensor,
        is_kept: bool = True,
    ) -> _NormedTensors:
        """x with products added, under the name of the result, and what the norm of this scale takes of that."""
        out = self.add_normed(result, is_kept)
        left = {"scale": scale, "scaled": out.scaled, "squares": out.squares}
        tile = replace(self.tile, n=count_blocks(self.tile.n, self.squared) * self.squared)
        self.ops.append(matmul(name, heads, weight, out.x, residual=x.x, **left, tile=tile))  # type: ignore[arg-type]
        return out
