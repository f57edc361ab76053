"""What every executor says of itself, and what all of them check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain, zip_longest
from typing import Any, ClassVar, TypeVar, cast

from interlace.core.arguments import shown
from interlace.core.devices import DeviceSpec
from interlace.core.errors import ConcurrentRunError, CoverageError, GraphError, InterlaceError, PlanError, ShapeError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import kernel_of, no_body
from interlace.kernels.bodies import BodyKind
from interlace.kernels.tuning import Tuning
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.build import Choices
from interlace.planner.settings import retiled
from interlace.policies.setting import Setting
from interlace.sim.modes import Mode

Run = TypeVar("Run", bound=Callable[..., Any])


class Executor(ABC):
    """A way to run verified plans. What it can do is declared by the class, before there is a plan.

    Attributes:
        name: on the command line and in JSON.
        title: in tables.
        what: what it is, in a few words.
        keeps: what keeps items in order; a proof that rests on anything else is refused.
        dispatches: those that it runs, the one to plan with first; a plan with another is refused.
        overlapping: dispatches under which a run may start while the one before drains, where the GPU can do so.
        kinds: of the bodies that it runs, the one that it takes where an op has several first.
        interpreted: also runs on a CPU, in NumPy or under the Triton interpreter.
        traces: its times mean something in a trace.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    what: ClassVar[str]
    keeps: ClassVar[frozenset[Ordering]] = frozenset()
    dispatches: ClassVar[tuple[Dispatch, ...]] = (Dispatch.TICKET, Dispatch.STATIC)
    overlapping: ClassVar[frozenset[Dispatch]] = frozenset({Dispatch.TICKET})
    kinds: ClassVar[tuple[BodyKind, ...]]
    interpreted: ClassVar[bool] = False
    traces: ClassVar[bool] = False

    @classmethod
    def kind_of(cls, op: Op) -> BodyKind | None:
        """Which of an op's bodies it runs, None if it has none for this executor."""
        bodies = kernel_of(op).bodies
        return next((kind for kind in cls.kinds if kind in bodies), None)

    @classmethod
    def dispatch(cls, graph: Graph, device: DeviceSpec, chosen: Choices | None = None) -> Dispatch:
        """What to plan a graph with on a device, whose tiles these choices cut, unless told otherwise."""
        return cls.dispatches[0]

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if there is no tiling in which it can run a graph on a device.

        Raises:
            GraphError: an op has no body that it runs, or a dtype or an extent that it does not take.
            PlanError: ops that it cannot run together.
            NoDeviceError: it does not run on such a device.
        """
        for op in graph.ops:
            if cls.kind_of(op) is None:
                raise no_body(op, *cls.kinds)

    @classmethod
    def obstacle(cls, graph: Graph, device: DeviceSpec) -> str | None:
        """Why it cannot run a graph on a device, however it is tiled; None if it can."""
        try:
            cls.check(graph, device)
        except InterlaceError as error:
            return str(error)
        return None

    @classmethod
    def check_tiles(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if a graph's ops, tiled as they are, make no launch of this executor on a device.

        Raises:
            GraphError, PlanError: tiles that need more registers or shared memory than there is, or do not go together.
        """
        for op in graph.ops:
            kind = cls.kind_of(op)
            if kind is not None and kind in kernel_of(op).tunings:
                kernel_of(op).tunings[kind].check(graph, op, device)

    @classmethod
    def check_setting(cls, graph: Graph, setting: Setting, device: DeviceSpec) -> Graph:
        """The graph in the tiles of a setting, which make a launch on a device.

        Raises:
            GraphError, PlanError: they make none; see ``check_tiles`` and ``planner.settings.retiled``.
        """
        tiled = retiled(graph, setting)
        cls.check_tiles(tiled, device)
        return tiled

    @classmethod
    def settings(cls, graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
        """Settings that make a launch, each once: first the rule's own, then all that a search may try.

        Ops whose kernels have no rule for their bodies are left as they are tiled.
        """
        rules = cls._tunings(graph)
        default = Setting.merged(rule.default(graph, device) for rule in rules)
        more = _merged([rule.settings(graph, device) for rule in rules], default)
        for setting, _ in cls._launchable(graph, _each_once(chain([default], more)), device):
            yield setting

    @classmethod
    def default(cls, graph: Graph, device: DeviceSpec) -> Setting:
        """The setting that is taken without a search: the first of ``settings``.

        Raises:
            GraphError, PlanError: nothing that the rules know makes a launch; says why the first does not.
        """
        for setting in cls.settings(graph, device):
            return setting
        cls.check_setting(graph, Setting.merged(rule.default(graph, device) for rule in cls._tunings(graph)), device)
        raise AssertionError("a setting that fits is among the settings")

    @classmethod
    def tilings(cls, graph: Graph, device: DeviceSpec) -> tuple[Graph, ...]:
        """The graph in tiles that make a launch, the rule's own first: what a planner chooses from.

        Of those that differ in nothing but how a tile is computed the first is there.
        """
        unlike: dict[object, Graph] = {}
        for _, tiled in cls._likely(graph, device):
            unlike.setdefault(tuple((op.grid, op.reads, op.writes, op.reduction) for op in tiled.ops), tiled)
        return tuple(unlike.values())

    @classmethod
    def likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
        """Few settings that make a launch, each once: the rule's own first, then what often does well."""
        for setting, _ in cls._likely(graph, device):
            yield setting

    @classmethod
    def _likely(cls, graph: Graph, device: DeviceSpec) -> Iterator[tuple[Setting, Graph]]:
        rules = cls._tunings(graph)
        default = Setting.merged(rule.default(graph, device) for rule in rules)
        more = _merged([rule.likely(graph, device) for rule in rules], default)
        return cls._launchable(graph, _each_once(chain([default], more)), device)

    @classmethod
    def _tunings(cls, graph: Graph) -> list[Tuning]:
        """The rules of the graph's kernels for the bodies that this executor runs."""
        found: dict[str, Tuning] = {}
        for op in graph.ops:
            kind = cls.kind_of(op)
            if kind is not None and kind in kernel_of(op).tunings:
                found[op.kernel] = kernel_of(op).tunings[kind]
        return [*found.values()]

    @classmethod
    def _launchable(
        cls, graph: Graph, settings: Iterable[Setting], device: DeviceSpec
    ) -> Iterator[tuple[Setting, Graph]]:
        for setting in settings:
            try:
                yield setting, cls.check_setting(graph, setting, device)
            except (GraphError, PlanError):
                continue

    @classmethod
    @abstractmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """How the simulated machine models it on any plan of this graph."""

    @classmethod
    def prove(cls, plan: Plan | Proof) -> Proof:
        """The proof of a plan, made here unless it comes with it, if this executor runs such plans.

        Raises:
            PlanError: the plan is not safe, is no plan, or has a dispatch that this executor does not run.
            CoverageError: a dependency that only an ordering enforces which this executor does not keep.
        """
        proof = plan if isinstance(plan, Proof) else verify(plan)
        for ordering, edge in proof.rests_on:
            if ordering not in cls.keeps and Ordering.LAUNCH not in cls.keeps:
                raise CoverageError(f"{edge}, but {_BROKEN[ordering].format(executor=cls.name, op=edge.op)}")
        if proof.plan.dispatch not in cls.dispatches:
            names = " or ".join(dispatch.value for dispatch in cls.dispatches)
            raise PlanError(f"the {cls.name} executor runs plans with {names} dispatch; plan with {cls.dispatches[0]}")
        return proof


def _merged(rules: Sequence[Iterator[Setting]], default: Setting) -> Iterator[Setting]:
    """Settings of all kernels' ops, from those for each kernel; where one has no more, its ops take the default."""
    for each in zip_longest(*rules):
        given = Setting.merged(setting for setting in each if setting is not None)
        yield Setting(tuple((dict(default.ops) | dict(given.ops)).items()))


def _each_once(settings: Iterable[Setting]) -> Iterator[Setting]:
    """In turn and one by one: of a graph with many ops there are more than anybody looks at."""
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


def by_name(tensors: object) -> dict[str, Any]:
    """A new dict of the tensors of a run. Raises GraphError if they do not come by name."""
    try:
        return dict(tensors)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise GraphError(f"tensors come by name, as {{'x': x, ...}}, not as {shown(tensors)}; pass a dict") from None


def one_at_a_time(run: Run) -> Run:
    """Refuse a call of a method while another thread is in the same method of the same object.

    The method then raises ConcurrentRunError.
    """

    @wraps(run)
    def guarded(executor: Any, *arguments: Any, **named: Any) -> Any:
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

    return cast(Run, guarded)


def check_arguments(graph: Graph, shapes: Mapping[str, tuple[int, ...]], short: Sequence[str] = ()) -> None:
    """Raise unless every input is given and every given tensor has its shape, or fewer rows if it may be ``short``.

    Raises:
        GraphError: an input is missing or a name unknown.
        ShapeError: a shape differs from the graph's.
    """
    missing = [name for name in graph.inputs if name not in shapes]
    if missing:
        raise GraphError(f"graph {graph.name!r} needs inputs {missing}; pass them by name")
    for name, shape in shapes.items():
        expected = graph.tensor(name).shape
        may_be_short = name in short and len(shape) == len(expected) and 0 < shape[0] <= expected[0]
        if tuple(shape) != expected and not (may_be_short and tuple(shape[1:]) == expected[1:]):
            fewer = " or fewer rows" if name in short else ""
            raise ShapeError(
                f"tensor {name!r} has shape {tuple(shape)}; graph {graph.name!r} was built for {expected}{fewer}"
            )
