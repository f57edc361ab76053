"""Scopes of names in a rewritten kernel: a name stands for one thing, from its definition to the end of its scope.

The CUDA source has the scopes of C++: the body of a loop, a condition, a role or an election is a scope, a section is
not. Following a kernel cannot check scopes: a variable keeps its value after its loop, and code that no extents reach
is skipped.

    for j in n:
      wait s_full{j_step % 4}, ...      j_step is not defined here, though it is in the second iteration
      let j_step = i * n + j
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from interlace.core.errors import UnknownHazard
from interlace.loops.ir.index import Index, find_names
from interlace.loops.ir.statements import Block, For, Let, LoopKernel, Section, Stmt


def check_scopes(kernel: LoopKernel) -> None:
    """Check that each name is defined where it is used, and stands for nothing else there.

    Raises:
        UnknownHazard: names the variable.
    """
    _check(kernel.body, frozenset(kernel.symbols))


def _check(body: tuple[Stmt, ...], known: frozenset[str]) -> frozenset[str]:
    """Return ``known`` with the names that ``body`` defines."""
    for stmt in body:
        unknown = sorted(_find_variables(stmt) - known)
        if unknown:
            raise UnknownHazard(f"the variable {unknown[0]!r} is used where nothing defines it")
        inside = known
        if isinstance(stmt, For | Let):
            if stmt.var in known:
                raise UnknownHazard(f"the variable {stmt.var!r} is defined where there is one already; rename it")
            inside = known | {stmt.var}
        if isinstance(stmt, Block):
            inside = _check(stmt.body, inside)
        if isinstance(stmt, Let | Section):
            known = inside
    return known


def _find_variables(part: object) -> frozenset[str]:
    """Return the variables in a statement, or in a part of one, without those of nested statements."""
    if isinstance(part, Index):
        return find_names(part)
    if isinstance(part, tuple):
        return frozenset().union(*(_find_variables(one) for one in part if not isinstance(one, Stmt)))
    if is_dataclass(part):
        return frozenset().union(*(_find_variables(getattr(part, field.name)) for field in fields(part)))
    return frozenset()
