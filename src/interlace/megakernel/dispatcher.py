"""A dispatcher as CUDA C++: a warp of the first block that knows all dependencies, and mailboxes for each block.

A block has HELD mailboxes, which it takes from in turn, and as many for every second run. A mailbox is one word: the
number of the run, and in its lower half the row of an item, the word to stop, or that the block has emptied it, with
the semaphore that its item posted. The dispatcher fills a mailbox that is empty, or was filled in another run; the
block's warp that posts empties it when it has posted. So each word has one writer at a time, and a block never has more
than it takes. The warp that takes may look again before it is emptied: rows have a bit that turns with each filling, by
which it knows that it had this one.

The dispatcher counts posts of semaphores, and for groups of items (``megakernel/ready``) the semaphores that are
complete; a group with all of them is ready. It gives ready items to blocks that hold nothing, then to those that hold
one (the last items perhaps not to these: ``megakernel/dispatch``), in the order in which they became ready, and when
none is left it tells each block to stop. So no item that is given waits, and each is given once. All blocks must be
resident, since an item that was given to one is nobody else's. Its lists have room for every item once a run: nothing
is ever full.

Mailboxes order nothing: what an item reads is ordered by its own waits, which it finds met. What the dispatcher alone
uses it finds as the run before left it, as it begins to count when that has ended. Under dependent launch it gives
items that are ready from the start while the run before drains, so that their loads go ahead; blocks of that run may
not have emptied their mailboxes yet, which is why there are those of two runs. A block that is told to stop lets the
next launch begin when the one before has ended, whose mailboxes are then free for it (``protocols/overlapping``).
"""

from __future__ import annotations

from interlace.csrc import read_header

#: Of a launch without a dispatcher, the same hooks: behind the post of an item, and of the warp that has no other role.
NO_DISPATCHER = read_header("dispatch/no_dispatcher.cuh")

DISPATCHER = read_header("dispatch/dispatcher.cuh")
