"""Records of ``benchmarks/results`` as blocks of the pages, by what they are about."""

from __future__ import annotations

from collections.abc import Iterable


def format_table(heads: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; ``heads`` are separated by bars."""
    lines = (f"| {' | '.join(map(str, cells))} |" for cells in rows)
    return "\n".join([f"| {heads} |", "|---" * len(heads.split(" | ")) + "|", *lines])
