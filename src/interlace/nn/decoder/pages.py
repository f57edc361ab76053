"""Paged KV cache: slots allocate pages as their sequences grow, and release them. Layout: ``kernels/pages``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from interlace.core.errors import PageError
from interlace.models.llama import PAGE_TOKENS, LlamaShape
from interlace.nn.decoder.cache import KVCache, RowIndices


class PageAllocator:
    """Page allocator and page table of all slots. Every method raises before it changes anything.

    Args:
        count: total number of pages.
        batch, capacity: number of slots, and capacity of each slot in tokens.

    Attributes:
        count: total number of pages.
        table: (batch, capacity / PAGE) int32 on the device, negative where a slot has no page. Changes are enqueued on
            the current stream. Adding a single page, as a step does, does not wait for the device.
    """

    def __init__(self, count: int, batch: int, capacity: int, device: torch.device) -> None:
        self.count = count
        self.table = torch.full((batch, self.count_pages(capacity)), -1, dtype=torch.int32, device=device)
        self._free = [*reversed(range(count))]
        self._owned: list[list[int]] = [[] for _ in range(batch)]

    @property
    def num_free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    @staticmethod
    def count_pages(positions: int) -> int:
        """Return the number of pages that this many tokens need."""
        return -(-positions // PAGE_TOKENS)

    def grow(self, lengths: Mapping[int, int]) -> None:
        """Allocate pages so that each slot can hold the given number of tokens.

        Raises:
            PageError: the slots need more pages than are free.
        """
        lacking = {slot: self.count_pages(length) - len(self._owned[slot]) for slot, length in lengths.items()}
        lacking = {slot: more for slot, more in lacking.items() if more > 0}
        wanted = sum(lacking.values())
        if wanted > self.num_free:
            raise PageError(
                f"slots {sorted(lacking)} need {wanted} more pages of {PAGE_TOKENS} positions, and {self.num_free} of "
                f"the {self.count} are free; abort a sequence, or build the decoder with more blocks"
            )
        for slot, more in lacking.items():
            owned = self._owned[slot]
            first = len(owned)
            owned += [self._free.pop() for _ in range(more)]
            if more == 1:
                self.table[slot, first].fill_(owned[first])  # assignment would copy from the host and wait
            else:
                self.table[slot, first : len(owned)] = torch.tensor(owned[first:], dtype=torch.int32)

    def release(self, slot: int, length: int = 0) -> None:
        """Release all pages of a slot beyond those for its first ``length`` tokens."""
        kept = self.count_pages(length)
        self._free += reversed(self._owned[slot][kept:])
        del self._owned[slot][kept:]
        self.table[slot, kept:] = -1


@dataclass(frozen=True)
class PagedKVCache(KVCache):
    """KV cache in pools of pages.

    Attributes:
        k, v: for each layer (pages, kv_heads, PAGE, head_dim), keys after RoPE.
        table: page table of the slots, see ``PageAllocator``.
    """

    table: torch.Tensor

    @staticmethod
    def allocate(shape: LlamaShape, pages: PageAllocator, dtype: torch.dtype) -> PagedKVCache:
        """Build an empty cache, all zeros."""
        pools = KVCache.make(shape, pages.count, PAGE_TOKENS, dtype, pages.table.device)
        return PagedKVCache(pools.k, pools.v, pages.table)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {"table": self.table, **super().tensors}

    def write(self, layer: int, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        at = torch.arange(start, start + keys.shape[1], device=keys.device)
        page, row = self.table[slot, at // PAGE_TOKENS].long(), at % PAGE_TOKENS
        self.k[layer][page, :, row], self.v[layer][page, :, row] = keys.transpose(0, 1), values.transpose(0, 1)

    def read(self, layer: int, slot: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gather_rows(layer, self.table[slot : slot + 1], end)

    def locate_rows(self, position: torch.Tensor) -> RowIndices:
        slots = torch.arange(len(position), device=position.device)
        page, row = self.table[slots, position // PAGE_TOKENS].long(), position % PAGE_TOKENS
        # A slot without a page repeats the write of the first slot with one, which needs no wait for the device.
        of = torch.where(page >= 0, slots, (page >= 0).int().argmax())
        return RowIndices(page[of], row[of], of)

    def locate_tokens(self, slot: torch.Tensor, position: torch.Tensor, source: torch.Tensor) -> RowIndices:
        page = self.table.index_select(0, slot)[0].index_select(0, position // PAGE_TOKENS).long()
        return RowIndices(page, position % PAGE_TOKENS, source)

    def read_slot(self, layer: int, slot: torch.Tensor, reach: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gather_rows(layer, self.table.index_select(0, slot), reach)

    def read_each(self, layer: int, reach: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gather_rows(layer, self.table, reach)

    def _gather_rows(self, layer: int, table: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (slots, kv_heads, end, head_dim) of the first ``end`` tokens of slots."""
        pages = table[:, : PageAllocator.count_pages(end)].long().clamp_min(0)

        def rows(pool: torch.Tensor) -> torch.Tensor:
            return pool[pages].transpose(1, 2).flatten(2, 3)[:, :, :end]

        return rows(self.k[layer]), rows(self.v[layer])
