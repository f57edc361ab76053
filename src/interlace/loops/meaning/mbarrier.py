"""An mbarrier as a value: the effect of its operations on phase, pending arrivals and pending bytes.

The semantics are those of the PTX ISA (section mbarrier). A phase completes when no arrival and no byte is pending;
then the next begins with the full count of arrivals. A wait for a parity passes if the phase before the current one
has that parity.

Worked example, count 1:            phase  pending  bytes
    init                            0      1        0      wait parity 1 passes, wait parity 0 blocks
    arrive, expect 128 bytes        0      0        128
    a copy completes 128 bytes      1      1        0      wait parity 0 passes, wait parity 1 blocks
"""

from __future__ import annotations

from typing import NamedTuple


class MBarrier(NamedTuple):
    """One barrier; every operation returns its new state.

    Attributes:
        needed: arrivals that complete a phase.
        phase: number of the current phase, from 0.
        pending: arrivals still missing in the current phase; negative after too many.
        bytes: bytes expected and not yet copied; negative if copies came first.
    """

    needed: int
    phase: int
    pending: int
    bytes: int

    @staticmethod
    def initialise(count: int) -> MBarrier:
        """Return the state after initialisation."""
        return MBarrier(count, 0, count, 0)

    def arrive(self, arrivals: int, expect_bytes: int = 0) -> MBarrier:
        """Add ``expect_bytes`` to the pending bytes, then count ``arrivals``."""
        return self._advance(self.pending - arrivals, self.bytes + expect_bytes)

    def complete(self, copied_bytes: int) -> MBarrier:
        """Count the bytes that a bulk copy has written."""
        return self._advance(self.pending, self.bytes - copied_bytes)

    def can_pass(self, parity: int) -> bool:
        """Return True if a wait for ``parity`` passes now."""
        return self.phase % 2 != parity

    @property
    def is_idle(self) -> bool:
        """True if no event of the current phase has happened yet."""
        return self.pending == self.needed and self.bytes == 0

    def _advance(self, pending: int, left_bytes: int) -> MBarrier:
        if pending == 0 and left_bytes == 0:
            return MBarrier(self.needed, self.phase + 1, self.needed, 0)
        return MBarrier(self.needed, self.phase, pending, left_bytes)
