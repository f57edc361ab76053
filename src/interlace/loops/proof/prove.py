"""Proof that the rewrite of a kernel has no hazard and does the work of its source loops, at extents found here.

``extents`` defines these extents and explains why few suffice. The kernel that is rewritten for the proof has its long
constant loops as run-time extents; the shared-memory layout is that of the kernel as it will run. Blocks that differ
only in tensor offsets are followed once. Of large grids, blocks at the ends and in the middle of every block loop are
followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from interlace.core.errors import PipelineError
from interlace.loops.ir.smem import place
from interlace.loops.ir.statements import LoopKernel, Stmt
from interlace.loops.ir.traverse import list_boxes
from interlace.loops.proof.extents import find_small_extents
from interlace.loops.proof.general import (
    GeneralKernel,
    Sizes,
    find_control_variables,
    generalise,
    list_statements,
    sample_blocks,
)
from interlace.loops.proof.hazards import HazardChecker
from interlace.loops.rewrite.circular import lower


@dataclass(frozen=True)
class ProofCoverage:
    """Coverage of a proof: extents, blocks, and the events of those that differ."""

    extents: int
    blocks: int
    events: int


@lru_cache(maxsize=256)
def prove(source: LoopKernel, *, warp_specialised: bool = False) -> ProofCoverage:
    """Follow the kernel that ``circular.lower`` produces from ``source``.

    Raises:
        HazardError: see ``hazards``.
        PipelineError: a rule is broken, see ``circular.lower``; or a statement is reached at no extents that were
            tried, or only in blocks of too many events.
    """
    general, extents = _select_extents(source)
    rewritten = lower(general.kernel, warp_specialised=warp_specialised)
    checker = HazardChecker(general.kernel, rewritten, place(lower(source, warp_specialised=warp_specialised)))
    decide = find_control_variables(general.kernel) | find_control_variables(rewritten)
    reached: set[Stmt] = set()
    blocks = events = 0
    for sizes in extents:
        checked = checker.check(sizes, sample_blocks(general.kernel, sizes, decide))
        reached |= checked.reached
        blocks, events = blocks + checked.blocks, events + checked.events
    for stmt in list_statements(general.kernel.body):
        if stmt not in reached:
            target = next(iter(list_boxes(stmt))).tensor
            raise PipelineError(
                f"kernel {source.name!r}: a {type(stmt).__name__.lower()} to {target!r} is reached at none of "
                f"{len(extents)} extents, so nothing is proved of it; drop it, or let what it stands under hold at "
                "some extents"
            )
    return ProofCoverage(len(extents), blocks, events)


@lru_cache(maxsize=256)
def _select_extents(source: LoopKernel) -> tuple[GeneralKernel, tuple[Sizes, ...]]:
    """Return the kernel that is followed for ``source`` and its extents: the same in both forms."""
    general = generalise(source)
    return general, tuple(find_small_extents(general))
