"""Errors of loop kernels: in their source, in the interpreter, and in the proof of their rewritten form.

``errors`` also exports all of them, and shows the tree.
"""

from __future__ import annotations

from interlace.core.base_error import InterlaceError


class PipelineError(InterlaceError):
    """A loop kernel breaks a rule of the IR."""


class BoxError(PipelineError):
    """TMA does not support this box, or this tensor."""


class DepthError(PipelineError):
    """The stages or the prefetch of a circular buffer are invalid."""


class CarriedError(PipelineError):
    """An iteration depends on an earlier one through data that are loaded ahead."""


class ScopeError(PipelineError):
    """A circular buffer is loaded or used outside its loop."""


class TritonSourceError(PipelineError):
    """A Triton function has a construct that loops do not express; the message names its line."""


class SharedMemoryError(PipelineError):
    """Tiles and barriers need more shared memory than one block may use."""


class BarrierError(PipelineError):
    """The interpreter met a wait that cannot complete, or a barrier that does not exist."""


class HazardError(PipelineError):
    """An interleaving of loader, consumers and copies fails; the message contains it."""


class OverwriteHazard(HazardError):
    """A stage is overwritten before all of its readers released it."""


class EarlyReadHazard(HazardError):
    """A stage is read before the data of its step has arrived."""


class StuckHazard(HazardError):
    """A wait can no longer complete."""


class CountHazard(HazardError):
    """Bytes or arrivals of a phase differ from the expected number, or something is pending at exit."""


class SharedBarrierHazard(HazardError):
    """Two tensors complete on one barrier."""


class LifetimeHazard(HazardError):
    """A barrier is used before its initialisation or after its end, or never invalidated."""


class ProxyHazard(HazardError):
    """Writes of threads are not fenced from later bulk copies, or a barrier's initialisation from copies on it."""


class StepHazard(HazardError):
    """A rewritten kernel omits, repeats or reorders a step of its loops, or runs it on the data of another step."""


class UnknownHazard(HazardError):
    """A rewritten kernel names a slot, a barrier, a tile or a variable that does not exist at that point."""
