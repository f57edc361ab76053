"""Errors of kernels of loops: of their text, of the interpreter, and of the proof of what they are rewritten to.

``errors`` has all of them too, and the tree.
"""

from __future__ import annotations

from interlace.core.base_error import InterlaceError


class PipelineError(InterlaceError):
    """A kernel of loops breaks a rule of the IR."""


class BoxError(PipelineError):
    """TMA cannot take this box, or this tensor."""


class DepthError(PipelineError):
    """Stages or prefetch of a circular buffer mean nothing."""


class CarriedError(PipelineError):
    """An iteration depends on an earlier one through what is loaded ahead."""


class ScopeError(PipelineError):
    """A circular buffer is loaded or used where its loop does not enclose it."""


class SharedMemoryError(PipelineError):
    """Tiles and barriers need more shared memory than one block may use."""


class BarrierError(PipelineError):
    """The interpreter met a wait that cannot complete, or a barrier that does not exist."""


class HazardError(PipelineError):
    """An interleaving of loader, consumers and copies goes wrong; the message holds it."""


class OverwriteHazard(HazardError):
    """A stage is overwritten before all of its readers released it."""


class EarlyReadHazard(HazardError):
    """A stage is read before the data of its step has arrived."""


class StuckHazard(HazardError):
    """A wait that can no longer complete."""


class CountHazard(HazardError):
    """Bytes or arrivals of a phase differ from what it expects, or something is pending at exit."""


class SharedBarrierHazard(HazardError):
    """Two tensors complete on one barrier."""


class LifetimeHazard(HazardError):
    """A barrier is used before its initialisation or after its end, or never invalidated."""


class ProxyHazard(HazardError):
    """What threads wrote is not fenced from the bulk copies that follow, or an initialised barrier from theirs."""


class StepHazard(HazardError):
    """A rewritten kernel leaves out a step of its loops, does one twice or in another order, or on another's data."""


class UnknownHazard(HazardError):
    """A rewritten kernel names a slot, a barrier, a tile or a variable that does not exist there."""
