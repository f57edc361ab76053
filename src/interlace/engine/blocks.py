"""Prefix cache: full blocks of KV cache by what they hold.

Keys and values of a token depend on all tokens before it. The hash of a block therefore covers its own 64 tokens and
the hash of the block before it:

    tokens    t0 ... t63      t64 ... t127            t128 ... t150
    hash      h0 = H(t0..63)  h1 = H(h0, t64..127)    not full: not shared

Blocks that no sequence holds stay in the cache until the allocator gives them to another sequence. Its generation count
of the block has then changed, and the entry is void.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from interlace.models.llama import PAGE_TOKENS
from interlace.nn.decoder.pages import PageAllocator

_HASH_BYTES = 16


class PrefixCache:
    """Blocks by the hash of their tokens and of all tokens before them.

    Args:
        pages: allocator of the blocks.
    """

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._blocks: dict[bytes, tuple[int, int]] = {}  # block and its generation
        self._hashes: list[bytes | None] = [None] * pages.count

    def find(self, tokens: Sequence[int], hashes: list[bytes]) -> list[int]:
        """Return the blocks that hold the longest cached prefix of a prompt, without its last token.

        Args:
            hashes: hashes of the prompt's first blocks; extended by those that were needed.
        """
        found: list[int] = []
        for number in range((len(tokens) - 1) // PAGE_TOKENS):
            self._extend(hashes, tokens, number + 1)
            block, generation = self._blocks.get(hashes[number], (0, 0))
            if not generation or self._pages.generation[block] != generation:
                break
            found.append(block)
        return found

    def insert(self, tokens: Sequence[int], hashes: list[bytes], blocks: Sequence[int], first: int, end: int) -> None:
        """Enter blocks ``first`` to ``end`` of a sequence, whose tokens they hold.

        A block whose tokens another one holds already is not entered.

        Args:
            hashes: see ``find``.
            blocks: blocks of the sequence.
        """
        self._extend(hashes, tokens, end)
        for number in range(first, end):
            hash, block = hashes[number], blocks[number]
            known, generation = self._blocks.get(hash, (0, 0))
            if generation and self._pages.generation[known] == generation:
                continue
            old = self._hashes[block]
            if old is not None and self._blocks.get(old, (-1, 0))[0] == block:
                del self._blocks[old]
            self._blocks[hash] = block, self._pages.generation[block]
            self._hashes[block] = hash

    @staticmethod
    def _extend(hashes: list[bytes], tokens: Sequence[int], count: int) -> None:
        """Compute hashes until there are those of ``count`` blocks."""
        while len(hashes) < count:
            begin = len(hashes) * PAGE_TOKENS
            content = array("i", tokens[begin : begin + PAGE_TOKENS]).tobytes()
            parent = hashes[-1] if hashes else b""
            hashes.append(blake2b(parent + content, digest_size=_HASH_BYTES).digest())
