"""Text of the one launch whose inputs come through the ring, and how its items pass through it.

Some inputs of an item, such as a cache, are written by no op before it: they may be loaded before the item's waits,
like weights, but only behind the launch before, which may have written them. How many stages they take may depend on
such inputs too; all roles read the same and so count the same.

    independent loads    wait for the launch before, then open a stage for each piece and load it
    dependent loads      wait for the item's semaphores, then open each of these stages with no bytes
    consumers            wait for the first loads; wait for both of each stage, read it, hand it back; store

What else an item reads before its first product may come with its first stage: in a header beside the slots, filled by
both loaders. Loaders are ahead of consumers, which else would go to the L2 and back for it, once or twice an item.

What the launch before wrote is seen behind the first loads, so a text may read such inputs at once. What the item's
waits are for is seen behind the first stage, as in ``megakernel/plain``.

``LOADS`` is a struct of the text, made from the tile and its arguments where they lie in device memory, as tensor maps
must: ``stages()``, at least 1; ``STAGE_BYTES``, of a stage at most; ``bytes(n)`` of stage n, for which all lanes of the
warp ask, stage by stage, before it is loaded; and ``load(n, slot, barrier)``, which one lane calls to begin bulk copies
of so many bytes, if there are any. They go into the slot of independent operands, and into that of dependent ones,
where nothing else of the item lies. With a header also

    note(header)                                  one lane of the first loader stores there what it knows
    early_bytes(), load_early(header, barrier)    its bulk copies, of what may be loaded before the waits
    LATE_BEGIN, LATE                              where what the waits are for comes to lie, and of how many bulk copies
    late_at(n), late_bytes(n)                     of each where it begins, which is asked for before the waits, and its
                                                  bytes, as many for all items; one lies behind the other

How many stages an item has, and so all of its loads, may wait for a number of its sequence, a trip to the L2 or two for
every tile. Where all ops that would ask for it have the same tensor, the first loader keeps it in shared memory, and
makes ``LOADS`` from the tile, its arguments and that of element ``tile.i``: ``known(n, a)`` is what it keeps of the
n-th.

What the first brought is there when the tile's function begins, what the second brought behind the first stage; the
header is the tile's until it hands that stage back. Ordinary stores into headers and bulk copies keep apart, in all
texts of a launch: the first 48 bytes are for stores.
"""

from __future__ import annotations

from interlace.csrc import read_header

#: A bulk copy without a tensor map.
BULK_LOAD = read_header("ring/bulk_load.cuh")
#: The stages of an item, as its consumers see them, whichever side of them has bytes.
PASSAGE = read_header("ring/passage.cuh").removeprefix("\n")
PRE_WAIT_LOADS = read_header("ring/streamed.cuh")
