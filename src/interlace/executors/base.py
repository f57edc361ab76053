"""The interface of all executors: what each declares about itself, and the checks that all share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import chain, zip_longest
from typing import Any, ClassVar, TypeVar, cast

from interlace.core.arguments import format_value
from interlace.core.devices import DeviceSpec
from interlace.core.errors import ConcurrentRunError, CoverageError, GraphError, InterlaceError, PlanError, ShapeError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel, make_no_body_error
from interlace.kernels.bodies import BodyKind
from interlace.kernels.tuning import Tuning
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.retile import retile
from interlace.policies.interleavings import Interleaving, OpAfterOp
from interlace.policies.schedule import Schedule
from interlace.policies.sync import ConsumerSync
from interlace.policies.tiling import OpTiling, Tilings, merge_tilings
from interlace.sim.modes import Mode

RunMethod = TypeVar("RunMethod", bound=Callable[..., Any])


class Executor(ABC):
    """A way to run verified plans. The class declares what the executor can do, before there is a plan.

    Attributes:
        name: name on the command line and in JSON.
        title: name in tables.
        description: description in a few words.
        enforced_orderings: orderings that the executor enforces; a proof that rests on any other is refused.
        dispatches: dispatches that the executor runs, the default first; a plan with another is refused.
        overlapping_dispatches: dispatches under which a run may start while the one before drains, where the GPU
            supports that.
        body_kinds: kinds of bodies that the executor runs, in order of preference for ops with several.
        is_interpretable: True if the executor also runs on a CPU, in NumPy or under the Triton interpreter.
        has_trace_times: True if its times are meaningful in a trace.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    enforced_orderings: ClassVar[frozenset[Ordering]] = frozenset()
    dispatches: ClassVar[tuple[Dispatch, ...]] = (Dispatch.TICKET, Dispatch.STATIC)
    overlapping_dispatches: ClassVar[frozenset[Dispatch]] = frozenset({Dispatch.TICKET})
    body_kinds: ClassVar[tuple[BodyKind, ...]]
    is_interpretable: ClassVar[bool] = False
    has_trace_times: ClassVar[bool] = False

    @classmethod
    def find_body_kind(cls, op: Op) -> BodyKind | None:
        """Return the kind of body that the executor runs for an op, or None if the op has no such body."""
        bodies = get_kernel(op).bodies
        return next((kind for kind in cls.body_kinds if kind in bodies), None)

    @classmethod
    def select_dispatch(cls, graph: Graph, device: DeviceSpec, chosen: Schedule | None = None) -> Dispatch:
        """Return the default dispatch for a graph in its tiles on a device; ``chosen`` is the schedule so far."""
        return cls.dispatches[0]

    @classmethod
    def select_interleaving(cls, graph: Graph, device: DeviceSpec) -> Interleaving:
        """Return the default interleaving of the ops of a graph on a device."""
        return OpAfterOp()

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if no tiling lets the executor run a graph on a device.

        Raises:
            GraphError: an op has no body that the executor runs, or a dtype or an extent that it does not accept.
            PlanError: ops that the executor cannot run together.
            NoDeviceError: the executor does not run on such a device.
        """
        for op in graph.ops:
            if cls.find_body_kind(op) is None:
                raise make_no_body_error(op, *cls.body_kinds)

    @classmethod
    def fallback_reason(cls, graph: Graph, device: DeviceSpec) -> str | None:
        """Return why the executor cannot run a graph on a device in any tiling, or None if it can."""
        try:
            cls.check(graph, device)
        except InterlaceError as error:
            return str(error)
        return None

    @classmethod
    def check_tiles(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if a graph's ops, in their present tiles, cannot be launched by this executor on a device.

        Raises:
            GraphError, PlanError: tiles that exceed the registers or the shared memory, or that do not fit together.
        """
        for op in graph.ops:
            kind = cls.find_body_kind(op)
            if kind is not None and kind in get_kernel(op).tunings:
                get_kernel(op).tunings[kind].check(graph, op, device)

    @classmethod
    def make_schedule(cls, graph: Graph, device: DeviceSpec, tilings: Tilings) -> Schedule:
        """Return the schedule with these tilings, the finest policy, and this executor's interleaving and dispatch.

        Raises:
            GraphError, PlanError: the tiles cannot be launched on the device; see ``check_tiles`` and
                ``planner.retile``.
        """
        return cls._tile_and_schedule(graph, device, tilings)[0]

    @classmethod
    def _tile_and_schedule(cls, graph: Graph, device: DeviceSpec, tilings: Tilings) -> tuple[Schedule, Graph]:
        """Return the schedule of ``make_schedule``, and the graph in its tiles."""
        tiles = {name: dict(op.params) for name, op in tilings.items()}
        tiled = retile(graph, tiles)
        cls.check_tiles(tiled, device)
        ops = {op.name: (op, tilings.get(op.name, OpTiling())) for op in tiled.ops}
        orders = {name: own.order for name, (_, own) in ops.items()}
        splits = {
            name: own.make_split(op.tiles, op.reduction.chunks if op.reduction else 1, device.sms)
            for name, (op, own) in ops.items()
        }
        one = set(orders.values())
        order = one.pop() if len(one) == 1 else orders
        schedule = Schedule(
            device.sms,
            policy=ConsumerSync(),
            order=order,
            split=splits,
            interleaving=cls.select_interleaving(tiled, device),
            tiles=tiles,
        )
        return replace(schedule, dispatch=cls.select_dispatch(tiled, device, schedule)), tiled

    @classmethod
    def iter_schedules(cls, graph: Graph, device: DeviceSpec) -> Iterator[Schedule]:
        """Yield distinct schedules that can be launched: first the rule's default, then all that a search may try.

        Ops whose kernels have no rule for their bodies keep their tiles.
        """
        rules = cls._select_tunings(graph)
        default = merge_tilings(rule.select_default(graph, device) for rule in rules)
        more = _combine_tilings([rule.iter_candidates(graph, device) for rule in rules], default)
        for schedule, _ in cls._iter_launchable(graph, _yield_distinct(chain([default], more)), device):
            yield schedule

    @classmethod
    def select_default(cls, graph: Graph, device: DeviceSpec) -> Schedule:
        """Return the schedule that is used without a search: the first of ``iter_schedules``.

        Raises:
            GraphError, PlanError: no tiling that the rules know can be launched; the error says why the first cannot.
        """
        for schedule in cls.iter_schedules(graph, device):
            return schedule
        cls.make_schedule(
            graph, device, merge_tilings(rule.select_default(graph, device) for rule in cls._select_tunings(graph))
        )
        raise AssertionError("a tiling that fits is among the schedules")

    @classmethod
    def iter_tilings(cls, graph: Graph, device: DeviceSpec) -> tuple[Graph, ...]:
        """Return the graph in each tiling that can be launched, the rule's default first; a planner chooses from these.

        Of tilings that differ only in how a tile is computed, the first is returned.
        """
        unlike: dict[object, Graph] = {}
        for _, tiled in cls._iter_likely(graph, device):
            unlike.setdefault(tuple((op.grid, op.reads, op.writes, op.reduction) for op in tiled.ops), tiled)
        return tuple(unlike.values())

    @classmethod
    def iter_likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[Schedule]:
        """Yield a few distinct schedules that can be launched: the rule's default, then those that often do well."""
        for schedule, _ in cls._iter_likely(graph, device):
            yield schedule

    @classmethod
    def _iter_likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[tuple[Schedule, Graph]]:
        rules = cls._select_tunings(graph)
        default = merge_tilings(rule.select_default(graph, device) for rule in rules)
        more = _combine_tilings([rule.iter_likely(graph, device) for rule in rules], default)
        return cls._iter_launchable(graph, _yield_distinct(chain([default], more)), device)

    @classmethod
    def _select_tunings(cls, graph: Graph) -> list[Tuning]:
        """Return the rules of the graph's kernels for the bodies that this executor runs."""
        found: dict[str, Tuning] = {}
        for op in graph.ops:
            kind = cls.find_body_kind(op)
            if kind is not None and kind in get_kernel(op).tunings:
                found[op.kernel] = get_kernel(op).tunings[kind]
        return [*found.values()]

    @classmethod
    def _iter_launchable(
        cls, graph: Graph, candidates: Iterable[Tilings], device: DeviceSpec
    ) -> Iterator[tuple[Schedule, Graph]]:
        for tilings in candidates:
            try:
                yield cls._tile_and_schedule(graph, device, tilings)
            except (GraphError, PlanError):
                continue

    @classmethod
    @abstractmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model by which the simulated machine runs any plan of this graph on this executor."""

    @classmethod
    def prove(cls, plan: Plan | Proof) -> Proof:
        """Return the proof of a plan if this executor runs such plans; a plan without its proof is verified here.

        Raises:
            PlanError: the plan is not safe, is not a plan, or has a dispatch that this executor does not run.
            CoverageError: only an ordering that this executor does not enforce covers a dependency.
        """
        proof = plan if isinstance(plan, Proof) else verify(plan)
        for ordering, edge in proof.rests_on:
            if ordering not in cls.enforced_orderings and Ordering.LAUNCH not in cls.enforced_orderings:
                raise CoverageError(f"{edge}, but {_BROKEN[ordering].format(executor=cls.name, op=edge.op)}")
        if proof.plan.dispatch not in cls.dispatches:
            names = " or ".join(dispatch.value for dispatch in cls.dispatches)
            raise PlanError(f"the {cls.name} executor runs plans with {names} dispatch; plan with {cls.dispatches[0]}")
        return proof


def _combine_tilings(rules: Sequence[Iterator[Tilings]], default: Tilings) -> Iterator[dict[str, OpTiling]]:
    """Combine tilings per kernel into tilings of all ops; a kernel without further candidates uses its default."""
    for each in zip_longest(*rules):
        yield {**default, **merge_tilings(tilings for tilings in each if tilings is not None)}


def _yield_distinct(candidates: Iterable[Tilings]) -> Iterator[Tilings]:
    """Yield distinct candidates lazily: a graph with many ops has more of them than any search tries."""
    seen: set[tuple[tuple[str, OpTiling], ...]] = set()
    for tilings in candidates:
        key = tuple(tilings.items())
        if key not in seen:
            seen.add(key)
            yield tilings


_BROKEN = {
    Ordering.WORKER: "only the order of one worker enforces that, and the {executor} executor keeps no such order; "
    "plan op {op!r} with a policy that posts, such as TileSync(), or use the serial or the persistent executor",
    Ordering.WAIT: "only a wait enforces that, and the {executor} executor does not wait; use another",
}


def check_named_tensors(tensors: object) -> dict[str, Any]:
    """Return a new dict of a run's tensors; raise GraphError unless they are passed by name."""
    try:
        return dict(tensors)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise GraphError(
            f"tensors come by name, as {{'x': x, ...}}, not as {format_value(tensors)}; pass a dict"
        ) from None


def reject_concurrent_calls(run: RunMethod) -> RunMethod:
    """Refuse a call of a method while another thread is in the same method of the same object.

    The method then raises ConcurrentRunError.
    """

    @wraps(run)
    def run_exclusively(executor: Any, *arguments: Any, **named: Any) -> Any:
        owners = vars(executor).setdefault("_owners", deque([None]))  # unlike a lock it can be pickled and copied
        try:
            owners.pop()
        except IndexError:
            raise ConcurrentRunError(
                f"another thread runs this {type(executor).__name__}; make an executor for each thread"
            ) from None
        try:
            return run(executor, *arguments, **named)
        finally:
            owners.append(None)

    return cast(RunMethod, run_exclusively)


def check_arguments(graph: Graph, shapes: Mapping[str, tuple[int, ...]], short_inputs: Sequence[str] = ()) -> None:
    """Raise unless all inputs are passed and all shapes match; tensors in ``short_inputs`` may have fewer rows, but not
    none.

    Raises:
        GraphError: an input is missing or a name is unknown.
        ShapeError: a shape differs from the graph's.
    """
    missing = [name for name in graph.inputs if name not in shapes]
    if missing:
        raise GraphError(f"graph {graph.name!r} needs inputs {missing}; pass them by name")
    for name, shape in shapes.items():
        expected = graph.tensor(name).shape
        may_be_short = name in short_inputs and len(shape) == len(expected) and 0 < shape[0] <= expected[0]
        if tuple(shape) != expected and not (may_be_short and tuple(shape[1:]) == expected[1:]):
            fewer = " or fewer rows" if name in short_inputs else ""
            raise ShapeError(
                f"tensor {name!r} has shape {tuple(shape)}; graph {graph.name!r} was built for {expected}{fewer}"
            )
