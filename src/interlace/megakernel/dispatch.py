"""CUDA C++ of each dispatch: a header of ``csrc/dispatch``, and a class that states what its launches need.

    static       StaticDispatch        each worker runs its own queue
    ticket       TicketDispatch        workers claim items in sequence from one counter
    hybrid       HybridDispatch        own queues first, then tickets
    stealing     StealingDispatch      own queue first, then the queues of others
    queue        QueueDispatch         workers claim ready items from one queue
    dispatcher   MailboxDispatch       a warp of the first block sends ready items to blocks
    spawn        SpawnDispatch         workers claim items that other items spawn

To add a dispatch, add a member to ``Dispatch`` and its order to ``plan/verify``; write a header that defines a
struct with the functions that ``csrc/dispatch/common.cuh`` lists; and add a class below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from interlace.csrc import include
from interlace.graph.access import Ints
from interlace.kernels.abi import Struct
from interlace.kernels.bodies import NO_CLUSTER, Cluster
from interlace.megakernel.constants import AGAIN, EARLY, EMPTY, HELD, KEEPS, LAST, LOST, OVERFLOW
from interlace.megakernel.options import Termination
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import STEAL_ONE, Stealing, Victim

if TYPE_CHECKING:
    from interlace.megakernel.table import DeviceTables

#: Fields of the ready queue: the tables of ``megakernel/ready_queue``, with groups in CSR form; the number of complete
#: semaphores of each group, over all runs; the number of pushed items, over all runs; slots, each with run + 1 and a
#: row; the number of items that are ready from the start. A dispatcher has, in place of the tail, the number of the run
#: and the counted posts of each semaphore.
QUEUE = Struct(
    "Queue",
    (
        *((name, "const int*") for name in ("first", "posts", "wakes", "groups", "members", "rows", "missing")),
        ("met", "unsigned*"),
        ("tail", "unsigned*"),
        ("slots", "unsigned long long*"),
        ("ready", "int"),
    ),
)

#: Fields of the spawn queue: rows of the first items, and of those that run once the queue is exhausted; children of
#: each item, by its number (CSR); the row of each child, the element that determines whether it runs, and the index of
#: that element's tensor in the addresses after the operands, which have ``ops`` rows; two sets of counters; a slot for
#: each item that may arrive and for each block; each block's vote, then the items that it has posted; the numbers of
#: first items, of later items, and of items that may arrive; semaphores.
SPAWN = Struct(
    "Queue",
    (
        *((name, "const int*") for name in ("first", "behind", "children", "rows", "elements", "tensors")),
        ("counters", "unsigned*"),
        ("slots", "unsigned long long*"),
        ("votes", "unsigned long long*"),
        *((name, "int") for name in ("ready", "later", "capacity", "ops", "semaphores")),
    ),
)
#: Counters of a set of the spawn queue, and unsigned words from one counter to the next: each has its own cache line.
COUNTERS, SPREAD = 4, 32
#: Lower half of a mailbox's word: the block has emptied it; the bit that flips at each turn; the word to stop.
EMPTIED, TURN, STOP = 1 << 31, 1 << 30, (1 << 30) - 1
#: Bits of a row's number where two of them share a word with 16 bits of the run.
ROW_BITS = 24


@dataclass(frozen=True)
class DispatchCode:
    """Code of a dispatch in a launch.

    Attributes:
        header: name of its header.
        queue: struct of the queue that the launch takes.
        can_hold_operands: True if the launch may hold the operands of its ops itself.
        has_wide_heads: True if elements of ``heads`` have 64 bits, else 32.
        item_limit: number of items that a plan must stay below; None for no limit.
        dispatch: the dispatch.
        stealing: number of items and victim of a worker with an empty queue.
        blocks: blocks that may be resident at once.
        loads_ahead: True if some op has pre-wait loads.
        termination: how workers detect the end under spawn dispatch.
        cluster: blocks that load for each other.
    """

    header: ClassVar[str]
    queue: ClassVar[Struct] = QUEUE
    can_hold_operands: ClassVar[bool] = False
    has_wide_heads: ClassVar[bool] = False
    item_limit: ClassVar[int | None] = None

    dispatch: Dispatch
    stealing: Stealing = STEAL_ONE
    blocks: int = 0
    loads_ahead: bool = True
    termination: Termination = Termination.COUNT
    cluster: Cluster = NO_CLUSTER

    @property
    def struct(self) -> str:
        """C++ type that the header defines."""
        return type(self).__name__

    @property
    def constants(self) -> Mapping[str, int]:
        """Constants that the header needs."""
        return {}

    @property
    def claims_ahead(self) -> bool:
        """True if blocks claim items as early as the ring has room, although others might begin them sooner."""
        return False

    @property
    def is_resident(self) -> bool:
        """True if all workers must be resident at once."""
        return self.dispatch.has_resident_workers

    @property
    def struct_header(self) -> str:
        """Name of the header that defines ``struct``."""
        return self.header

    @property
    def source(self) -> str:
        """CUDA C++ after the ring: the header, and the alias of its struct in a launch."""
        return f"{include(self.struct_header)}using Tickets = {self.struct};\n"

    def count_heads(self, workers: int, queues: int) -> int:
        """Return the number of elements of ``heads``."""
        return queues

    def flag_rows(self, table: DeviceTables) -> Ints:
        """Return the flags of each row of a table, for its column ``code``."""
        return np.zeros(len(table.items), np.int64)


class StaticDispatch(DispatchCode):
    """Each worker runs its own queue."""

    header = "dispatch/static.cuh"
    can_hold_operands = True

    def flag_rows(self, table: DeviceTables) -> Ints:
        """Keep slots of the last item of an op on a worker; mark items that follow one of their op."""
        return KEEPS * table.last_of_op_mask.astype(np.int64) | AGAIN * table.same_op_mask.astype(np.int64)


class TicketDispatch(DispatchCode):
    """Workers claim items in sequence from one counter; a cluster claims one ticket for all of its blocks."""

    header = "dispatch/ticket.cuh"
    can_hold_operands = True

    @property
    def struct(self) -> str:
        """C++ type that the header defines."""
        if self.cluster != NO_CLUSTER:
            return "ClusterTicketDispatch"
        return "TicketDispatch" if self.loads_ahead else "LateTicketDispatch"

    @property
    def claims_ahead(self) -> bool:
        """True if some op has pre-wait loads."""
        return self.loads_ahead

    @property
    def struct_header(self) -> str:
        """Name of the header that defines ``struct``; clusters have their own header."""
        return "dispatch/cluster_ticket.cuh" if self.cluster != NO_CLUSTER else self.header

    def flag_rows(self, table: DeviceTables) -> Ints:
        """Keep slots in the last wave of an op; mark the last items that wait."""
        return KEEPS * table.last_wave_mask.astype(np.int64) | LAST * table.last_waiting_mask.astype(np.int64)


class HybridDispatch(DispatchCode):
    """Each worker runs its own queue, then claims items of a shared queue by ticket."""

    header = "dispatch/hybrid.cuh"

    def flag_rows(self, table: DeviceTables) -> Ints:
        """Keep slots in the last wave of an op."""
        return KEEPS * table.last_wave_mask.astype(np.int64)


class StealingDispatch(DispatchCode):
    """Each worker runs its own queue, then takes items from the queues of others."""

    header = "dispatch/stealing.cuh"
    has_wide_heads = True
    item_limit = 1 << ROW_BITS

    @property
    def constants(self) -> Mapping[str, int]:
        """Number of items that a thief takes, its victims, and the format of words."""
        most = (1 << ROW_BITS) - 1
        return {
            "MOST_STOLEN": most if self.stealing.most is None else min(self.stealing.most, most),
            "RANDOM_VICTIMS": int(self.stealing.victim is Victim.RANDOM),
            "ROW_BITS": ROW_BITS,
        }


class QueueDispatch(DispatchCode):
    """Workers claim ready items from one queue."""

    header = "dispatch/queue.cuh"

    @property
    def constants(self) -> Mapping[str, int]:
        """Code that a wait for an item records."""
        return {"EMPTY": EMPTY}


class MailboxDispatch(DispatchCode):
    """A warp of the first block sends ready items to blocks through mailboxes, which are in ``heads``."""

    header = "dispatch/dispatcher.cuh"
    has_wide_heads = True

    @property
    def constants(self) -> Mapping[str, int]:
        """Code that a wait for an item records, the format of mailboxes, and the number of blocks per lane."""
        return {"EMPTY": EMPTY, "EMPTIED": EMPTIED, "TURN": TURN, "STOP": STOP, "LOOKS": -(-self.blocks // 32)}

    def count_heads(self, workers: int, queues: int) -> int:
        """Return the number of mailboxes of two runs."""
        return 2 * HELD * workers


class SpawnDispatch(DispatchCode):
    """Workers claim items that other items spawn; addresses of tensors follow the operands in memory."""

    header = "dispatch/spawn.cuh"
    queue = SPAWN

    @property
    def struct(self) -> str:
        """C++ type that the header defines, for a termination."""
        return f"SpawnDispatch<{self.termination.value.title().replace(' ', '')}Termination>"

    @property
    def constants(self) -> Mapping[str, int]:
        """Layout of counters, and codes that failed waits record."""
        return {"COUNTERS": COUNTERS, "SPREAD": SPREAD, "LOST": LOST, "OVERFLOW": OVERFLOW, "EARLY": EARLY}

    @property
    def is_resident(self) -> bool:
        """True for votes, which all workers must cast."""
        return self.termination is Termination.VOTES


CODES: dict[Dispatch, type[DispatchCode]] = {
    Dispatch.STATIC: StaticDispatch,
    Dispatch.TICKET: TicketDispatch,
    Dispatch.HYBRID: HybridDispatch,
    Dispatch.STEALING: StealingDispatch,
    Dispatch.QUEUE: QueueDispatch,
    Dispatch.DISPATCHER: MailboxDispatch,
    Dispatch.SPAWN: SpawnDispatch,
}


def select_code(
    dispatch: Dispatch,
    stealing: Stealing = STEAL_ONE,
    blocks: int = 0,
    loads_ahead: bool = True,
    termination: Termination = Termination.COUNT,
    cluster: Cluster = NO_CLUSTER,
) -> DispatchCode:
    """Return the code of a dispatch; the arguments are its attributes."""
    return CODES[dispatch](dispatch, stealing, blocks, loads_ahead, termination, cluster)
