"""LL hand-off: which tensors of the megakernel are handed off by the LL protocol, and which waits and posts remain.

The LL protocol is NCCL's (nccl/src/device/prims_ll.h): data with an inline epoch, which readers poll
(``csrc/ll.cuh``). The code calls LL words ``words``, and an epoch the number of a publication. Example, with
two layers whose attention writes ``parts`` for ``combine``:

    plan                                               megakernel
    combine 0 waits for semaphore 3 of attend 0        polls LL words of epoch 5 in parts; no wait
    append 0 waits for 3, and overwrites a cache       waits for combine 0, which has polled all words of attend 0
    attend 0 posts 3                                   posts nothing, because no item waits for it

The plan is proved with its waits. The form that is launched is proved again (``ll_proof``), with polls as waits for
LL words, which order nothing else. A poll guarantees what the wait that it replaces guarantees:

- *Readers* have a wait for each tile that writes what they read (``verify``), and accept no word with another epoch
  than that tile gives it in this run. A reader polls all that its access maps declare, from tiles of one op each, and
  its wait is dropped only if it covers these tiles and no others. So polls imply everything that the wait implies.
- *Ops that overwrite words* are later ops that write the tensor. The plan orders them after all readers, as for any
  tensor, so no reader finds a later epoch where it expects an earlier one. Each word is polled before it is published
  again (``ll_epochs``), so its two stores are ordered, too.
- *Words of the previous run* have other epochs, although epochs wrap: they increase from run to run modulo 2^32,
  readers compare for equality, and every polled word is stored in every run, whatever the tensors hold. The set of
  polled words follows from access maps and shapes alone: ops with a ``when`` all run under these dispatches, and
  missing rows of ``RunOptions.short_inputs`` are computed as zeros. So a reader finds a word of at most one run ago,
  with an epoch that is less than twice the number of ops back. In the first run it may find the 0 of the allocation,
  but the epochs of that run start at 1.
- *Tensor stores of an op that also writes words* are for ops that read the tensor as such, and these wait for them.
  Words do not order such stores. So before they are overwritten, another op has waited for all of them and read them,
  and any op that overwrites what that op reads comes after it; or no op reads the tensor later.
- *Reads of a tile* are known to be over to ops that poll its words, as ``ll_epochs`` explains: any one word, or all. If
  a tile writes only words, other ops may await its end through the ops that have polled all of them.
- *Progress* is that of the plan: a worker's items begin in order, and an item that polls delays only items that would
  wait for it in the plan. Dispatches that take items once their waits are met do not use LL hand-off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, fold, group_by, mark_covered
from interlace.kernels.bodies import NO_LL, LLTensors
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.plan.plan import Plan, Waits
from interlace.sim.modes import LLHandOffs


@dataclass(frozen=True)
class LLEdges:
    """The tensors of a plan that use the LL protocol.

    Attributes:
        sizes: number of words of each tensor.
        ops: LL arguments of each op; ops without any (``LLTensors({})``) are absent.
        poll_sources: for each op that polls, the ops whose words it polls.
        end_pollers: for each op whose end shows only in its words, the one op that polls all of them.
    """

    sizes: Mapping[str, int]
    ops: Mapping[int, LLTensors]
    poll_sources: Mapping[int, frozenset[int]]
    end_pollers: Mapping[int, int]

    def get_ll(self, op: int) -> LLTensors:
        """Return the LL arguments of an op."""
        return self.ops.get(op, NO_LL)

    def allocate_words(self, torch: Any, device: Any) -> dict[str, Any]:
        """Allocate the words of each tensor with epoch 0, which no publication has."""
        return {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in self.sizes.items()}

    def bind_arguments(self, number: int, op: Op, body: MegakernelBody, memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the words of an op's LL arguments, by the names that its body uses; ``number`` is the op's index."""
        tensors = {access.arg: access.tensor for access in op.accesses}
        beside = "_words" if body.ll.has_tensor_copy else ""
        return {f"{arg}{beside}": memory[tensors[arg]] for arg in self.get_ll(number).epochs}

    def drop_polled_waits(self, waits: Waits, plan: Plan) -> Waits:
        """Return the waits that remain: polls replace some; waits for an op in ``end_pollers`` move to its poller."""
        if not self.ops:
            return waits
        owners = WaitOwners.from_waits(waits, plan)
        keep = ~self._mask_polled_waits(waits, plan, owners)
        first, count, stride, threshold = (
            column.copy() for column in (waits.first, waits.count, waits.stride, waits.threshold)
        )
        ops = len(plan.graph.ops)
        rows_of, items_of = owners.group_by_op(keep, ops), group_by(plan.items.op, ops)
        for op, last in self.end_pollers.items():
            mine = items_of[last]
            post = plan.items.post[mine]
            low = int(post.min())
            posts = np.bincount(post - low)
            if low >= 0 and (posts == posts[0]).all() and (owners.owner[low : low + len(posts)] == last).all():
                later = rows_of[op][waits.item[rows_of[op]] > mine[-1]]
                first[later], count[later], stride[later], threshold[later] = low, len(posts), 1, posts[0]
        ptr = np.r_[0, np.cumsum(keep)][waits.ptr]
        return Waits(ptr, *(column[keep] for column in (first, count, stride, threshold, waits.k)))

    def _mask_polled_waits(self, waits: Waits, plan: Plan, owners: WaitOwners) -> NDArray[np.bool_]:
        """Return a mask of the waits that are only for tiles whose words the waiting op polls."""
        rows_of, found = group_by(plan.items.op[waits.item], len(plan.graph.ops)), np.zeros(len(waits), np.bool_)
        for op, sources in self.poll_sources.items():
            found[owners.select(rows_of[op], sources)] = True
        return found

    def build_hand_offs(self, plan: Plan) -> LLHandOffs:
        """Return the LL hand-offs for the simulated machine, where waits for ops in ``end_pollers`` do not move."""
        if not self.ops:
            return LLHandOffs.without_ll(plan)
        posts = self.compute_posts(self.drop_polled_waits(plan.waits, plan), plan)
        return LLHandOffs(
            self._mask_polled_waits(plan.waits, plan, WaitOwners.from_waits(plan.waits, plan)),
            (plan.items.post >= 0) & (posts < 0),
        )

    def compute_posts(self, waits: Waits, plan: Plan) -> Ints:
        """Return what each item posts, given the remaining waits: -1 for items of LL ops that no item waits for."""
        post = plan.items.post
        if not self.ops:
            return post
        awaited = mark_covered(waits.first, waits.count, waits.stride, plan.semaphores + 1)  # the last entry is for -1
        silent = np.isin(plan.items.op, [*self.ops]) & ~awaited[post]
        posts: Ints = np.where(silent, -1, post)
        return posts


#: No tensor uses the LL protocol.
NO_LL_EDGES = LLEdges({}, {}, {}, {})


@dataclass(frozen=True)
class WaitOwners:
    """Ops that post the semaphores of waits.

    Attributes:
        waits: the waits.
        owner: op whose tiles post each semaphore; -1 where none or several ops do.
        least, most: lowest and highest owner among the semaphores of each wait.
    """

    waits: Waits
    owner: Ints
    least: Ints
    most: Ints

    @classmethod
    def from_waits(cls, waits: Waits, plan: Plan) -> WaitOwners:
        """Return the owners of some waits for semaphores of a plan."""
        owner, ranges = _find_semaphore_owners(plan), (waits.first, waits.count, waits.stride)
        return cls(waits, owner, fold(np.minimum, owner, *ranges), fold(np.maximum, owner, *ranges))

    def select(self, rows: Ints, ops: Collection[int]) -> Ints:
        """Return those of some waits that are only for tiles of these ops."""
        least, most = self.least[rows], self.most[rows]
        among = np.zeros(len(rows), np.bool_)
        for op in ops:
            among |= (least == op) & (most == op)
        mixed = np.flatnonzero((least >= 0) & (least < most))
        if len(mixed) and len(ops) > 1:
            waits, some = self.waits, rows[mixed]
            each = np.isin(self.owner, [*ops]).astype(np.int64)
            among[mixed] = fold(np.minimum, each, waits.first[some], waits.count[some], waits.stride[some]) == 1
        return rows[among]

    def group_by_op(self, mask: NDArray[np.bool_], ops: int) -> Groups:
        """Return the waits in a mask that are only for tiles of one op, grouped by that op, one of 0 .. ``ops``."""
        some = np.flatnonzero(mask & (self.least >= 0) & (self.least == self.most))
        groups = group_by(self.least[some], ops)
        return Groups(groups.ptr, some[groups.values])


def _find_semaphore_owners(plan: Plan) -> Ints:
    """Return the op whose tiles post each semaphore; -1 where none or several ops do."""
    ops = len(plan.graph.ops)
    least, most = np.full(plan.semaphores, ops, np.int64), np.full(plan.semaphores, -1, np.int64)
    posts = plan.items.post >= 0
    np.minimum.at(least, plan.items.post[posts], plan.items.op[posts])
    np.maximum.at(most, plan.items.post[posts], plan.items.op[posts])
    owners: Ints = np.where(least == most, least, -1)
    return owners
