"""Measured times of launches and libraries: tables that ship with the package, one per GPU.

    measured/<chip>.json    {"gpu": ..., "versions": ..., "date": ..., "protocol": ..., "margins": ...,
                             "columns": [...],
                             "models": [{"model": ..., "hidden": ..., ..., "rows": [[1, 16, ...], ...]}, ...]}

A row is an FFN of a public model over some tokens. It has the microseconds of the launch, which is built for
``launched`` rows and runs on those tokens, and of the fastest PyTorch configuration. Both were timed back to back
(``alone``), within ``x + ffn(rms_norm(x))`` (``layer``), and within the same compiled by torch.compile (``compiled``).
The row also has the planner's prediction for the launch. A launch that includes the norm and the sum has a row of its
own without ``alone``. ``benchmarks/choose.py`` makes a table from a sweep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from interlace.core.devices import DEFAULT_GPU, DeviceSpec, load_known_chips
from interlace.deploy.library import predict_library_us
from interlace.deploy.store import describe_problem
from interlace.graph.graph import Graph
from interlace.kernels.base import next_power_of_2
from interlace.kernels.matmul import Activation
from interlace.kernels.matmul.tilings import count_weights, normalises, select_matmuls
from interlace.workloads.ffn import FFNShape, ffn

#: Folder of the tables, one file per chip.
FOLDER = Path(__file__).parent / "measured"
_SCHEMA = 3
#: Contexts in which launch and library were timed.
CONTEXTS = ("alone", "layer", "compiled")
_SHAPE = ("model", "hidden", "ffn", "activation", "gated", "norm")
_COLUMNS = (
    "tokens",
    "launched",
    "predicted_us",
    *(f"{who} {where}" for who in ("launch", "library") for where in CONTEXTS),
)


@dataclass(frozen=True)
class FFNTimes:
    """Times of one FFN over some tokens.

    Attributes:
        model: name of the model that the FFN is part of.
        hidden, ffn, activation, gated, norm: shape of the FFN.
        tokens: number of rows of x.
        launched: number of rows that the launch is built for.
        launch_us, library_us: microseconds of one run, by context (``CONTEXTS``).
        predicted_us: planner's prediction for the launch at its default setting, in microseconds.
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

    def build_graph(self, rows: int) -> Graph:
        """Return the FFN over this number of rows, in the dtype that was measured."""
        return ffn(rows, self.shape)

    @cached_property
    def shape(self) -> FFNShape:
        """Shape of the FFN."""
        return FFNShape(self.hidden, self.ffn, Activation(self.activation), self.gated, self.norm)

    @cached_property
    def problem(self) -> Graph:
        """FFN over the row's tokens."""
        return self.build_graph(self.tokens)

    @cached_property
    def features(self) -> tuple[float, ...]:
        """Features of the launch (``compute_features``)."""
        return compute_features(self.problem, self.launched)

    @property
    def launch_problem(self) -> list[dict[str, Any]]:
        """Problem that the launch computes (``describe_timed_problem``)."""
        return _describe_launch(self.shape, self.launched)

    @property
    def worst_context(self) -> str:
        """Context, one of ``CONTEXTS``, with the lowest speedup of the launch."""
        return min(self.launch_us, key=lambda where: self.library_us[where] / self.launch_us[where])

    @property
    def ratio(self) -> float:
        """Ratio of the library's time to the launch's in that context."""
        return self.library_us[self.worst_context] / self.launch_us[self.worst_context]


@dataclass(frozen=True)
class MeasurementTable:
    """Measurements on one GPU.

    Attributes:
        device: spec of the GPU.
        executor: name of the executor that made the launches.
        versions, date, protocol: software versions, date and protocol of the measurements.
        margins: minimum ratio of predicted times for which a launch is chosen where nothing was measured, by rows of
            the launch rounded up to a power of two.
        rows: measured FFNs.
    """

    device: DeviceSpec
    executor: str
    versions: Mapping[str, str]
    date: str
    protocol: str
    margins: Mapping[int, float]
    rows: tuple[FFNTimes, ...]

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens that was measured."""
        return max((row.tokens for row in self.rows), default=0)

    def find_margin(self, launched: int) -> float:
        """Return the margin for launches built for this many rows, or for the nearest power of two in the table."""
        upto = next_power_of_2(launched)
        return self.margins[min(self.margins, key=lambda rows: abs(np.log2(rows / upto)))]

    @property
    def origin(self) -> str:
        """Device, torch version and date of the measurements."""
        return f"{self.device.name}, torch {self.versions['torch']}, {self.date}"

    def exclude_rows(self, rows: Iterable[FFNTimes]) -> MeasurementTable:
        """Return the table as if these rows had not been measured."""
        left_out = set(map(id, rows))
        return replace(self, rows=tuple(row for row in self.rows if id(row) not in left_out))

    @cached_property
    def residuals(self) -> tuple[Any, Any]:
        """Features of each row (``compute_features``), and the log of its measured over its predicted ratio."""
        places = np.array([row.features for row in self.rows])
        predicted = [predict_library_us(row.problem, self.device) / row.predicted_us for row in self.rows]
        return places, np.log([row.ratio for row in self.rows]) - np.log(predicted)


@cache
def _describe_launch(shape: FFNShape, rows: int) -> list[dict[str, Any]]:
    return describe_timed_problem(ffn(rows, shape))


def describe_timed_problem(graph: Graph) -> list[dict[str, Any]]:
    """Return a graph's ops as ``store.describe_problem`` does, without epsilons of norms: they do not affect time."""
    return [
        {**op, "params": {name: value for name, value in op["params"].items() if name != "EPS"}}
        for op in describe_problem(graph)
    ]


def compute_features(graph: Graph, launched: int) -> tuple[float, ...]:
    """Return the features of a graph whose launch is built for this number of rows.

    They are the natural logarithm of the bytes of its inputs, the binary logarithm of the launch's rows, the share of
    these rows that the graph has, and two flags: whether it has a gate, and whether it has a norm.
    """
    nbytes = sum(graph.tensor(name).nbytes for name in graph.inputs)
    products = select_matmuls(graph)
    gated = any(count_weights(op) == 2 for op in products)
    normed = len(products) < len(graph.ops) or any(map(normalises, products))
    return float(np.log(nbytes)), float(np.log2(launched)), count_rows(graph) / launched, float(gated), float(normed)


def count_rows(graph: Graph) -> int:
    """Return the rows (tokens) of a graph's first output."""
    return int(graph.tensor(graph.outputs[0]).shape[0])


@cache
def load_table(device: DeviceSpec) -> MeasurementTable:
    """Return the table of a device, else of the first chip along ``DeviceSpec.like``, else of ``DEFAULT_GPU``."""
    known = {load_known_chips()[path.stem].name: path for path in FOLDER.glob("*.json")}
    names = {spec.name: spec for spec in load_known_chips().values()}
    nearest = device
    while nearest.name not in known and nearest.like in names:
        nearest = names[nearest.like]
    return read_table(known.get(nearest.name, known[DEFAULT_GPU.name]))


def read_table(path: Path) -> MeasurementTable:
    """Read a table from a file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["schema_version"] != _SCHEMA:
        raise ValueError(f"{path.name} has schema {data['schema_version']}, this version reads {_SCHEMA}")
    rows = tuple(
        _parse_row(model, dict(zip(_COLUMNS, row, strict=True))) for model in data["models"] for row in model["rows"]
    )
    chip, margins = load_known_chips()[path.stem], {int(launched): least for launched, least in data["margins"].items()}
    return MeasurementTable(chip, data["executor"], data["versions"], data["date"], data["protocol"], margins, rows)


def _parse_row(model: Mapping[str, Any], row: Mapping[str, Any]) -> FFNTimes:
    """Build a row from a model entry of a file and one of its rows by column."""
    launch, library = (
        {where: us for where in CONTEXTS if (us := row[f"{who} {where}"]) is not None} for who in ("launch", "library")
    )
    shape = {name: model[name] for name in _SHAPE}
    return FFNTimes(**shape, **{name: row[name] for name in _COLUMNS[:3]}, launch_us=launch, library_us=library)


def format_table(found: MeasurementTable) -> str:
    """Format a table as its file content, one row per line."""
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
        us = [times.get(where) for times in (row.launch_us, row.library_us) for where in CONTEXTS]
        told = [row.tokens, row.launched, row.predicted_us, *us]
        models.setdefault(shape, []).append("   " + json.dumps(told))
    each = ",\n".join(f'  {shape}, "rows": [\n' + ",\n".join(rows) + "\n  ]}" for shape, rows in models.items())
    return json.dumps(head, indent=1)[:-2] + f',\n "models": [\n{each}\n ]\n}}\n'
