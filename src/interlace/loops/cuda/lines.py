"""CUDA source under construction, and the threads that run it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import takewhile

UNROLL = "#pragma unroll"


@dataclass
class Lines:
    """CUDA source under construction: lines with their indentation depth."""

    depth: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)

    def add_line(self, text: str) -> None:
        """Append a line."""
        self.lines.append((self.depth, text))

    def open(self, text: str = "") -> None:
        """Append a line that opens a block."""
        self.add_line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self) -> None:
        """Close the innermost block."""
        self.depth -= 1
        self.add_line("}")

    def render(self) -> list[str]:
        """Return the indented lines without unused constants; directives begin at column 0."""
        kept: list[tuple[int, str]] = []  # in reverse order
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
    """Consecutive threads that run statements together.

    Attributes:
        first: number of the first thread in the block.
        threads: number of threads.
        thread: expression of a thread's number within the scope.
        sync: statement that synchronises the scope.
        warpgroup: expression of the warpgroup's number that is uniform across lanes, if there is one.
    """

    first: int
    threads: int
    thread: str
    sync: str
    warpgroup: str | None = None

    @property
    def one_thread(self) -> ThreadScope:
        """A scope of one thread, without synchronisation."""
        return ThreadScope(self.first, 1, "0", "")
