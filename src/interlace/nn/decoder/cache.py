"""KV cache of a decoder's sequences, in memory that is allocated once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from interlace.core.arguments import check_int, safe_repr
from interlace.core.errors import ArgumentError, DecodeError, UnsupportedModelError
from interlace.core.memory import get_available_bytes
from interlace.models.llama import PAGE_TOKENS, LlamaShape

#: Default capacity in tokens, unless the model's maximum length is smaller.
DEFAULT_MAX_SEQ_LEN = 4096
_MAX_BYTES = 10**30  # limit of the number in a message, which a float must hold


@dataclass(frozen=True)
class RowIndices:
    """Rows of a cache: one of each slot, or of tokens of one slot.

    Attributes:
        block: (count,), index of each row's first axis: its slot, or its page.
        row: (count,), index of each row's third axis.
        source: (count,), row of the data that each entry writes; None if entries are in its order.
    """

    block: torch.Tensor
    row: torch.Tensor
    source: torch.Tensor | None = None


@dataclass(frozen=True)
class KVCache:
    """Contiguous KV cache with one row per slot; ``decoder.lengths`` holds the number of valid tokens of each.

    Attributes:
        k, v: tensors (batch, kv_heads, capacity, head_dim) of each layer, keys after RoPE.
    """

    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]

    @staticmethod
    def make(shape: LlamaShape, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Build an empty cache, all zeros."""
        extents = (batch, shape.kv_heads, capacity, shape.head_dim)

        def tensors() -> tuple[torch.Tensor, ...]:
            return tuple(torch.zeros(extents, dtype=dtype, device=device) for _ in range(shape.layers))

        return KVCache(tensors(), tensors())

    def write(self, layer: int, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values (kv_heads, t, head_dim) to a slot, from position ``start`` on."""
        end = start + keys.shape[1]
        self.k[layer][slot, :, start:end], self.v[layer][slot, :, start:end] = keys, values

    def read(self, layer: int, slot: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (1, kv_heads, end, head_dim) of the first ``end`` positions of a slot."""
        return self.k[layer][slot : slot + 1, :, :end], self.v[layer][slot : slot + 1, :, :end]

    def locate_rows(self, position: torch.Tensor) -> RowIndices:
        """Return where the rows of one position (batch,) of each slot are; they are the same in every layer."""
        return RowIndices(torch.arange(len(position), device=position.device), position)

    def locate_tokens(self, slot: torch.Tensor, position: torch.Tensor, source: torch.Tensor) -> RowIndices:
        """Return where positions (count,) of one slot (1,) are, which get rows ``source`` (count,) of the data."""
        return RowIndices(slot.expand_as(position), position, source)

    def write_rows(self, layer: int, rows: RowIndices, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values (count, kv_heads, head_dim) to rows."""
        for cache, new in ((self.k[layer], keys), (self.v[layer], values)):
            cache[rows.block, :, rows.row] = new if rows.source is None else new[rows.source]

    def read_each(self, layer: int, reach: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (batch, kv_heads, reach, head_dim) of the first ``reach`` positions of all slots."""
        return self.k[layer][:, :, :reach], self.v[layer][:, :, :reach]

    def read_slot(self, layer: int, slot: torch.Tensor, reach: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of keys and values (1, kv_heads, reach, head_dim) of the first positions of a slot (1,)."""
        keys, values = self.read_each(layer, reach)
        return keys.index_select(0, slot), values.index_select(0, slot)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by their names in ``build_decode_graph``."""
        caches = {"k_cache": self.k, "v_cache": self.v}
        return {f"layers.{l}.{name}": tensor for name, each in caches.items() for l, tensor in enumerate(each)}

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of one sequence, in all layers."""
        return sum(2 * k.element_size() * k.shape[1] * k.shape[3] for k in self.k)


def count_cache_bytes(shape: LlamaShape, positions: int, dtype: torch.dtype) -> int:
    """Return the bytes of a cache with this total number of positions."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * positions * dtype.itemsize


def get_free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device; unused memory in PyTorch's allocator counts as free."""
    if device.type != "cuda":
        return get_available_bytes()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def check_memory(what: str, needed: int, device: torch.device) -> None:
    """Raise DecodeError if a device has fewer free bytes."""
    free = get_free_bytes(device)
    if needed > free:
        gigabytes = min(needed, _MAX_BYTES) / 1e9
        raise DecodeError(
            f"{what} take {gigabytes:.3g} GB, and {device} has {free / 1e9:.3g} GB free; use a smaller model, batch "
            "or max_seq_len, or fewer blocks"
        )


def resolve_max_seq_len(requested: int | None, positions: int, window: int | None) -> int:
    """Return the capacity of a cache, for a model with this maximum length and attention window.

    Raises:
        ArgumentError: the given capacity is not a positive number.
        UnsupportedModelError: the given capacity exceeds the window.
    """
    if requested is None:
        return min(positions, DEFAULT_MAX_SEQ_LEN, DEFAULT_MAX_SEQ_LEN if window is None else window)
    capacity = check_positive(requested, "max_seq_len")
    if window is not None and window < capacity:
        raise UnsupportedModelError(
            f"attention looks back over a sliding window of {window} positions, which a decoder of max_seq_len "
            f"{capacity} would not keep to; use a max_seq_len of {window} or less, and texts no longer than that"
        )
    return capacity


def count_cache_positions(batch: int, max_seq_len: int, num_blocks: int | None) -> int:
    """Return the number of tokens that all slots hold together: of shared blocks, if a number of blocks is given.

    Raises:
        ArgumentError: the batch or the number of blocks is not a positive number.
    """
    slots = check_positive(batch, "batch")
    return slots * max_seq_len if num_blocks is None else check_positive(num_blocks, "num_blocks") * PAGE_TOKENS


def check_positive(value: int, name: str) -> int:
    number = check_int(value, "Decoder", name)
    if number < 1:
        raise ArgumentError(f"Decoder: {name} is {safe_repr(number)}; give a positive number")
    return number
