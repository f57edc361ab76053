"""The walk as CUDA C++: who draws items, who loads, who waits, who computes, and how they hand over.

    warps                    role
    first 4 * WARPGROUPS     consumers: warpgroups that multiply, each its part of a tile's rows, and its epilogue
    then one                 independent loads: draws items; loads what depends on nothing, as far ahead as the ring
                             is deep, across items, ops and launches
    then one                 dependent loads: waits on semaphores, or polls words; loads what earlier items produced
    then one                 posts: releases what consumers have finished, which takes a trip to the L2 and back
    then one                 none, but a dispatcher's in the first block: registers are dealt to warpgroups

``RING`` has the ring, the messages and the helpers that bodies call; then come the bodies, a function for each of the
first three roles that branches to the code of an item (``compose``), and a loop over items for each role (``roles``).

**The ring.** Shared memory is a ring of STAGES stages. A stage has a slot for independent and a slot for dependent
operands, and every op cuts the same bytes as it likes. Stage ``n`` of the walk lies in slot ``n mod STAGES``, and all
roles count the same stages for the same items, whatever the sequence of items is. So nothing is ever reset. A block
with four stages, whose first item takes three and whose second takes two:

    item                        0    0    0    1    1
    stage of the walk, n        0    1    2    3    4
    slot                        0    1    2    3    0
    parity of "full" awaited    0    0    0    0    1     n / STAGES mod 2
    parity of "empty" awaited   1    1    1    1    0     the opposite, which a new barrier has passed already

The loader of weights fills stages 0 to 3 at once: weights of item 1 come while item 0 still waits. Stage 4 follows when
stage 0 is handed back. The two slots of a stage may become free apart: who takes weights into registers before what
they are multiplied by is there makes room for others meanwhile.

**Messages.** The loader that draws tells the others by a mailbox of TICKETS messages: the item's row of the table and
the run. Message ``m`` lies in place ``m mod TICKETS``, with parities as those of stages.

    barrier                of each     completed by                                             awaited by
    prefetch_full       stage       the loader's arrival, and the bytes of its loads         consumers, the loader
    load_full         stage       the waiting loader's arrival, and the bytes              consumers
    prefetch_empty      stage       every consumer warp that has read the slot               the loader that draws
    load_empty        stage       every consumer warp that has read the slot               the loaders
    sent                   message     the loader that draws                                    all other roles
    received               message     consumer warps, the loader that waits, the warp that     the loader that draws
                                       posts, when they have done with it
    finished               message     one thread of each warpgroup, behind the item's stores   the warp that posts

Which item is next is for ``megakernel/dispatch``, which also says why there is progress. Where blocks have lists, all
must be resident: no more of them than SMs, which the executor checks, and no other kernel that holds an SM and waits
for this one.

Under dependent launch the blocks of the next launch start when every block of this one has seen that no item is left
for it: all have begun then, so under lists too none waits for one that finds no room.
Independent loads then precede ``griddepcontrol.wait``, everything else follows it: what they read must not be written
by the launch before.

A wait on a semaphore, or for sums of other parts, that takes longer than ``timeout_ns`` records itself and falls
through, as do all waits after it. Waits on barriers of the block can last no longer than those, if all roles count the
same stages. A message says where the first stage of its item lies, behind the last item too. The loader that waits
compares that with where it is itself, and the warp that posts with where warpgroups of consumers say that they are
when they have finished. If these differ, or where all others of the block keep the latter waiting for twice that time
and a second, it is recorded which item it was, and the launch ends with a trap (``roles``).
"""

from __future__ import annotations

from interlace.csrc import read_header

#: What the flag of a launch is that ends by a trap, and what its record has in place of a semaphore: another number of
#: stages than the loader that draws counted, by consumers (``expected`` is 0) or the loader that waits (1), so many
#: more (``seen``); an item that does not end (``expected`` is 1), or behind which no other is sent (0).
ENDED, MISCOUNTED, UNFINISHED = 2, -8, -9

RING = read_header("ring/ring.cuh")
