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

A step may also read a chunk of prompts (``chunk``). Its rows follow those of the sequences in all products; they attend
by tiles of many rows, and the head runs for one row of each sequence (``models/step_rows`` fills the inputs):

    k_chunk = rotate(k)                                                    of the chunk's rows
    heads = combine(attend(...)), chunk_attention(q, k_chunk, v, k_cache, v_cache)
    logits = rms_norm(x[wanted]) @ head.T

Normalisations are fused into the ops around them (``kernels/folded_norm``). The op that writes x also writes x times
the weight of the next norm, and sums of squares of x. The matmuls that follow divide their products by the norm.

Layers share one set of activation tensors, except new keys and values. Waits for other data already order each
overwrite after all reads of the old value (``plan/implied``). Lengths are data (``position``), so one plan serves all
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from interlace.kernels.causal_attention import AttentionTile
from interlace.kernels.chunk_attention import chunk_attention
from interlace.kernels.combine import combine
from interlace.kernels.embedding import embedding
from interlace.kernels.folded_norm import COLUMNS as SQUARED
from interlace.kernels.folded_norm import FINE, count_blocks
from interlace.kernels.gather import gather
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.matmul.tilings import SKINNY_TOKENS
from interlace.kernels.rotate import rotate, select_rows
from interlace.kernels.sample import cutoff, gumbel_argmax, segment_stats
from interlace.kernels.sample.segments import count_segments
from interlace.models.shapes import LLAMAS, LlamaShape

__all__ = ["LLAMAS", "PAGE_TOKENS", "LlamaShape", "build_decode_graph"]

#: Positions in a page of the KV cache: the number that attention processes at a time.
PAGE_TOKENS = BLOCK


def build_decode_graph(
    model: LlamaShape,
    batch: int,
    max_seq_len: int,
    device: DeviceSpec,
    tile: TileShape | None = None,
    dtype: DType = bf16,
    has_sampling: bool = False,
    pages: int | None = None,
    chunk: int = 0,
) -> Graph:
    """Build the graph of one step: a token of each of ``batch`` sequences, and of prompts, through a model.

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
        chunk: tokens of prompts that the step reads (C), of any of the sequences; 0 for a decode step.

    Inputs: ``tokens`` (B,) and ``position`` (B,) of int32, where a position is the index of the token in its sequence
    and so the number of cached positions that the token attends to in addition to itself; ``rope`` (max_seq_len,
    head_dim) of float32, cosines then sines; ``embed`` (V, H), ``norm`` (H,), and ``head`` (V, H) unless tied. Layer l
    has, as ``layers.l.NAME``: ``input_norm``, ``q``, ``k``, ``v`` (with ``_bias``, ``q_norm``, ``k_norm`` where the
    model has them), ``o``, ``post_norm``, ``gate``, ``up``, ``down``, weights (outputs, inputs); and ``k_cache``,
    ``v_cache`` (B, kv_heads, max_seq_len, head_dim), to which the step appends in place. With ``pages`` the caches are
    (pages, kv_heads, PAGE_TOKENS, head_dim), and the block table ``table`` (B, max_seq_len / PAGE_TOKENS) of int32
    lists the pages of each sequence, the same in all layers; see ``kernels/pages``. With sampling
    (``kernels/sample``): ``temperature`` and ``top_p`` (B,) of float32, ``top_k`` (B,) of int32, and ``key`` (B, 2) of
    int32. With a chunk ``tokens`` and ``position`` are (B + C,), and four more inputs of int32 say what rows are
    (``models/step_rows``): ``sequence`` (B + C,), ``first`` (C,), ``wanted`` (B,), and with sampling
    ``wanted_position`` (B,). Row b below B is of sequence b or of none.

    Outputs: ``logits`` (B, V), in ``dtype``, and ``next`` (B,) of int32, the argmax or the sampled token.

    Raises:
        ArgumentError, ShapeError: invalid arguments, or ``head_dim`` is not a multiple of 8 of at least 16.
    """
    check_type(model, LlamaShape, "build_decode_graph", "model", "il.workloads.LLAMAS['llama3.2-1b']")
    for name, number in (("batch", batch), ("capacity", max_seq_len), ("pages", 1 if pages is None else pages)):
        if check_int(number, "build_decode_graph", name) < 1:
            raise ShapeError(f"build_decode_graph has {name} {number}; use a positive number")
    if check_int(chunk, "build_decode_graph", "chunk") < 0:
        raise ShapeError(f"build_decode_graph has chunk {chunk}; use a positive number, or 0 for a decode step")
    return _StepBuilder(model, batch, chunk, max_seq_len, device, tile, dtype, pages).build(has_sampling)


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
        chunk: int,
        capacity: int,
        device: DeviceSpec,
        tile: TileShape | None,
        dtype: DType,
        pages: int | None,
    ) -> None:
        self.model, self.batch, self.capacity, self.dtype, self.pages = model, batch, capacity, dtype, pages
        self.chunk, self.rows = chunk, batch + chunk
        self.tile, self.head_tile = (select_matmul_tile(rows, device, tile) for rows in (self.rows, batch))
        extents = (PAGE_TOKENS, PAGE_TOKENS) if device.architecture else (16, 16)
        self.attention_tile = AttentionTile(*extents)
        self.squared = FINE if self.rows <= SKINNY_TOKENS else SQUARED
        self.sms = device.sms
        row_bytes = 2 * model.head_dim * dtype.itemsize
        self.splits = select_splits(device, batch, model.kv_heads, capacity, row_bytes)
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.ops: list[Op] = []

    def build(self, has_sampling: bool) -> Graph:
        model, batch = self.model, self.batch
        tokens, position = (self.add_input(name, self.rows, dtype=int32) for name in ("tokens", "position"))
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
        if self.chunk:
            x, position = self.add_wanted_rows(x, position, has_sampling)
        head = table if model.tied else self.add_input("head", model.vocabulary, model.hidden)
        logits = self.add_tensor("logits", batch, model.vocabulary)
        self.add_matmul("logits", x, head, logits, tile=self.head_tile)
        self.add_next_token(logits, position, has_sampling)
        return Graph("decode", tuple(self.tensors.values()), tuple(self.ops), tuple(self.inputs), ("logits", "next"))

    def add_wanted_rows(self, x: _NormedTensors, position: Tensor, has_sampling: bool) -> tuple[_NormedTensors, Tensor]:
        """Add the ops that gather the row of each sequence that the head reads; return these and their positions."""
        wanted = self.add_input("wanted", self.batch, dtype=int32)
        scaled = self.add_tensor("wanted_scaled", self.batch, self.model.hidden)
        squares = self.add_tensor("wanted_squares", self.batch, x.squares.shape[1], dtype=fp32)
        self.ops.append(gather("wanted_scaled", x.scaled, wanted, scaled))
        self.ops.append(gather("wanted_squares", x.squares, wanted, squares))
        if has_sampling:
            position = self.add_input("wanted_position", self.batch, dtype=int32)
        return _NormedTensors(None, scaled, squares), position

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
            out = self.add_tensor("q_heads" if name == "q" else f"{at}.{name}_heads", self.rows, heads * d)
            self.add_matmul(f"{at}.{name}_heads", x, weight, out, bias=bias)
            of[name] = out
        norms = {name: self.add_input(f"{at}.{name}", d) for name in ("q_norm", "k_norm") if model.qk_norm}
        held = (
            (batch, model.kv_heads, self.capacity) if self.pages is None else (self.pages, model.kv_heads, PAGE_TOKENS)
        )
        caches = {name: self.add_input(f"{at}.{name}", *held, d) for name in ("k_cache", "v_cache")}
        finished = self.add_tensor("heads", self.rows, model.heads * d)
        shared = {**shared, **caches}
        given: Mapping[str, Tensor] = {**of, **shared, **norms}
        # Before attention of the decoded rows, because attention of the chunk, the longer of the two, waits for it.
        keys = self.add_chunk_keys(at, of["k"], shared, norms.get("k_norm")) if self.chunk else None
        if self.splits == 1:
            self.ops.append(attend(f"{at}.attend", **given, out=finished, eps=model.eps))  # type: ignore[arg-type]
        else:
            part = (batch, model.kv_heads, self.splits, model.group)
            parts = self.add_tensor("parts", *part, d, dtype=fp32)
            peak, total = (self.add_tensor(name, *part, dtype=fp32) for name in ("peak", "total"))
            left = {"out": parts, "peak": peak, "total": total}
            self.ops.append(attend(f"{at}.attend", **given, **left, eps=model.eps))  # type: ignore[arg-type]
            self.ops.append(combine(f"{at}.combine", parts, peak, total, finished))
        named = {} if keys is None else self.add_chunk_attention(at, of, keys, shared, norms.get("q_norm"), finished)
        weight = self.add_input(f"{at}.o", model.hidden, model.heads * d)
        scale = self.add_input(f"{at}.post_norm", model.hidden)
        added = self.add_projection(f"{at}.x_attended", "x_attended", finished, weight, x, scale)
        # Last in the layer, after ops that others wait for: only the next step reads what append writes.
        key_norm = norms.get("k_norm")
        self.ops.append(append(f"{at}.append", of["k"], of["v"], **shared, **named, k_norm=key_norm, eps=model.eps))
        return added

    def add_chunk_keys(self, at: str, k: Tensor, shared: Mapping[str, Tensor], norm: Tensor | None) -> Tensor:
        """Add the op that rotates keys of a chunk's rows, and return the result."""
        # Later rows of the chunk read a key, so each layer has its own, as of new keys and values.
        result = self.add_tensor(f"{at}.k_chunk", self.chunk, k.shape[1])
        d, eps = self.model.head_dim, self.model.eps
        more = {"head_dim": d, "eps": eps, "tile_rows": select_rows(self.chunk, k.shape[1] // d, self.sms)}
        op = rotate(f"{at}.k_chunk", k, shared["position"], shared["rope"], result, norm=norm, **more)  # type: ignore[arg-type]
        self.ops.append(op)
        return result

    def add_chunk_attention(
        self,
        at: str,
        of: Mapping[str, Tensor],
        keys: Tensor,
        shared: Mapping[str, Tensor],
        q_norm: Tensor | None,
        out: Tensor,
    ) -> dict[str, Tensor]:
        """Add the attention of a chunk's rows, and return the sequences of all rows."""
        sequence = self.add_input("sequence", self.rows, dtype=int32)
        first = self.add_input("first", self.chunk, dtype=int32)
        self.ops.append(
            chunk_attention(
                f"{at}.chunk_attention",
                q=of["q"],
                k=keys,
                v=of["v"],
                first=first,
                sequence=sequence,
                out=out,
                q_norm=q_norm,
                eps=self.model.eps,
                tile=self.attention_tile,
                **shared,
            )
        )
        return {"sequence": sequence}

    def add_ffn(self, layer: int, x: _NormedTensors) -> _NormedTensors:
        """Add the second half of a layer, the FFN with its residual, and return the new x."""
        hidden, ffn, at = self.model.hidden, self.model.ffn, f"layers.{layer}"
        gate, up = (self.add_input(f"{at}.{name}", ffn, hidden) for name in ("gate", "up"))
        inner = self.add_tensor("inner", self.rows, ffn)
        self.add_matmul(f"{at}.inner", x, up, inner, gate=gate, activation=Activation.SILU)
        weight = self.add_input(f"{at}.down", hidden, ffn)
        last = layer + 1 == self.model.layers
        return self.add_projection(f"{at}.x", "x", inner, weight, x, self.add_norm_weight(layer + 1), is_kept=not last)

    def add_norm_weight(self, layer: int) -> Tensor:
        """Add the weight of the norm before a layer, or of the final norm after the last."""
        return self.add_input(f"layers.{layer}.input_norm" if layer < self.model.layers else "norm", self.model.hidden)

    def add_input(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        if name not in self.inputs:
            self.inputs.append(name)
        return self.add_tensor(name, *shape, dtype=dtype)

    def add_tensor(self, name: str, *shape: int, dtype: DType | None = None) -> Tensor:
        self.tensors[name] = Tensor(name, shape, dtype or self.dtype)
        return self.tensors[name]

    def add_normed(self, name: str, is_kept: bool = True) -> _NormedTensors:
        """Add the tensors of x under a name, without x itself unless ``is_kept``."""
        of = self.rows, self.model.hidden
        squares = self.add_tensor(
            f"{name}_squares", self.rows, count_blocks(self.model.hidden, self.squared), dtype=fp32
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
        tile: MatmulTile | None = None,
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
                tile=tile or self.tile,
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
