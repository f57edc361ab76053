"""What was measured of launches and libraries, as tables that ship with the package, one for a GPU.

    measured/<chip>.json    {"gpu": ..., "versions": ..., "date": ..., "protocol": ..., "margins": ...,
                             "columns": [...],
                             "models": [{"model": ..., "hidden": ..., ..., "rows": [[1, 16, ...], ...]}, ...]}

A row is an FFN of a public model over some tokens: microseconds of its launch, which is built for ``launched`` rows and
runs on those tokens, and of the fastest of PyTorch's ways, each back to back (``alone``), within ``x +
ffn(rms_norm(x))`` (``layer``), and in the same compiled by torch.compile (``compiled``), and what the planner predicts
of the launch. A launch that has the norm and the sum is a row of its own, which has no ``alone``.
``benchmarks/choose.py`` makes a table of a sweep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from interlace.core.devices import DEFAULT_GPU, DeviceSpec, known_chips
from interlace.deploy.library import library_us
from interlace.deploy.store import problem
from interlace.graph.graph import Graph
from interlace.kernels.base import power_of_two
from interlace.kernels.matmul import Activation
from interlace.kernels.matmul.tilings import matmuls, normalises, sums
from interlace.workloads.ffn import FFNShape, ffn

#: Where the tables are, by chip.
FOLDER = Path(__file__).parent / "measured"
_SCHEMA = 3
#: Where a launch and a library were timed.
WHERE = ("alone", "layer", "compiled")
_SHAPE = ("model", "hidden", "ffn", "activation", "gated", "norm")
_COLUMNS = (
    "tokens",
    "launched",
    "predicted_us",
    *(f"{who} {where}" for who in ("launch", "library") for where in WHERE),
)


@dataclass(frozen=True)
class Row:
    """One FFN over some tokens.

    Attributes:
        model: of which it is a part.
        hidden, ffn, activation, gated, norm: its shape.
        tokens: rows of x.
        launched: rows that the launch is built for.
        launch_us, library_us: microseconds by ``WHERE``.
        predicted_us: of the launch at its default setting, by the planner.
    """

    model: str
    hidden: int
    ffn: int
    activation: str
    gated: bool
    norm: float | None
    tokens: int
    launched: int
    launch_us: Mapping[str, float]
    library_us: Mapping[str, float]
    predicted_us: float

    def graph(self, rows: int) -> Graph:
        """Its FFN over so many rows, in the dtype that was measured."""
        return ffn(rows, self.shape)

    @cached_property
    def shape(self) -> FFNShape:
        """Of its FFN."""
        return FFNShape(self.hidden, self.ffn, Activation(self.activation), self.gated, self.norm)

    @cached_property
    def problem(self) -> Graph:
        """The FFN over its tokens."""
        return self.graph(self.tokens)

    @cached_property
    def place(self) -> tuple[float, ...]:
        """See ``place``."""
        return place(self.problem, self.launched)

    @property
    def launch_problem(self) -> list[dict[str, Any]]:
        """What the launch computes, see ``timed``."""
        return _launch_problem(self.shape, self.launched)

    @property
    def worse(self) -> str:
        """Where the launch does worst, one of ``WHERE``."""
        return min(self.launch_us, key=lambda where: self.library_us[where] / self.launch_us[where])

    @property
    def ratio(self) -> float:
        """The library's time over the launch's, there."""
        return self.library_us[self.worse] / self.launch_us[self.worse]


@dataclass(frozen=True)
class Table:
    """What was measured on one GPU.

    Attributes:
        device: the GPU.
        executor: name of the one that made the launches.
        versions, date, protocol: how.
        margins: by the power of two of at least the rows that launches are built for, the ratio of predicted times from
            which on one is taken where nothing was measured.
        rows: what.
    """

    device: DeviceSpec
    executor: str
    versions: Mapping[str, str]
    date: str
    protocol: str
    margins: Mapping[int, float]
    rows: tuple[Row, ...]

    @property
    def most_tokens(self) -> int:
        """Beyond which nothing was measured."""
        return max((row.tokens for row in self.rows), default=0)

    def margin(self, launched: int) -> float:
        """Of launches that are built for so many rows, or for the nearest power of two that is known."""
        upto = power_of_two(launched)
        return self.margins[min(self.margins, key=lambda rows: abs(np.log2(rows / upto)))]

    @property
    def origin(self) -> str:
        """Where and when."""
        return f"{self.device.name}, torch {self.versions['torch']}, {self.date}"

    def without(self, rows: Iterable[Row]) -> Table:
        """The table as if these had not been measured."""
        left_out = set(map(id, rows))
        return replace(self, rows=tuple(row for row in self.rows if id(row) not in left_out))

    @cached_property
    def residuals(self) -> tuple[Any, Any]:
        """Of each row its place, see ``place``, and the logarithm of its ratio over the predicted one."""
        places = np.array([row.place for row in self.rows])
        predicted = [library_us(row.problem, self.device) / row.predicted_us for row in self.rows]
        return places, np.log([row.ratio for row in self.rows]) - np.log(predicted)


@cache
def _launch_problem(shape: FFNShape, rows: int) -> list[dict[str, Any]]:
    return timed(ffn(rows, shape))


def timed(graph: Graph) -> list[dict[str, Any]]:
    """The ops of a graph as ``store.problem`` has them, without what a norm adds, on which no time depends."""
    return [
        {**op, "params": {name: value for name, value in op["params"].items() if name != "EPS"}}
        for op in problem(graph)
    ]


def place(graph: Graph, launched: int) -> tuple[float, ...]:
    """Where a graph stands among others, whose launch is built for so many rows.

    The logarithm of the bytes of its inputs, the binary one of the rows of the launch, the part of these that are
    there, and whether it has a gate, and a norm.
    """
    nbytes = sum(graph.tensor(name).nbytes for name in graph.inputs)
    products = matmuls(graph)
    gated = any(sums(op) == 2 for op in products)
    normed = len(products) < len(graph.ops) or any(map(normalises, products))
    return float(np.log(nbytes)), float(np.log2(launched)), rows_of(graph) / launched, float(gated), float(normed)


def rows_of(graph: Graph) -> int:
    """Rows of a graph's first output: tokens."""
    return int(graph.tensor(graph.outputs[0]).shape[0])


@cache
def table(device: DeviceSpec) -> Table:
    """What was measured on a device, else on the chip that it is likest."""
    known = {known_chips()[path.stem].name: path for path in FOLDER.glob("*.json")}
    names = {spec.name: spec for spec in known_chips().values()}
    nearest = device
    while nearest.name not in known and nearest.like in names:
        nearest = names[nearest.like]
    return read(known.get(nearest.name, known[DEFAULT_GPU.name]))


def read(path: Path) -> Table:
    """The table of a file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["schema_version"] != _SCHEMA:
        raise ValueError(f"{path.name} has schema {data['schema_version']}, this version reads {_SCHEMA}")
    rows = tuple(
        _row(model, dict(zip(_COLUMNS, row, strict=True))) for model in data["models"] for row in model["rows"]
    )
    chip, margins = known_chips()[path.stem], {int(launched): least for launched, least in data["margins"].items()}
    return Table(chip, data["executor"], data["versions"], data["date"], data["protocol"], margins, rows)


def _row(model: Mapping[str, Any], row: Mapping[str, Any]) -> Row:
    """From a model of a file, and a row of that by columns."""
    launch, library = (
        {where: us for where in WHERE if (us := row[f"{who} {where}"]) is not None} for who in ("launch", "library")
    )
    shape = {name: model[name] for name in _SHAPE}
    return Row(**shape, **{name: row[name] for name in _COLUMNS[:3]}, launch_us=launch, library_us=library)


def text(found: Table) -> str:
    """A table as its file has it, a row on a line."""
    head = {
        "schema_version": _SCHEMA,
        "gpu": found.device.name,
        "executor": found.executor,
        "versions": dict(found.versions),
        "date": found.date,
        "protocol": found.protocol,
        "margins": {str(launched): least for launched, least in found.margins.items()},
        "columns": _COLUMNS,
    }
    models: dict[str, list[str]] = {}
    for row in found.rows:
        shape = json.dumps({name: getattr(row, name) for name in _SHAPE})[:-1]
        us = [times.get(where) for times in (row.launch_us, row.library_us) for where in WHERE]
        told = [row.tokens, row.launched, row.predicted_us, *us]
        models.setdefault(shape, []).append("   " + json.dumps(told))
    each = ",\n".join(f'  {shape}, "rows": [\n' + ",\n".join(rows) + "\n  ]}" for shape, rows in models.items())
    return json.dumps(head, indent=1)[:-2] + f',\n "models": [\n{each}\n ]\n}}\n'
