"""One decode step of a language model of the Llama family, as a graph of ordinary ops.

Each layer runs q, k, v; attention over the cache and the new token; append to the cache; output projection with the
residual; gated FFN with the residual. Token embeddings come first, the head and the argmax of the logits last.

    x = embed[tokens]
    each layer:
        h = rms_norm(x);  q, k, v = h @ q.T, h @ k.T, h @ v.T  (+ biases)
        x = x + combine(attend(q, k, v, k_cache, v_cache)) @ o.T  (combine only where attention is split)
        append(k, v) to k_cache, v_cache
        x = x + (silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T)) @ down.T
    logits = rms_norm(x) @ head.T;  next = argmax(logits)

Normalisations are fused into the ops around them (``kernels/folded_norm``). The op that writes x also writes x times
the weight of the next norm, and sums of squares of x. The matmuls that follow divide their products by the norm.

Layers share one set of activation tensors, except new keys and values. Waits for other data already order each
overwrite after all reads of the old value (``plan/implied``). Lengths are data (``position``), so one plan serves all
of them.
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
from interlace.kernels.folded_norm import COLUMNS as SQUARED
from interlace.kernels.folded_norm import FINE, count_blocks
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.matmul.tilings import SKINNY_TOKENS
from interlace.kernels.sample import cutoff, gumbel_argmax, segment_stats
from interlace.kernels.sample.segments import count_segments

#: Positions in a page of the KV cache: the number that attention processes at a time.
PAGE_TOKENS = BLOCK


@dataclass(frozen=True)
class LlamaShape:
    """Shape of a model of the Llama family: Llama 2 and 3, Mistral, Qwen 2.5 and 3, SmolLM 2.

    Attributes:
        layers: number of transformer layers.
        hidden, ffn: model width, and width between the matmuls of an FFN.
        heads, kv_heads: number of query heads, and of key and value heads.
        head_dim: elements of a head.
        vocabulary: number of tokens.
        eps: epsilon of every RMS normalisation.
        qkv_bias: True if q, k and v have biases, as in Qwen 2.
        qk_norm: True if heads of q and k are normalised, as in Qwen 3.
        tied: True if the head shares the embedding table.

    Raises:
        ArgumentError: an attribute has the wrong type.
        ShapeError: an extent is not positive, or ``heads`` is not a multiple of ``kv_heads``.
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
        """Query heads per key head."""
        return self.heads // self.kv_heads


#: Shapes of well-known models, by name.
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
    """Build the graph of one decode step: one token of each of ``batch`` sequences through a model.

    Args:
        model: shape of the model.
        batch: number of sequences (B); sequences without a token have position 0, and their outputs are meaningless.
        max_seq_len: KV-cache capacity per sequence in positions, including this step's.
        device: device that the default tiles are chosen for.
        tile: tile shape of every matmul, by default chosen for the device; matmuls that write sums of squares round its
            width up to whole blocks of columns.
        dtype: dtype of weights, caches and logits.
        has_sampling: True to sample the next tokens by the per-sequence inputs; otherwise they are the argmax.
        pages: number of KV-cache pages of ``PAGE_TOKENS`` positions shared by all sequences; by default each sequence
            has a contiguous cache.

    Inputs: ``tokens`` (B,) and ``position`` (B,) of int32, where a position is the index of the token in its sequence
    and so the number of cached positions that the token attends to in addition to itself; ``rope`` (max_seq_len,
    head_dim) of float32, cosines then sines; ``embed`` (V, H), ``norm`` (H,), and ``head`` (V, H) unless tied. Layer l
    has, as ``layers.l.NAME``: ``input_norm``, ``q``, ``k``, ``v`` (with ``_bias``, ``q_norm``, ``k_norm`` where the
    model has them), ``o``, ``post_norm``, ``gate``, ``up``, ``down``, weights (outputs, inputs); and ``k_cache``,
    ``v_cache`` (B, kv_heads, max_seq_len, head_dim), to which the step appends in place. With ``pages`` the caches are
    (pages, kv_heads, PAGE_TOKENS, head_dim), and the block table ``table`` (B, max_seq_len / PAGE_TOKENS) of int32
    lists the pages of each sequence, the same in all layers; see ``kernels/pages``. With sampling
    (``kernels/sample``): ``temperature`` and ``top_p`` (B,) of float32, ``top_k`` (B,) of int32, and ``key`` (B, 2) of
    int32.

    Outputs: ``logits`` (B, V), in ``dtype``, and ``next`` (B,) of int32, the argmax or the sampled token.

    Raises:
        ArgumentError, ShapeError: invalid arguments, or ``head_dim`` is not a multiple of 8 of at least 16.
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
    """Tensors that an op writes for x and the norm that follows it.

    Attributes:
        x: residual stream (B, H), None if no op reads it.
        scaled: x times the weight of the norm.
        squares: sums of squares of x over blocks of columns (``kernels/folded_norm``).
    """

    x: Tensor | None
    scaled: Tensor
    squares: Tensor


class _StepBuilder:
    """Builder of the graph of a decode step."""

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
        """Add the ops that select the next tokens."""
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
        """Add the first half of a layer, attention with its residual, and return the new x."""
        model, batch, d, at = self.model, self.batch, self.model.head_dim, f"layers.{layer}"
        of: dict[str, Tensor] = {}
        for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads)):
            weight = self.add_input(f"{at}.{name}", heads * d, model.hidden)
            bias = self.add_input(f"{at}.{name}_bias", heads * d) if model.qkv_bias else None
            # Nothing waits for the op that appends keys and values, so each layer has its own tensors for them.
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
        # Last in the layer, after ops that others wait for: only the next step reads what append writes.
        key_norm = norms.get("k_norm")
        self.ops.append(append(f"{at}.append", of["k"], of["v"], **shared, k_norm=key_norm, eps=model.eps))
        return added

    def add_ffn(self, layer: int, x: _NormedTensors) -> _NormedTensors:
        """Add the second half of a layer, the FFN with its residual, and return the new x."""
        hidden, ffn, at = self.model.hidden, self.model.ffn, f"layers.{layer}"
        gate, up = (self.add_input(f"{at}.{name}", ffn, hidden) for name in ("gate", "up"))
        inner = self.add_tensor("inner", self.batch, ffn)
        self.add_matmul(f"{at}.inner", x, up, inner, gate=gate, activation=Activation.SILU)
        weight = self.add_input(f"{at}.down", hidden, ffn)
        last = layer + 1 == self.model.layers
        return self.add_projection(f"{at}.x", "x", inner, weight, x, self.add_norm_weight(layer + 1), is_kept=not last)

    def add_norm_weight(self, layer: int) -> Tensor:
        """Add the weight of the norm before a layer, or of the final norm after the last."""
        return self.add_input(f"layers.{layer}.input_norm" if layer < self.model.layers else "norm", self.model.hidden)

    def add_input(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.inputs.append(name)
        return self.add_tensor(name, *shape, dtype=dtype)

    def add_tensor(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.tensors[name] = Tensor(name, shape, dtype or self.dtype)
        return self.tensors[name]

    def add_normed(self, name: str, is_kept: bool = True) -> _NormedTensors:
        """Add the tensors of x under a name, without x itself unless ``is_kept``."""
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
        """Add a matmul of the normalised x."""
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
        """Add a projection with residual and return the new x, prepared for the norm with weight ``scale``."""
        out = self.add_normed(result, is_kept)
        left = {"scale": scale, "scaled": out.scaled, "squares": out.squares}
        tile = replace(self.tile, n=count_blocks(self.tile.n, self.squared) * self.squared)
        self.ops.append(matmul(name, heads, weight, out.x, residual=x.x, **left, tile=tile))  # type: ignore[arg-type]
        return out
