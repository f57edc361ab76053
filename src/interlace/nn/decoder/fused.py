"""Prompts in cuBLAS, cuDNN and FlashAttention, with one Triton kernel for each stretch of ops between these.

``step.prefill_padded`` is what this means, and runs where the kernels do not. A layer is 12
kernels, one more where attention reads cached tokens, of PyTorch's own ops about 34.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from interlace.kernels.base import next_power_of_2
from interlace.kernels.gated import MULTIPLE, silu_and_mul
from interlace.kernels.prompt_rows import PromptRows, add_and_normalize
from interlace.models.forward_torch import LayerOps, compute_logits, run_layers
from interlace.models.llama import PAGE_TOKENS, LlamaShape
from interlace.nn.decoder.cache import KVCache
from interlace.nn.decoder.pages import PagedKVCache

#: Backends of a prompt's causal attention to itself, the first that takes a shape; none makes a matrix of scores.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
_CUDNN_TOKENS = 512  # from which cuDNN comes first at powers of two; it compiles a kernel for each shape
_MAX_HEAD_DIM = 256  # of FlashAttention
_CAPABILITY = (8, 0)  # from which FlashAttention and Triton run


def is_supported(shape: LlamaShape, weights: Mapping[str, torch.Tensor]) -> bool:
    """Return True if the kernels run a model; they compute in float32, which would narrow wider elements."""
    embed, d = weights["embed"], shape.head_dim
    is_known = embed.dtype.is_floating_point and embed.dtype.itemsize == 2 and d % 8 == 0 and d <= _MAX_HEAD_DIM
    return is_known and shape.ffn % MULTIPLE == 0 and torch.cuda.get_device_capability(embed.device) >= _CAPABILITY


class FusedOps(LayerOps):
    """The ops of a layer in one kernel each, and attention.

    Args:
        reach: number of cached positions that attention reads; 0 for tokens that begin a sequence.
    """

    def __init__(self, shape: LlamaShape, cache: KVCache, rows: PromptRows, count: int, reach: int) -> None:
        super().__init__(torch, shape)
        self._cache, self._rows, self._count, self._reach = cache, rows, count, reach
        if reach:
            # Queries are the last of so many keys: a causal mask of FlashAttention is aligned to the last of both.
            self._ends = torch.arange(0, count + 1, count, dtype=torch.int32, device=rows.start.device)
            self._key_ends = pad(rows.start + count, (1, 0)).int()

    def add_and_normalize(self, x: Any, increment: Any | None, weight: Any) -> tuple[Any, Any]:
        return add_and_normalize(x, increment, weight, self.shape.eps)

    def rotate_heads(
        self, layer: int, q: Any, k: Any, v: Any, norms: tuple[Any, Any] | None, angles: Any
    ) -> tuple[Any, Any]:
        """Write keys and values to the cache, too; return no keys where attention reads them from the cache."""
        caches = self._cache.k[layer], self._cache.v[layer]
        return self._rows.rotate_and_append(q, k, v, norms, self.shape.eps, caches, not self._reach)

    def apply_gate(self, gate: Any, up: Any) -> Any:
        return silu_and_mul(gate, up)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Return the outputs (count, heads, head_dim) of causal attention."""
        if self._reach:
            rows = self._reach + self._count  # as many keys as queries of padding see
            keys, values = self._rows.read_cached((self._cache.k[layer], self._cache.v[layer]), rows)
            return attend_last(q, keys, values, self._ends, self._key_ends)
        q, k, v = (heads[None].transpose(1, 2) for heads in (q, k, v))
        is_cudnn_first = self._count >= _CUDNN_TOKENS and self._count == next_power_of_2(self._count)
        backends = _BACKENDS[::-1] if is_cudnn_first else _BACKENDS
        with sdpa_kernel(backends, set_priority=True):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def attend_last(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, key_ends: torch.Tensor
) -> torch.Tensor:
    """Return causal attention (n, heads, d) of the last n of so many keys, by FlashAttention without a mask.

    Args:
        q, k, v: (n, heads, d), and (rows, kv_heads, d) of which the first are keys and values.
        ends, key_ends: (2,) int32, 0 and the number of queries and of keys: n, and at least n.
    """
    lengths = len(q), len(k)
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(q, k, v, ends, key_ends, *lengths, 0.0, True, False)[0]
    return out


def prefill_padded(
    shape: LlamaShape,
    weights: Mapping[str, torch.Tensor],
    rope: torch.Tensor,
    cache: KVCache,
    ids: torch.Tensor,
    slot: torch.Tensor,
    start: torch.Tensor,
    last: torch.Tensor,
    reach: int,
) -> torch.Tensor:
    """Append tokens to a slot and return logits (1, vocabulary), as ``step.prefill_padded`` does."""
    pages = (cache.table, PAGE_TOKENS) if isinstance(cache, PagedKVCache) else ()
    ops = FusedOps(shape, cache, PromptRows(rope, slot, start, last, *pages), len(ids), reach)
    with torch.autocast(ids.device.type, enabled=False):  # caches have the dtype of the weights
        x = run_layers(torch, shape, weights, ids, rope, ops.attend, last, ops)
        logits: torch.Tensor = compute_logits(torch, shape, weights, x)
        return logits
