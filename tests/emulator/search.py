"""Random kernels by number, and a search for failures, for ``python -m tests.emulator`` and the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from interlace.core.errors import HazardError, PipelineError
from interlace.loops.proof.prove import prove

from .build import build
from .compare import Trial, troubles_of
from .random_kernels import Tree, build_tree, draw
from .random_products import Product, draw_product
from .shrink import shrink

#: One of this many kernels is a matmul.
PRODUCTS_ONE_IN = 12
#: Tolerance for sums in another order.
TOLERANCE = 1e-3
#: Number of kernels per compilation.
TOGETHER = 40


@dataclass(frozen=True)
class Drawn:
    """Kernel ``number``, with the description that it was built from."""

    number: int
    plan: Tree | Product
    trial: Trial


@cache
def draw_kernel(number: int) -> Drawn | None:
    """Return the random kernel of a number; None if the loops, the rewrite or the emitter reject it."""
    random = Random(number)
    plan = draw_product(random) if number % PRODUCTS_ONE_IN == PRODUCTS_ONE_IN - 1 else draw(random)
    try:
        trial = trial_of(plan, f"kernel {number}")
    except PipelineError:
        return None
    return Drawn(number, plan, trial)


def trial_of(plan: Tree | Product, name: str) -> Trial:
    """Build the trial of a description. Raises what ``lower`` and ``emit_kernel`` raise."""
    kernel, sizes = plan.build() if isinstance(plan, Product) else build_tree(plan)
    trial = Trial(name, kernel, plan.warp_specialised, sizes, TOLERANCE)
    trial.emit()
    return trial


def search(numbers: Iterable[int], seeds: int = 1) -> tuple[int, list[tuple[Drawn, list[str]]]]:
    """Return how many kernels ``numbers`` yield, and those that fail, with their failures."""
    every = [found for number in numbers if (found := draw_kernel(number)) is not None]
    wrong = []
    for first in range(0, len(every), TOGETHER):
        some = every[first : first + TOGETHER]
        library = build([one.trial.emit() for one in some])
        for at, one in enumerate(some):
            troubles = list(troubles_of(library, at, one.trial, range(one.number, one.number + seeds)))
            if troubles:
                wrong.append((one, troubles))
    return len(every), wrong


def prove_trial(trial: Trial) -> str:
    """Return the verdict of ``prove``: accepted, the error's name for a hazard, or not proved."""
    try:
        prove(trial.source, warp_specialised=trial.warp_specialised)
    except HazardError as error:
        return type(error).__name__
    except PipelineError:
        return "not proved"
    return "accepted"


def find_smallest(found: Drawn, seeds: int = 3) -> Drawn:
    """Return a smaller kernel that also fails; matmuls are returned unchanged."""
    if isinstance(found.plan, Product):
        return found

    def failing(trees: Sequence[Tree]) -> list[bool]:
        trials: list[Trial | None] = []
        for tree in trees:
            try:
                trials.append(trial_of(tree, "cut"))
            except PipelineError:
                trials.append(None)
        whole = [trial for trial in trials if trial is not None]
        library = build([trial.emit() for trial in whole]) if whole else None
        wrong = {id(t): any(troubles_of(library, i, t, range(seeds))) for i, t in enumerate(whole) if library}
        return [trial is not None and wrong[id(trial)] for trial in trials]

    tree = shrink(found.plan, failing)
    return Drawn(found.number, tree, trial_of(tree, f"kernel {found.number}, smaller"))
