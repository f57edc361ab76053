"""LL hand-off in NumPy (``megakernel/ll_edges``): each element has an epoch next to its value.

The epoch is that of an LL word in the megakernel, modulo 2^32: the run times the number of ops of the graph, plus the
number of the op that writes (from 1). The remaining waits and posts are those of the megakernel. LL words are stored
apart from tensors: where an op's body does not also store its results as tensors, the tensors stay unchanged. Two
elements that share a word in the megakernel have one epoch each here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from interlace.graph.tensor import Region
from interlace.kernels.bodies import Array
from interlace.megakernel.ll_proof import prove_ll
from interlace.megakernel.options import RunOptions
from interlace.megakernel.parts import build_bodies
from interlace.plan.verify import Proof

_WRAP = 1 << 32


class LLMemory:
    """The LL words of a plan.

    Args:
        proof: proof of the plan.
        ll_tensors: names of the tensors that are LL words; see ``RunOptions.ll_tensors``.

    Attributes:
        waits: waits of the plan that remain.
        posts: semaphore that each item posts, -1 for none.

    Raises:
        DeviceError: ``ll_tensors`` is not a tuple of names.
        GraphError: the kernel of an op has no body for the megakernel.
        PlanError: one of the tensors cannot use the LL protocol.
    """

    def __init__(self, proof: Proof, ll_tensors: tuple[str, ...] | None) -> None:
        plan, bodies = proof.plan, build_bodies(proof.plan.graph)
        self._ll_edges = prove_ll(plan, bodies, RunOptions("meta", ll_tensors=ll_tensors))
        self._has_tensor_copy = [body.ll.has_tensor_copy for body in bodies]
        self.waits = self._ll_edges.drop_polled_waits(plan.waits, plan)
        self.posts = self._ll_edges.compute_posts(self.waits, plan)
        shapes = {name: plan.graph.tensor(name).shape for name in self._ll_edges.sizes}
        self._values = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self._epochs = {name: np.zeros(shape, np.uint32) for name, shape in shapes.items()}

    def reset_epochs(self, run: int) -> None:
        """Set the epochs of all words to the last one before a run, whose epochs start one above it."""
        publications = max((worded.epochs_per_run for worded in self._ll_edges.ops.values()), default=0)
        for numbers in self._epochs.values():
            numbers[...] = run * publications % _WRAP

    def filter_ll_arguments(self, op: int, arguments: Iterable[str]) -> list[str]:
        """Return those of an op's arguments that are LL words."""
        numbers = self._ll_edges.get_ll(op).epochs
        return [name for name in arguments if name in numbers]

    def has_tensor_copy(self, op: int) -> bool:
        """Return whether an op also stores its LL outputs as tensors."""
        return self._has_tensor_copy[op]

    def store(self, op: int, run: int, argument: str, region: Region, value: Array) -> None:
        """Store an output of an op as LL words, with the epoch of the op in a run."""
        self._values[region.tensor][region.slices] = value
        self._epochs[region.tensor][region.slices] = self._compute_epoch(op, run, argument)

    def has_arrived(self, op: int, run: int, regions: Mapping[str, Region]) -> bool:
        """Return whether all words that an op reads have the epoch that it expects in a run."""
        return all(
            (self._epochs[regions[name].tensor][regions[name].slices] == self._compute_epoch(op, run, name)).all()
            for name in self.filter_ll_arguments(op, regions)
        )

    def read(self, op: int, regions: Mapping[str, Region]) -> dict[str, Array]:
        """Return copies of the LL words that an op reads, by argument."""
        return {
            name: self._values[regions[name].tensor][regions[name].slices].copy()
            for name in self.filter_ll_arguments(op, regions)
        }

    def _compute_epoch(self, op: int, run: int, argument: str) -> np.uint32:
        worded = self._ll_edges.get_ll(op)
        return np.uint32((run * worded.epochs_per_run + worded.epochs[argument]) % _WRAP)
