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
from interlace.megakernel.ll_proof import proved_words
from interlace.megakernel.options import Options
from interlace.megakernel.parts import bodies_of
from interlace.plan.verify import Proof

_WRAP = 1 << 32


class Numbered:
    """The LL words of a plan.

    Args:
        proof: proof of the plan.
        words: names of the tensors that are LL words; see ``Options.words``.

    Attributes:
        waits: waits of the plan that remain.
        posts: semaphore that each item posts, -1 for none.

    Raises:
        DeviceError: ``words`` is not a tuple of names.
        GraphError: the kernel of an op has no body for the megakernel.
        PlanError: one of the tensors cannot use the LL protocol.
    """

    def __init__(self, proof: Proof, words: tuple[str, ...] | None) -> None:
        plan, bodies = proof.plan, bodies_of(proof.plan.graph)
        self._handed_over = proved_words(plan, bodies, Options("meta", words=words))
        self._keeps = [body.keeps for body in bodies]
        self.waits = self._handed_over.without(plan.waits, plan)
        self.posts = self._handed_over.posts(self.waits, plan)
        shapes = {name: plan.graph.tensor(name).shape for name in self._handed_over.sizes}
        self._values = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self._numbers = {name: np.zeros(shape, np.uint32) for name, shape in shapes.items()}

    def empty(self, run: int) -> None:
        """Set the epochs of all words to the last one before a run, whose epochs start one above it."""
        publications = max((worded.publications for worded in self._handed_over.ops.values()), default=0)
        for numbers in self._numbers.values():
            numbers[...] = run * publications % _WRAP

    def of(self, op: int, arguments: Iterable[str]) -> list[str]:
        """Return those of an op's arguments that are LL words."""
        numbers = self._handed_over.of(op).numbers
        return [name for name in arguments if name in numbers]

    def keeps(self, op: int) -> bool:
        """Return whether an op also stores its LL outputs as tensors."""
        return self._keeps[op]

    def store(self, op: int, run: int, argument: str, region: Region, value: Array) -> None:
        """Store an output of an op as LL words, with the epoch of the op in a run."""
        self._values[region.tensor][region.slices] = value
        self._numbers[region.tensor][region.slices] = self._number(op, run, argument)

    def have_come(self, op: int, run: int, regions: Mapping[str, Region]) -> bool:
        """Return whether all words that an op reads have the epoch that it expects in a run."""
        return all(
            (self._numbers[regions[name].tensor][regions[name].slices] == self._number(op, run, name)).all()
            for name in self.of(op, regions)
        )

    def read(self, op: int, regions: Mapping[str, Region]) -> dict[str, Array]:
        """Return copies of the LL words that an op reads, by argument."""
        return {name: self._values[regions[name].tensor][regions[name].slices].copy() for name in self.of(op, regions)}

    def _number(self, op: int, run: int, argument: str) -> np.uint32:
        worded = self._handed_over.of(op)
        return np.uint32((run * worded.publications + worded.numbers[argument]) % _WRAP)
