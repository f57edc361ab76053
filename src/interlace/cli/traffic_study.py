"""Study of ``interlace traffic``: a workload in one tiling, orders of its tiles, and a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from interlace.cli import names, table
from interlace.cli.console import BadInput, convert_to_bad_input
from interlace.cli.machine import target_gpu
from interlace.cli.options import DeviceOption, TileOption
from interlace.core.devices import DEFAULT_GPU, DeviceSpec, load_known_chips
from interlace.graph.access import ALL, Access
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import format_tiling
from interlace.plan.plan import Plan
from interlace.planner.bounds import TrafficBound
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.sim.modes import SERIAL
from interlace.workloads.base import Workload

if TYPE_CHECKING:
    from interlace.planner.intervals import ReadInterval
    from interlace.planner.predict import Traffic, TrafficCount

_MAX_TILES = 1 << 22
_MAX_PIECES = 1 << 25  # sim.traffic.LIMIT, above which chunks would be merged
_SUM_BYTES = 4


@dataclass(frozen=True)
class CacheOptions:
    """Options of the cache that a workload runs through; None for the default."""

    tile: TileOption = None
    cache: Annotated[
        DeviceSpec | None,
        typer.Option(
            "--cache",
            parser=names.parse_cache,
            metavar="SIZE",
            help="One LRU cache of this size (50MiB, 60MB, bytes) read at equal speed, or a chip "
            f"({', '.join(load_known_chips())}; that of --device by default): its L2 in sides, its SMs of slightly "
            "unequal speed.",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, max=1 << 16, help="Tiles that run at once, in lockstep; one per SM by default."
        ),
    ] = None
    target: DeviceOption = None

    @cached_property
    def gpu(self) -> DeviceSpec:
        """GPU that the tiles are for. Raises BadInput for a CPU."""
        return DEFAULT_GPU if self.target is None else target_gpu(self.target).spec

    @property
    def device(self) -> DeviceSpec:
        """Cache as a device with one SM per worker."""
        return replace(self.cache or self.gpu, sms=self.workers or self.gpu.sms)


@dataclass(frozen=True)
class Study:
    """Workload in tiles, and the cache that it runs through."""

    workload: Workload
    graph: Graph
    options: CacheOptions

    @staticmethod
    def from_workload(workload: Workload, options: CacheOptions) -> Study:
        """Return the workload in the tiles of the options, or by default in tiles that suit a GPU.

        Raises:
            BadInput: a tile fits no SM, the cache no tile, or the simulation not all tiles.
        """
        with convert_to_bad_input():
            study = Study(workload, workload.build_graph(options.gpu, options.tile), options)
        study.check()
        return study

    @property
    def device(self) -> DeviceSpec:
        """Cache as a device with one SM per worker."""
        return self.options.device

    @property
    def tiles(self) -> int:
        """Number of tiles of all ops."""
        return sum(op.tiles for op in self.graph.ops)

    @property
    def loads(self) -> int:
        """Number of pieces of tensors that the tiles load, chunk by chunk."""
        return sum(
            op.tiles * sum(_count_chunks(op, access) for access in op.substitute_expected(op.reads))
            for op in self.graph.ops
        )

    @property
    def working_set(self) -> int:
        """Bytes of one chunk of all reads and writes of a tile, for the op with the most."""
        return max(
            sum(_count_tile_bytes(self.graph, op, a) for a in op.substitute_expected(op.accesses))
            for op in self.graph.ops
        )

    def check(self) -> None:
        """Raise BadInput if a tile fits no SM, the cache no tile, or the simulation not all tiles."""
        device = self.device
        most = device.l1_bytes + device.register_bytes
        for op in self.graph.ops:
            sums = sum(_count_sum_bytes(self.graph, op, a) for a in op.writes) if op.reduction else 0
            if sums > most:
                raise BadInput(
                    f"a tile of op {op.name!r} sums up in {table.format_size(sums)} of fp32, but an SM holds "
                    f"{table.format_size(most)}; use a smaller one, such as 128x128x64"
                )
        if self.working_set > device.l2.side_bytes:
            raise BadInput(
                f"a cache of {table.format_size(device.l2.side_bytes)} is below one working set: a chunk of all "
                f"operands and an output tile take {table.format_size(self.working_set)}; use a larger --cache or a "
                "smaller --tile"
            )
        if self.tiles > _MAX_TILES:
            raise BadInput(
                f"{self.tiles:,} tiles, but a simulation takes {_MAX_TILES:,}; use larger tiles, "
                "or a smaller problem of the same kind"
            )
        # Loads, outputs, steps, and the pieces themselves, as the simulation counts them.
        pieces = self.loads
        for op in self.graph.ops:
            pieces += op.tiles * (max(_count_chunks(op, a) for a in op.reads) + 2 * len(op.writes))
            pieces += sum(
                _count_distinct(op, access) * _count_chunks(op, access) for access in op.substitute_expected(op.reads)
            )
        if pieces > _MAX_PIECES:
            raise BadInput(
                f"{self.tiles:,} tiles touch {pieces:,} pieces of tensors, but a simulation takes "
                f"{_MAX_PIECES:,}; use larger chunks, or a smaller problem of the same kind"
            )

    def build_plan(self, named: names.NamedOrder) -> Plan:
        """Return the plan of the workload in an order."""
        return build(self.graph, Schedule(self.device.sms, order=named.order))

    def find_bounds(self, traffic: Traffic, device: DeviceSpec) -> tuple[TrafficBound, ...]:
        """Return lower bounds for any order: on loads, safe and in leading order if known, and on loads and stores."""
        from interlace.planner.graph_bounds import compute_graph_bounds

        return compute_graph_bounds(self.graph, traffic, device)

    def run(self, named: names.NamedOrder) -> TrafficCount:
        """Return the traffic of the workload in an order."""
        from interlace.planner.predict import count_traffic

        return count_traffic(self.build_plan(named), self.device, SERIAL)

    def predict_interval(self, plan: Plan) -> ReadInterval:
        """Return the least and the most that a plan may read from memory."""
        from interlace.planner.intervals import predict_read_interval

        return predict_read_interval(plan, self.device, SERIAL)

    @property
    def tiling(self) -> str:
        """Tiles of every op."""
        return format_tiling(self.graph)

    def __str__(self) -> str:
        return f"{self.workload.title}; {self.tiling}"


def _count_chunks(op: Op, access: Access) -> int:
    """Return the number of pieces into which the reduction cuts the reads of a tile."""
    return op.reduction.chunks if op.reduction and access.uses_k else 1


def _count_sum_bytes(graph: Graph, op: Op, access: Access) -> int:
    """Return the bytes of the accumulator of a whole tile, including its part beyond the edge of the tensor."""
    zero = np.zeros(1, np.int64)
    at, extents = op.compute_coords(zero), graph.tensor(access.tensor).shape
    sides = (
        extent if span == ALL else int((span.hi.evaluate(at, zero, zero) - span.lo.evaluate(at, zero, zero))[0])
        for span, extent in zip(access.spans, extents, strict=True)
    )
    return _SUM_BYTES * prod(sides)


def _count_tile_bytes(graph: Graph, op: Op, access: Access) -> int:
    """Return the bytes that the first tile touches in its first chunk."""
    tensor, zero = graph.tensor(access.tensor), np.zeros(1, np.int64)
    chunk = zero + (op.reduction.block if op.reduction else 1)
    lo, hi = access.compute_bounds(tensor.shape, op.compute_coords(zero), zero, chunk)
    return int(np.prod(hi - lo)) * tensor.dtype.itemsize


def _count_distinct(op: Op, access: Access) -> int:
    """Return the number of regions of a tensor that the tiles read."""
    bounds = [bound for span in access.spans for bound in (span.lo, span.hi)]
    return prod(n for d, n in enumerate(op.grid) if any(any(bound.tile[d : d + 1]) for bound in bounds))
