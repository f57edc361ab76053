"""Bodies of the one launch that are plain text of a tile: how their items pass through the ring.

Such an item moves nothing through shared memory, but all roles count one stage for it, as for any other item:

    independent loads    open the stage with no bytes, so its slot is full at once
    dependent loads      wait for the item's semaphores, then open the stage with no bytes
    consumers            wait for the stage, hand it back, compute, store

So what the loader's lanes acquired reaches the consumers: the lanes meet, one of them arrives on the stage's barrier
(release), and each consumer waits for it (acquire), both in the scope of the block; order is handed on from one such
pair to the next. Ordinary loads of consumers then see it. Those through the read-only path (``__ldg``) need not.
"""

from __future__ import annotations

from interlace.csrc import read_header

#: What a text is told of its tile. It waits for words itself (``primitives/tagged_cuda``).
TILE = read_header("tile.cuh")
PLAIN = read_header("ring/plain.cuh")
