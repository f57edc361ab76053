"""Workloads: each class is one problem that people run.

The fields of the class define the problem and become its options on the command line. Each workload has a file of its
own and one line in ``interlace.workloads`` that registers it; every command then accepts it:

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

#: Largest extent of a tensor.
MAX_EXTENT = (1 << 31) - 1
#: Field values by preset name.
Presets = Mapping[str, Mapping[str, Any]]
Inputs = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Option:
    """Help text and accepted values of a field on the command line.

    Attributes:
        help: one sentence.
        least: smallest accepted number.
        most: largest accepted number; lower for fields that add one op per unit, since a graph is built op by op.
        metavar: placeholder of the value in the help text.
        names: accepted values by name, for a field that is not a number, bool, text or path.
        group: heading that lists the option in the help text.
    """

    help: str
    least: int | None = None
    most: int = MAX_EXTENT
    metavar: str | None = None
    names: Mapping[str, Any] | None = None
    group: str = "Shape"


@dataclass(frozen=True)
class Target:
    """Speedup over the fastest library that the project aims for at some sizes.

    Attributes:
        ratio: minimum of the library's time divided by ours.
        sizes: sizes that the target covers.
        mean: True if the target applies to the geometric mean over the sizes instead of to each size.
    """

    ratio: float
    sizes: tuple[int, ...]
    mean: bool = False


@dataclass(frozen=True)
class RecordedSizes:
    """Sizes of a preset that the project records measurements of, and targets for them."""

    sizes: tuple[int, ...]
    targets: tuple[Target, ...] = ()

    def find_target(self, size: int) -> float | None:
        """Return the target speedup of one size alone, None if it has none."""
        return next((t.ratio for t in self.targets if size in t.sizes and not t.mean), None)


_FLOATING = {d.name: d for d in DTYPES if d.is_floating_point}
#: Dtype field of a workload whose tensors all have one dtype.
DTypeField = Annotated[DType, Option("Of all tensors", metavar="DTYPE", names=_FLOATING)]


@dataclass(frozen=True)
class Workload(ABC):
    """A problem. Every field is annotated with an ``Option``.

    Attributes:
        name: name on the command line and in records.
        presets: known problems by name; fields that a preset omits have the class's default.
        cpu_preset, gpu_preset: default presets on a CPU and on a GPU.
        size: field that varies in measurements of several sizes.
        sizes: default values of that field in such measurements.
        record: recorded sizes and targets by preset; if empty, the GPU preset at ``sizes``.
        weights: inputs of which each layer of a model has its own; measurements rotate over copies of them that exceed
            the L2 cache.
        blocks: number of workers per SM that suits the problem.
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
        """Build the graph of the problem, with this tile for every op or by default with tiles that suit the device.

        Raises:
            GraphError: the problem or the tiles are invalid.
        """

    @abstractmethod
    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute the outputs without tiling, as a user of ``xp`` (NumPy or torch) would write it.

        Results are compared with this function in float64. In torch it is also the baseline of timings, so it uses
        torch's own functions.
        """

    def list_alternatives(self, torch: Any) -> Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
        """Return other torch versions of ``run_dense`` by name; the fastest of all is the baseline of timings."""
        return {}

    def run_fused(self, torch: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute the outputs by PyTorch's matmuls with the package's kernels between; by default as ``run_dense``."""
        return self.run_dense(torch, tensors)

    @property
    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations of one run, without those on rows that only fill a tile."""

    @property
    def read_share(self) -> float:
        """Fraction of the weights that a run reads, at most 1; lengths or routing may leave some unread."""
        return 1.0

    @property
    def title(self) -> str:
        """Description of the problem for people."""
        return ", ".join([self.name, *self.describe_fields()])

    @property
    def size_text(self) -> str:
        """Size as text, such as ``m 16``."""
        return f"{self.size} {getattr(self, self.size)}"

    def apply_layer(self, torch: Any, x: Any, run: Callable[[Any], Any]) -> Any:
        """Return a model layer's output for x; ``run`` is this problem from its layer input to its output."""
        return run(x)

    @property
    def layer_workload(self) -> Workload | None:
        """Workload of that whole layer, whose additional inputs are gains, set to 1; None if there is none."""
        return None

    def make_inputs(self, seed: int) -> Inputs:
        """Draw every input, rounded to its dtype and stored as float32; see ``sample_inputs``."""
        return sample_inputs(self.build_graph(CPU), seed)

    def make_host_inputs(self, seed: int) -> Inputs:
        """Draw the inputs that a measurement takes from the host; it draws the others on its device by
        ``get_deviation``.

        By default these are all inputs; workloads whose large inputs are slow to draw on a CPU return fewer.
        """
        return self.make_inputs(seed)

    def get_deviation(self, tensor: Tensor) -> float:
        """Return the standard deviation of an input that is drawn from a normal distribution around 0."""
        return compute_deviation(tensor)

    @classmethod
    def summarise(cls) -> str:
        """Return a one-line description."""
        return (cls.__doc__ or cls.name).strip().splitlines()[0].rstrip(".")

    def to_data(self) -> dict[str, Any]:
        """Return the problem as JSON data."""
        return {"name": self.name} | {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}

    def describe_fields(self, *excluded: str) -> list[str]:
        """Return the fields as text, without the excluded and the unset ones."""
        words = []
        for name, value in self.to_data().items():
            if name != "name" and name not in excluded and value is not None and value is not False:
                words.append(name if value is True else f"{name} {value}")
        return words

    @classmethod
    def from_fields(cls, field_values: Mapping[str, Any], gpu: bool, preset: str | None = None) -> Self:
        """Build the problem from field values; the preset, then the defaults, fill in the rest.

        Args:
            field_values: values by field.
            gpu: True for a problem on a GPU, which selects the default preset.
            preset: name of the preset, None for the default one.

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
    """Return for each field by name: the field, its type without ``None``, and its option.

    Raises:
        ArgumentError: a field has no option.
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
    """Return 1 for vectors and for x; fan-in^-0.5 for other matrices, the weights, so that values keep their size."""
    return 1.0 if tensor.name == "x" or len(tensor.shape) == 1 else float(tensor.shape[-1] ** -0.5)


def sample_inputs(graph: Graph, seed: int, get_deviation: Callable[[Tensor], float] = compute_deviation) -> Inputs:
    """Draw all inputs from normal distributions of these deviations, rounded and stored as float32."""
    random = np.random.default_rng(seed)
    drawn = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        values = random.standard_normal(tensor.shape, np.float32)
        values *= np.float32(get_deviation(tensor))
        drawn[name] = round_to(values, tensor.dtype)
    return drawn


def _to_json(value: Any) -> Any:
    """Convert a field's value to JSON."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
