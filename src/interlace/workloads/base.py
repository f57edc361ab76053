"""A workload: a problem that people run, in one class.

Its fields are the problem, and its options on the command line. One file holds a workload, and one line of
``interlace.workloads`` registers it; every command then takes it:

    @dataclass(frozen=True)
    class Scale(Workload):
        "``y = 2 * x`` for x of n numbers."

        name: ClassVar[str] = "scale"
        presets: ClassVar[Presets] = {"small": {"n": 256}, "large": {"n": 1 << 24}}
        cpu_preset: ClassVar[str] = "small"
        gpu_preset: ClassVar[str] = "large"
        size: ClassVar[str] = "n"
        weights: ClassVar[tuple[str, ...]] = ("x",)

        n: Annotated[int, Option("Numbers.", least=1)]

        def build_graph(self, device, tile=None): ...
        def run_dense(self, xp, tensors): return {"y": 2 * tensors["x"]}
        flops = property(lambda self: float(self.n))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import format_value
from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import ArgumentError
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul.tile import TileShape

#: The largest extent of a tensor.
MAX_EXTENT = (1 << 31) - 1
#: Values of fields by the name of a preset.
Presets = Mapping[str, Mapping[str, Any]]
Inputs = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Option:
    """What the command line says of a field and takes for it.

    Attributes:
        help: one sentence.
        least: smallest number.
        most: largest number; fewer where each one more is an op more, since a graph is made op by op.
        metavar: what stands for the value.
        names: values by name; of a field that is neither a number, a bool, a text nor a path.
        group: under which heading.
    """

    help: str
    least: int | None = None
    most: int = MAX_EXTENT
    metavar: str | None = None
    names: Mapping[str, Any] | None = None
    group: str = "Shape"


@dataclass(frozen=True)
class Target:
    """A speedup over the fastest library that the project wants of some sizes.

    Attributes:
        ratio: the library's time over ours, at least.
        sizes: which.
        mean: of their geometric mean rather than of each.
    """

    ratio: float
    sizes: tuple[int, ...]
    mean: bool = False


@dataclass(frozen=True)
class RecordedSizes:
    """The sizes of a preset that the project keeps measurements of, and what it wants of them."""

    sizes: tuple[int, ...]
    targets: tuple[Target, ...] = ()

    def find_target(self, size: int) -> float | None:
        """The speedup that is wanted of one size alone."""
        return next((t.ratio for t in self.targets if size in t.sizes and not t.mean), None)


_FLOATING = {d.name: d for d in DTYPES if d.is_floating_point}
#: The field of a workload whose tensors all have one dtype.
DTypeField = Annotated[DType, Option("Of all tensors", metavar="DTYPE", names=_FLOATING)]


@dataclass(frozen=True)
class Workload(ABC):
    """A problem. Every field is annotated with an ``Option``.

    Attributes:
        name: on the command line and in records.
        presets: known problems by name; fields that one leaves out have the class's default.
        cpu_preset, gpu_preset: the preset that is meant where none is named.
        size: the field that varies where several sizes are measured.
        sizes: which of them, unless told.
        record: of which presets, in which sizes, the project keeps measurements, with its targets; the preset of a
            GPU in ``sizes`` if it is empty.
        weights: inputs that each layer of a model has its own of: measurements rotate over sets of them that the L2
            does not hold.
        blocks: workers per SM that suit it.
        layer_ports: (input, output) that a layer of a model passes on; see ``apply_layer``.
    """

    name: ClassVar[str]
    presets: ClassVar[Presets]
    cpu_preset: ClassVar[str]
    gpu_preset: ClassVar[str]
    size: ClassVar[str] = "m"
    sizes: ClassVar[tuple[int, ...]] = (16, 256)
    record: ClassVar[Mapping[str, RecordedSizes]] = {}
    weights: ClassVar[tuple[str, ...]]
    blocks: ClassVar[int] = 1
    layer_ports: ClassVar[tuple[str, str] | None] = None

    @abstractmethod
    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        """The problem in tiles of every op as given, else as they suit the device.

        Raises:
            GraphError: no such problem, or no such tiles.
        """

    @abstractmethod
    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs without any tiling, as a user of ``xp`` writes it: NumPy or torch.

        It is what results are compared with, in float64, and in torch also what they are timed against, so it uses
        torch's own functions there.
        """

    def list_alternatives(self, torch: Any) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Further ways to write ``run_dense`` in torch, by name: what is timed against is the fastest of all."""
        return {}

    def run_fused(self, torch: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by PyTorch's matmuls with kernels of the package between them, else by ``run_dense``."""
        return self.run_dense(torch, tensors)

    @property
    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations of one run, without those on rows that only fill a tile."""

    @property
    def read_share(self) -> float:
        """How much of its weights a run reads, at most 1: what lengths or routes leave out does not count."""
        return 1.0

    @property
    def title(self) -> str:
        """The problem for people."""
        return ", ".join([self.name, *self.describe_fields()])

    @property
    def size_text(self) -> str:
        """Its size in words, ``m 16``."""
        return f"{self.size} {getattr(self, self.size)}"

    def apply_layer(self, torch: Any, x: Any, run: Callable[[Any], Any]) -> Any:
        """Return a model layer's output for x; ``run`` is this problem from its layer input to its output."""
        return run(x)

    @property
    def layer_workload(self) -> Workload | None:
        """That layer as a problem of its own, whose further inputs are gains, 1 there; None if it is none."""
        return None

    def make_inputs(self, seed: int) -> Inputs:
        """Every input, rounded to its dtype and held in float32; see ``sample_inputs``."""
        return sample_inputs(self.build_graph(CPU), seed)

    def make_host_inputs(self, seed: int) -> Inputs:
        """The inputs that a measurement takes from here; the others it draws on its device from ``get_deviation``.

        All of them, unless drawing those that are large takes long on a CPU.
        """
        return self.make_inputs(seed)

    def get_deviation(self, tensor: Tensor) -> float:
        """The standard deviation of an input that is drawn from a normal distribution around 0."""
        return compute_deviation(tensor)

    @classmethod
    def summarise(cls) -> str:
        """What it is, in a line."""
        return (cls.__doc__ or cls.name).strip().splitlines()[0].rstrip(".")

    def to_data(self) -> dict[str, Any]:
        """The problem as JSON."""
        return {"name": self.name} | {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}

    def describe_fields(self, *excluded: str) -> list[str]:
        """The fields in words, without those named and those that are not set."""
        words = []
        for name, value in self.to_data().items():
            if name != "name" and name not in excluded and value is not None and value is not False:
                words.append(name if value is True else f"{name} {value}")
        return words

    @classmethod
    def of(cls, field_values: Mapping[str, Any], gpu: bool, preset: str | None = None) -> Self:
        """The problem whose fields are as given, else as the preset has them, else by default.

        Args:
            field_values: values by field.
            gpu: whether it is for a GPU, which decides the preset that is meant where none is named.
            preset: its name.

        Raises:
            ArgumentError: no such preset or field, a field without a value, or fields that do not go together.
        """
        name = preset or (cls.gpu_preset if gpu else cls.cpu_preset)
        if name not in cls.presets:
            raise ArgumentError(f"workload {cls.name!r} has no preset {name!r}; use one of {', '.join(cls.presets)}")
        known = {f.name: f for f in fields(cls)}
        unknown = [field for field in field_values if field not in known]
        if unknown:
            raise ArgumentError(f"workload {cls.name!r} has no {', '.join(unknown)}; it has {', '.join(known)}")
        values = {**cls.presets[name], **field_values}
        missing = [f.name for f in known.values() if f.default is MISSING and f.name not in values]
        if missing:
            raise ArgumentError(f"preset {name!r} of workload {cls.name!r} has no {', '.join(missing)}; give it")
        for field, (_, _, option) in list_options(cls).items():
            if isinstance(values.get(field), int) and values[field] > option.most:
                size = format_value(values[field])
                raise ArgumentError(f"workload {cls.name!r} has {field} {size}; use at most {option.most:,}")
        return cls(**values)


def list_options(workload: type[Workload]) -> dict[str, tuple[Field[Any], type, Option]]:
    """For each field by name: the field, its type without ``None``, and its option.

    Raises:
        ArgumentError: a field without an option.
    """
    hints = get_type_hints(workload, include_extras=True)
    found = {}
    for field in fields(workload):
        base, *metadata = get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [object]
        option = next((m for m in metadata if isinstance(m, Option)), None)
        if option is None:
            raise ArgumentError(f"workload {workload.name!r}: field {field.name!r} has no Option; annotate it with one")
        kind = next((part for part in get_args(base) if part is not type(None)), base)
        found[field.name] = field, kind, option
    return found


def compute_deviation(tensor: Tensor) -> float:
    """1 of vectors and of x; of other matrices, which are weights, fan-in^-0.5, so that values keep their size."""
    return 1.0 if tensor.name == "x" or len(tensor.shape) == 1 else float(tensor.shape[-1] ** -0.5)


def sample_inputs(graph: Graph, seed: int) -> Inputs:
    """Random inputs of a graph from normal distributions, see ``compute_deviation``, rounded and held in float32."""
    random = np.random.default_rng(seed)
    drawn = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        values = random.standard_normal(tensor.shape, np.float32)
        values *= np.float32(compute_deviation(tensor))
        drawn[name] = round_to(values, tensor.dtype)
    return drawn


def _to_json(value: Any) -> Any:
    """A field's value as JSON."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
