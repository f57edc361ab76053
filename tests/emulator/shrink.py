"""Shrink a failing tree: each round compiles and tries all trees that are one cut away, and picks one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from interlace.loops.ir.statements import Copy

from .random_kernels import Add, Assign, Load, Loop, Out, Step, Total, Tree

#: Maximum number of cuts that are tried at once, the largest first.
CUTS = 40


def shrink(tree: Tree, failing: Callable[[Sequence[Tree]], Sequence[bool]]) -> Tree:
    """Return the smallest failing tree that is reached; ``failing`` returns for each given tree whether it fails."""
    found: Tree | None = tree
    while found is not None:
        tree, cuts = found, []
        for cut in _cuts(tree):
            if cut != tree and cut not in cuts:
                cuts.append(cut)
        found = next((cut for cut, fails in zip(cuts, failing(cuts[:CUTS]), strict=False) if fails), None)
    return tree


def _cuts(tree: Tree) -> Iterator[Tree]:
    for body in _bodies(tree.body):
        yield replace(tree, body=body)
    used = _list_used(tree.body)
    yield replace(tree, tiles={name: tile for name, tile in tree.tiles.items() if name in used})
    yield replace(tree, blocks=1)
    for name, tile in tree.tiles.items():
        if tile.stages:
            yield replace(tree, tiles=tree.tiles | {name: replace(tile, stages=0, prefetch=0)})
            fewer = tile.stages - 1
            yield replace(tree, tiles=tree.tiles | {name: replace(tile, stages=fewer, prefetch=max(fewer - 1, 0))})
    if not tree.warp_specialised:
        yield replace(tree, threads=32)


def _bodies(body: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield bodies that are one cut away: steps removed, then loops removed, then steps simplified."""
    for i in range(len(body)):
        yield body[:i] + body[i + 1 :]
    for i, step in enumerate(body):
        if isinstance(step, Loop | Total):
            yield body[:i] + step.body + body[i + 1 :]
    for i, step in enumerate(body):
        for simpler in _simpler(step):
            yield (*body[:i], simpler, *body[i + 1 :])


def _simpler(step: Step) -> Iterator[Step]:
    match step:
        case Loop():
            yield from (replace(step, body=body) for body in _bodies(step.body))
            yield replace(step, form="number", kind="serial")
            if step.extent > 1:
                yield replace(step, extent=step.extent - 1)
        case Total():
            yield from (replace(step, body=body) for body in _bodies(step.body))
        case Load():
            yield replace(step, by=Copy.TMA, again=False)
        case Assign():
            yield replace(step, turned=False)
            yield replace(step, reads=step.reads[:1])
            yield replace(step, reads=())
        case Out():
            yield replace(step, how="assign")
            yield replace(step, reads=step.reads[:1])
        case Add():
            yield replace(step, reads=step.reads[:1])


def _list_used(body: tuple[Step, ...]) -> set[str]:
    out: set[str] = set()
    for step in body:
        match step:
            case Loop() | Total():
                out |= _list_used(step.body)
            case Load():
                out.add(step.tile)
            case Assign():
                out |= {step.tile, *step.reads}
            case Out() | Add():
                out |= set(step.reads)
    return out
