"""Run options of device executors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from numbers import Real

from interlace.core.arguments import format_value, safe_repr
from interlace.core.errors import DeviceError
from interlace.kernels.bodies import NO_CLUSTER, Cluster

_TIMEOUT_S = (1e-9, 9e9)  # a positive number of nanoseconds on a signed 64-bit clock
_JITTER_S = (0.0, 2.0)  # a delay is a random number of 31 bits, in nanoseconds


class Termination(Enum):
    """How workers detect, under spawn dispatch, that no item is outstanding."""

    COUNT = "count"
    """Workers that have nothing to do poll a count of outstanding items."""
    DONE_ITEMS = "done items"
    """The worker that counts the last item off puts one end item for each worker into the queue."""
    VOTES = "votes"
    """Each worker that has nothing to do votes and reads all votes; all workers must be resident."""


@dataclass(frozen=True)
class RunOptions:
    """Run options of a device executor.

    Attributes:
        device: torch device, such as "cuda:1"; "cpu" runs kernels under the Triton interpreter, "meta" only compiles
            them.
        timeout_s: watchdog timeout of every wait in seconds, from 1e-9 to 9e9. An item of the megakernel may take twice
            that plus one second in all.
        trace: True to record the times of every item.
        jitter_s: upper bound in seconds of random delays injected around waits and posts, for tests; at most 2.
        dependent_launch: True to let a run's launches start while the previous launch drains (programmatic dependent
            launch), so that prefetches overlap with it. For ``pdl`` and ticket dispatch.
        short_inputs: inputs that may have fewer rows than the graph declares, but at least one; results computed from
            missing rows are meaningless. No op may write such an input, and the executor's loads must skip missing
            rows; both are checked.
        termination: how workers detect that no item is left, under spawn dispatch.
        queue_capacity: most items that the queue of a launch may hold, not counting those that are ready from the
            start. An executor refuses a plan that may need more. None: as many as the plan needs.
        cluster: blocks of the megakernel that load for each other, so that fewer bytes pass through the L2; the plan
            must place their tiles next to each other.
        ll_tensors: tensors between ops of the megakernel to hand off by the LL protocol (``megakernel/ll_edges``); the
            contents of the tensors themselves are then meaningless. None selects tensors of ops with tiles that all run
            at once, or of ops that take few trips for LL words.

    Raises:
        DeviceError: an option has another type or is out of range.
    """

    device: str = "cuda"
    timeout_s: float = 2.0
    trace: bool = False
    jitter_s: float = 0.0
    dependent_launch: bool = False
    short_inputs: tuple[str, ...] = ()
    termination: Termination = Termination.COUNT
    queue_capacity: int | None = None
    cluster: Cluster = NO_CLUSTER
    ll_tensors: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.device, str):
            told = safe_repr(self.device)
            raise DeviceError(f"RunOptions.device is {told}; name a torch device in a text, such as 'cuda:0'")
        _check_seconds("timeout_s", self.timeout_s, *_TIMEOUT_S)
        _check_seconds("jitter_s", self.jitter_s, *_JITTER_S)
        for name in ("trace", "dependent_launch"):
            if type(getattr(self, name)) is not bool:
                raise DeviceError(f"RunOptions.{name} is {safe_repr(getattr(self, name))}; it is True or False")
        if not isinstance(self.termination, Termination):
            told = safe_repr(self.termination)
            raise DeviceError(f"RunOptions.termination is {told}; give one of {[*map(str, Termination)]}")
        if self.queue_capacity is not None and (type(self.queue_capacity) is not int or self.queue_capacity < 0):
            told = safe_repr(self.queue_capacity)
            raise DeviceError(f"RunOptions.queue_capacity is {told}; give a number of items, 0 or more, or None")
        if not isinstance(self.cluster, Cluster):
            told = safe_repr(self.cluster)
            raise DeviceError(f"RunOptions.cluster is {told}; give how blocks share, such as Cluster(2, 1)")
        if self.ll_tensors is not None and not (
            type(self.ll_tensors) is tuple and all(isinstance(name, str) for name in self.ll_tensors)
        ):
            raise DeviceError(
                f"RunOptions.ll_tensors is {safe_repr(self.ll_tensors)}; give names of tensors as a tuple, or None"
            )
        if type(self.short_inputs) is not tuple or not all(isinstance(name, str) for name in self.short_inputs):
            told = safe_repr(self.short_inputs)
            raise DeviceError(f"RunOptions.short_inputs is {told}; give names of inputs as a tuple, such as ('x',)")


def check_options(options: RunOptions | None) -> RunOptions:
    """Return the options that an executor was given, or the defaults; raise DeviceError for anything else."""
    if options is None:
        return RunOptions()
    if not isinstance(options, RunOptions):
        raise DeviceError(
            f"options is {format_value(options)}; pass an object, such as interlace.RunOptions(device='cuda:0')"
        )
    return options


def _check_seconds(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]
        raise DeviceError(
            f"RunOptions.{name} is {safe_repr(value)}; give seconds as a number from {least:g} to {most:g}"
        )
