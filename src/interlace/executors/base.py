"""The interface of all executors: what each declares about itself, and the checks that all share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from interlace.planner.build import Choices
from interlace.planner.settings import retile
from interlace.policies.setting import Setting
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
    def select_dispatch(cls, graph: Graph, device: DeviceSpec, chosen: Choices | None = None) -> Dispatch:
        """Return the default dispatch for a graph on a device; ``chosen`` are the choices that cut its tiles."""
        return cls.dispatches[0]

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
    def check_setting(cls, graph: Graph, setting: Setting, device: DeviceSpec) -> Graph:
        """Return the graph in the tiles of a setting, after checking that they can be launched on a device.

        Raises:
            GraphError, PlanError: the tiles cannot be launched; see ``check_tiles`` and
            ``planner.iter_settings.retiled``.
        """
        tiled = retile(graph, setting)
        cls.check_tiles(tiled, device)
        return tiled

    @classmethod
    def iter_settings(cls, graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
        """Yield distinct settings that can be launched: first the rule's default, then all that a search may try.

        Ops whose kernels have no rule for their bodies keep their tiles.
        """
        rules = cls._select_tunings(graph)
        default = Setting.merge(rule.select_default(graph, device) for rule in rules)
        more = _combine_settings([rule.iter_settings(graph, device) for rule in rules], default)
        for setting, _ in cls._iter_launchable(graph, _yield_distinct(chain([default], more)), device):
            yield setting

    @classmethod
    def select_default(cls, graph: Graph, device: DeviceSpec) -> Setting:
        """Return the setting that is used without a search: the first of ``iter_settings``.

        Raises:
            GraphError, PlanError: no setting that the rules know can be launched; the error says why the first cannot.
        """
        for setting in cls.iter_settings(graph, device):
            return setting
        cls.check_setting(
            graph, Setting.merge(rule.select_default(graph, device) for rule in cls._select_tunings(graph)), device
        )
        raise AssertionError("a setting that fits is among the settings")

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
    def iter_likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
        """Yield a few distinct settings that can be launched: the rule's default, then those that often do well."""
        for setting, _ in cls._iter_likely(graph, device):
            yield setting

    @classmethod
    def _iter_likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[tuple[Setting, Graph]]:
        rules = cls._select_tunings(graph)
        default = Setting.merge(rule.select_default(graph, device) for rule in rules)
        more = _combine_settings([rule.iter_likely(graph, device) for rule in rules], default)
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
        cls, graph: Graph, settings: Iterable[Setting], device: DeviceSpec
    ) -> Iterator[tuple[Setting, Graph]]:
        for setting in settings:
            try:
                yield setting, cls.check_setting(graph, setting, device)
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


def _combine_settings(rules: Sequence[Iterator[Setting]], default: Setting) -> Iterator[Setting]:
    """Combine settings per kernel into settings of all ops; a kernel without further settings uses its default."""
    for each in zip_longest(*rules):
        given = Setting.merge(setting for setting in each if setting is not None)
        yield Setting(tuple((dict(default.ops) | dict(given.ops)).items()))


def _yield_distinct(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield distinct settings lazily: a graph with many ops has more settings than any search tries."""
    seen: set[Setting] = set()
    for setting in settings:
        if setting not in seen:
            seen.add(setting)
            yield setting


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
