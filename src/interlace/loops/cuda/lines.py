"""CUDA C++ text under construction, and the threads that run it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile

UNROLL = "#pragma unroll"


@dataclass
class Lines:
    """Text under construction: lines with their depth."""

    depth: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)

    def add_line(self, text: str) -> None:
        """One line."""
        self.lines.append((self.depth, text))

    def open(self, text: str = "") -> None:
        """A line that opens a block."""
        self.add_line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self) -> None:
        """The end of the block."""
        self.depth -= 1
        self.add_line("}")

    def render(self) -> list[str]:
        """The lines, without constants that nothing in their scope uses; directives stand at the beginning."""
        kept: list[tuple[int, str]] = []  # from the last line back
        for depth, line in reversed(self.lines):
            declared = re.match(r"(?:const \w+&?|(?:const )?[\w ]+\*? const) (\w+) = ", line)
            if declared is not None:
                scope = takewhile(lambda other: other[0] >= depth, reversed(kept))  # noqa: B023
                if not any(re.search(rf"\b{declared[1]}\b", other) for _, other in scope):
                    continue
            kept.append((depth, line))
        return [text if text.startswith("#") else "  " * depth + text for depth, text in reversed(kept)]


@dataclass(frozen=True)
class ThreadScope:
    """Threads that run statements together: from ``first`` on; ``thread`` is a thread's place.

    ``warpgroup`` is the number of its warpgroup, where something is known to be the same in all lanes.
    """

    first: int
    threads: int
    thread: str
    sync: str
    warpgroup: str | None = None

    @property
    def one_thread(self) -> ThreadScope:
        """One of its threads, which synchronises with no other."""
        return ThreadScope(self.first, 1, "0", "")
