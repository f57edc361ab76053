"""Blocks of a cluster, as CUDA C++: rings side by side, and what several blocks need alike loaded once for all.

Blocks of a cluster take items in groups, one each: of one op and the same part of the reduction, a rectangle of tiles.
Tiles of a column need the same weights, tiles of a row the same tokens (``megakernel/clusters`` checks all this). So
all open the same stages, item after item, and stage ``n`` of one is stage ``n`` of the others. Of what several blocks
need each loads its share of the rows, by a multicast into the same place of their rings, which completes ``full``
there:

    full     expects the bytes of all shares. Those of another block may come before this one has said how many there
             will be; the phase does not end before it has
    empty    counts the consumers of all blocks, of a slot of tokens of those of the row, who hand a slot back to each
             of them. So whoever finds a slot empty may write to that slot of all that need the same, and where it is
             empty for the next round, ``full`` has ended this one

What its item waits for each block awaits for itself, before it loads its share of tokens. A group is done when the last
of it is: it makes progress as one item does if none of it waits for what comes behind its first in the plan's sequence,
which is checked too.

No block begins before the barriers of all are there, and none ends before all have done with its barriers and its ring.

Tickets are drawn by the first block, one for each group: it tells the others the row, in words that go from shared
memory to shared memory. It takes the next item when it has opened a stage of each before, and then the others have
heard of all items but those of the last STAGES stages: so STAGES + 1 words are enough, and nobody hands them back.

Hand-offs of slots tell that reads are over, and of nothing that was written: they need no order beyond the block's.
"""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.kernels.bodies import NO_CLUSTER, Cluster

#: Of the walk.
_BARRIERS = read_header("cluster/barriers.cuh")
#: Of a launch without clusters, the same functions.
_ALONE = read_header("cluster/alone.cuh")

_CLUSTERED = read_header("cluster/cluster.cuh")


def generate_source(cluster: Cluster) -> str:
    """What stands before the walk."""
    if cluster == NO_CLUSTER:
        return _BARRIERS + _ALONE
    head = f"enum {{ CLUSTER_ROWS = {cluster.rows}, CLUSTER_COLUMNS = {cluster.columns}, CLUSTER = {cluster.blocks} }};"
    return f"{_BARRIERS}{head}{_CLUSTERED}"


#: In place of tickets of each block (``megakernel/dispatch``): behind the counter, and behind the walk.
CLUSTER_TICKETS = read_header("dispatch/cluster_ticket.cuh")
