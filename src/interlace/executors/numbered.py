"""Tensors that are handed over word by word (``executors/words``), in NumPy: each element has a number beside it.

That is the number of its publication, as a word of the one launch has it: of the run times the ops of the graph, and of
the op that writes, modulo 2^32. What waits and posts are left are those of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from interlace.executors.options import Options
from interlace.executors.parts import bodies_of
from interlace.executors.words import handed_over
from interlace.graph.tensor import Region
from interlace.plan.verify import Proof

_WRAP = 1 << 32


class Numbered:
    """The numbers of all elements of a plan's tensors that are words.

    Args:
        proof: of the plan.
        words: which tensors; see ``Options.words``.

    Attributes:
        waits: of the plan, those that are left.
        posts: what each item posts, -1 for nothing.

    Raises:
        PlanError: one of the tensors cannot be words.
    """

    def __init__(self, proof: Proof, words: tuple[str, ...] | None) -> None:
        plan = proof.plan
        self._handed_over = handed_over(proof, bodies_of(plan.graph), Options("meta", words=words))
        self.waits = self._handed_over.without(plan.waits, plan)
        self.posts = self._handed_over.posts(self.waits, plan)
        self._numbers = {
            name: np.zeros(plan.graph.tensor(name).shape, np.uint32) for name in self._handed_over.sizes
        }

    def of(self, op: int, arguments: Iterable[str]) -> list[str]:
        """Those of an op's arguments that are words."""
        numbers = self._handed_over.of(op).numbers
        return [name for name in arguments if name in numbers]

    def store(self, op: int, run: int, regions: Mapping[str, Region]) -> None:
        """What an op writes has the numbers of its publication in a run."""
        for argument in self.of(op, regions):
            region = regions[argument]
            self._numbers[region.tensor][region.slices] = self._number(op, run, argument)

    def have_come(self, op: int, run: int, regions: Mapping[str, Region]) -> bool:
        """Whether all that an op reads as words has the number that it wants in a run."""
        return all(
            (self._numbers[regions[name].tensor][regions[name].slices] == self._number(op, run, name)).all()
            for name in self.of(op, regions)
        )

    def _number(self, op: int, run: int, argument: str) -> np.uint32:
        worded = self._handed_over.of(op)
        return np.uint32((run * worded.publications + worded.numbers[argument]) % _WRAP)
