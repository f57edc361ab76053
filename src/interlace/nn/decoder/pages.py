"""Paged KV cache: slots allocate pages as their sequences grow, and release them. Layout: ``kernels/pages``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from interlace.core.errors import PageError
from interlace.models.llama import PAGE_TOKENS, LlamaShape
from interlace.nn.decoder.cache import KVCache, RowIndices
from interlace.nn.decoder.mirror import MirroredTensors


class PageAllocator:
    """Page allocator and page table of all slots. Every method raises before it changes anything.

    Slots may share pages that are full. A page that no slot holds keeps its contents until it is allocated again, the
    least recently released one first, and may be shared until then.

    Args:
        count: total number of pages.
        mirror: tensors by the names of ``list_fields``; changes reach the device by ``MirroredTensors.upload``.

    Attributes:
        count: total number of pages.
        table: (batch, capacity / PAGE) int32 on the device, negative where a slot has no page.
        num_owned_tokens: (batch,), number of tokens that the pages of each slot hold.
        num_users: number of slots that hold each page.
        generation: number of times that each page was allocated.
    """

    def __init__(self, count: int, mirror: MirroredTensors) -> None:
        self.count = count
        self.table, self._table, self._mirror = mirror.tensors["table"], mirror.host["table"], mirror
        self._table[:] = -1
        mirror.mark()
        mirror.upload()
        self.num_owned_tokens = np.zeros(len(self._table), np.int64)
        self.num_users, self.generation = [0] * count, [0] * count
        self._free = OrderedDict.fromkeys(range(count))  # least recently released first
        self._owned: list[list[int]] = [[] for _ in self._table]

    @staticmethod
    def list_fields(batch: int, capacity: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes and dtypes of the mirrored tensors, for slots of this capacity in tokens."""
        return {"table": ((batch, PageAllocator.count_pages(capacity)), torch.int32)}

    @property
    def num_free(self) -> int:
        """Number of pages that no slot holds."""
        return len(self._free)

    @staticmethod
    def count_pages(positions: int) -> int:
        """Return the number of pages that this many tokens need."""
        return -(-positions // PAGE_TOKENS)

    def list_pages(self, slot: int) -> Sequence[int]:
        """Return the pages of a slot, in the order of its tokens."""
        return self._owned[slot]

    def grow(self, lengths: Mapping[int, int], shared: Mapping[int, Sequence[int]] | None = None) -> None:
        """Allocate pages so that each slot can hold the given number of tokens.

        Args:
            shared: full pages that other slots hold or have released, with which slots without pages begin.

        Raises:
            PageError: the slots need more pages than are free.
        """
        shared = {slot: pages for slot, pages in (shared or {}).items() if pages}
        first = {slot: len(self._owned[slot]) + len(shared.get(slot, ())) for slot in lengths}
        lacking = {slot: self.count_pages(length) - first[slot] for slot, length in lengths.items()}
        lacking = {slot: more for slot, more in lacking.items() if more > 0}
        wanted = sum(lacking.values())
        free = self.num_free - sum(page in self._free for pages in shared.values() for page in pages)
        if wanted > free:
            raise PageError(
                f"slots {sorted(lacking)} need {wanted} more pages of {PAGE_TOKENS} positions, and {free} of "
                f"the {self.count} are free; abort a sequence, or build the decoder with more blocks"
            )
        for slot, pages in shared.items():
            for page in pages:
                self._free.pop(page, None)
            self._append(slot, pages)
        for slot, more in lacking.items():
            new = [self._free.popitem(last=False)[0] for _ in range(more)]
            for page in new:
                self.generation[page] += 1
            self._append(slot, new)

    def release(self, slot: int, length: int = 0) -> None:
        """Release all pages of a slot beyond those for its first ``length`` tokens."""
        kept = self.count_pages(length)
        pages = self._owned[slot][kept:]
        if not pages:
            return
        for page in reversed(pages):  # the last tokens of a sequence are the least likely to be shared
            self.num_users[page] -= 1
            if not self.num_users[page]:
                self._free[page] = None
        self._set(slot, self._owned[slot][:kept])

    def _append(self, slot: int, pages: Sequence[int]) -> None:
        for page in pages:
            self.num_users[page] += 1
        self._set(slot, [*self._owned[slot], *pages])

    def _set(self, slot: int, pages: list[int]) -> None:
        self._owned[slot] = pages
        self._table[slot, : len(pages)] = pages
        self._table[slot, len(pages) :] = -1
        self.num_owned_tokens[slot] = len(pages) * PAGE_TOKENS
        self._mirror.mark()


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
