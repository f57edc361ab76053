"""Prompts that wait to be read, in the order in which they were added.

With at most 4 tokens of prompts a step, and prompts of 6 and 5 tokens added at once:

    step     0                1                  2
    reads    a0 a1 a2 a3      a4 a5 b0 b1        b2 b3 b4
    decodes                                      a            from the step after its last token on
"""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.errors import SlotError
from interlace.models.step_rows import PromptSegment


@dataclass(frozen=True)
class PromptLimits:
    """Most tokens of prompts that a step reads.

    Attributes:
        decoding: tokens while sequences decode; 0 if prompts are read whole when they are added.
        alone: tokens while no sequence decodes, so that none waits.
        can_build: True if launches of chunks may be built to read them, which takes seconds.
    """

    decoding: int = 0
    alone: int = 0
    can_build: bool = True


class PromptQueue:
    """Prompts that are not wholly read, first come, first served.

    Attributes:
        limits: most tokens that a step reads.
    """

    def __init__(self) -> None:
        self.limits = PromptLimits()
        self._prompts: dict[int, tuple[list[int], int]] = {}  # tokens, and how many of them are cached

    @property
    def unread(self) -> dict[int, int]:
        """Number of tokens that are left to read, by slot."""
        return {slot: len(tokens) - cached for slot, (tokens, cached) in self._prompts.items()}

    def check_read(self, slot: int) -> None:
        """Raise SlotError if the prompt of a slot is not wholly read."""
        left = self.unread.get(slot, 0) if isinstance(slot, int) else 0  # others are refused elsewhere
        if left:
            raise SlotError(f"slot {slot} has {left} tokens of its prompt left to read; run steps until it has none")

    def add(self, slot: int, tokens: list[int], cached: int) -> None:
        """Add the prompt of a slot, whose first tokens are cached already."""
        self._prompts[slot] = tokens, cached

    def drop(self, slot: int) -> None:
        """Remove the prompt of a slot, if it has one."""
        self._prompts.pop(slot, None)

    def select_segments(self, room: int) -> list[PromptSegment]:
        """Return the next tokens, at most ``room``."""
        segments = []
        for slot, (tokens, cached) in self._prompts.items():
            taken = tokens[cached : cached + room]
            room -= len(taken)
            if not taken:
                break
            segments.append(PromptSegment(slot, cached, tuple(taken)))
        return segments

    def advance(self, segment: PromptSegment) -> tuple[int, bool]:
        """Count a segment as read; return the length of its sequence, and whether its prompt is wholly read."""
        tokens, _ = self._prompts[segment.sequence]
        length = segment.start + len(segment.tokens)
        self._prompts[segment.sequence] = tokens, length
        if length == len(tokens):
            self.drop(segment.sequence)
        return length, length == len(tokens)
