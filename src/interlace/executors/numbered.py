"""Tensors that are handed over word by word (``executors/words``), in NumPy: each element has a number beside it.

That is the number of its publication, as a word of the one launch has it: of the run times the ops of the graph, and of
the op that writes, modulo 2^32. What waits and posts are left are those of the launch, and words lie beside tensors: of
an op whose body does not store its results as tensors, too, these are left as they are. Two elements that are one word
there have a number each here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from interlace.executors.options import Options
from interlace.executors.parts import bodies_of
from interlace.executors.words_proof import proved_words
from interlace.graph.tensor import Region
from interlace.kernels.bodies import Array
from interlace.plan.verify import Proof

_WRAP = 1 << 32


class Numbered:
    """The words of a plan's tensors that are words.

    Args:
        proof: of the plan.
        words: which tensors; see ``Options.words``.

    Attributes:
        waits: of the plan, those that are left.
        posts: what each item posts, -1 for nothing.

    Raises:
        DeviceError: ``words`` is no tuple of names.
        GraphError: the kernel of an op has no part in a launch.
        PlanError: one of the tensors cannot be words.
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
        """No word has a number of a run, which are from one behind this on."""
        publications = max((worded.publications for worded in self._handed_over.ops.values()), default=0)
        for numbers in self._numbers.values():
            numbers[...] = run * publications % _WRAP

    def of(self, op: int, arguments: Iterable[str]) -> list[str]:
        """Those of an op's arguments that are words."""
        numbers = self._handed_over.of(op).numbers
        return [name for name in arguments if name in numbers]

    def keeps(self, op: int) -> bool:
        """Whether an op stores as tensors, too, what it leaves as words."""
        return self._keeps[op]

    def store(self, op: int, run: int, argument: str, region: Region, value: Array) -> None:
        """What an op writes as words has the number of its publication in a run."""
        self._values[region.tensor][region.slices] = value
        self._numbers[region.tensor][region.slices] = self._number(op, run, argument)

    def have_come(self, op: int, run: int, regions: Mapping[str, Region]) -> bool:
        """Whether all that an op reads as words has the number that it wants in a run."""
        return all(
            (self._numbers[regions[name].tensor][regions[name].slices] == self._number(op, run, name)).all()
            for name in self.of(op, regions)
        )

    def read(self, op: int, regions: Mapping[str, Region]) -> dict[str, Array]:
        """Copies of what an op reads as words, by argument."""
        return {
            name: self._values[regions[name].tensor][regions[name].slices].copy() for name in self.of(op, regions)
        }

    def _number(self, op: int, run: int, argument: str) -> np.uint32:
        worded = self._handed_over.of(op)
        return np.uint32((run * worded.publications + worded.numbers[argument]) % _WRAP)
