"""``interlace traffic``: what a workload reads from memory under an order of its tiles, and what no order can avoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from interlace.cli import names, table, traffic_plot
from interlace.cli.console import BadInput, convert_to_bad_input, print_table, show_progress, show_spinner
from interlace.cli.machine import target_gpu
from interlace.cli.options import DeviceOption, JsonFile, TileOption
from interlace.cli.outputs import Output, parse_output_file, report_written, save, save_json
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.core.devices import DEFAULT_GPU, DeviceSpec, load_known_chips
from interlace.graph.access import ALL, Access
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import format_tiling, sum_over_layers
from interlace.plan.plan import Plan
from interlace.planner.bounds import BoundedQuantity, TrafficBound
from interlace.planner.build import Choices, build
from interlace.policies.orders import GroupedColumnMajor
from interlace.sim.modes import SERIAL
from interlace.workloads.base import Workload

if TYPE_CHECKING:
    from interlace.planner.predict import Traffic, TrafficCount

_DEFAULT_ORDER = names.NamedOrder("grouped:8", GroupedColumnMajor(8))
_MAX_TILES = 1 << 22
_MAX_PIECES = 1 << 25  # sim.traffic.LIMIT, above which chunks would be merged
_SUM_BYTES = 4
# Sizes that are drawn, relative to the size of the cache; sizes that hold no tile are omitted.
_SIZES = np.geomspace(1 / 8, 8, 49)


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
    def of(workload: Workload, options: CacheOptions) -> Study:
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
        return build(self.graph, Choices(self.device.sms, order=named.order))

    def find_bounds(self, traffic: Traffic, device: DeviceSpec) -> tuple[TrafficBound, ...]:
        """Return lower bounds for any order: on loads, safe and in leading order if known, and on loads and stores."""
        from interlace.planner.explain import compute_graph_bounds

        return compute_graph_bounds(self.graph, traffic, device)

    def run(self, named: names.NamedOrder) -> TrafficCount:
        """Return the traffic of the workload in an order."""
        from interlace.planner.predict import count_traffic

        return count_traffic(self.build_plan(named), self.device, SERIAL)

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


def register(app: typer.Typer) -> None:
    """Add the command."""

    @add_per_workload(
        add_workload_group(app, "traffic", "What a workload reads from memory under an order of its tiles.")
    )
    def traffic(
        work: Selection,
        options: CacheOptions,
        order: Annotated[
            names.NamedOrder | None,
            names.build_order_option(f"In which order the tiles run: {names.ORDERS.listing}; grouped:8 by default."),
        ] = None,
        sweep: Annotated[bool, typer.Option("--sweep", help="Compare all named orders.")] = False,
        plot: Annotated[
            Output | None,
            typer.Option(
                "--plot",
                metavar="FILE.png",
                parser=_parse_png,
                help="With --sweep: draw bytes read against the size of the cache, a line per order.",
            ),
        ] = None,
        json: JsonFile = None,
    ) -> None:
        """Count what a workload reads from memory under an order of its tiles, beside what no order can avoid.

        Workers take the tiles in the order given, op after op, and run through the reductions in lockstep. Each chunk
        loads a piece of every operand through a cache that evicts what was used longest ago; the misses are read from
        memory. Nothing is measured and no GPU is needed. The first use compiles a part of the simulator, about
        2 s once.

        Example: interlace traffic one-matmul --preset 8192-cubed --tile 128x128x64 --cache 50MiB --order grouped:8

        Example: interlace traffic one-matmul --preset 8192-cubed --sweep --plot orders.png
        """
        if sweep and order is not None:
            raise BadInput("--sweep compares all orders and takes no --order; leave one of them out")
        if plot is not None and not sweep:
            raise BadInput("--plot draws the orders of --sweep; pass --sweep too")
        if plot is not None:
            traffic_plot.check_installed()
        study = Study.of(work.build_workload(gpu=True), options)
        with convert_to_bad_input():
            if sweep:
                found = _sweep(study)
            else:
                chosen = order or _DEFAULT_ORDER
                with show_spinner("simulating"):
                    found = [(chosen, study.run(chosen))]
            bounds = study.find_bounds(found[0][1].traffic, study.device)
            if json is not None:
                save_json(json, _to_data(study, bounds, found))
            if plot is not None:
                save(plot, _draw_picture(study, found))
        print_table(_build_family(study, bounds, found) if sweep else _build_facts(study, bounds, *found[0]))
        if plot is not None:
            report_written(plot)


def _draw_picture(study: Study, found: Sequence[OrderResult]) -> bytes:
    """Return a picture of the bytes that each order reads at several sizes of the cache.

    Raises:
        SimulationError: the simulation cannot take the problem.
    """
    from interlace.planner.curve import predict_dram_reads

    device = study.device
    whole = device.l2.sides * device.l2.side_bytes
    sizes = [size for size in (int(whole * part) for part in _SIZES) if size >= device.l2.sides * study.working_set]
    curves = {
        named.name: predict_dram_reads(count.plan, device, sizes, SERIAL)
        for named, count in show_progress(found, "drawing", len(found))
    }
    # The last bound on loads is the tightest: the leading order, if it is known.
    bounds = [
        _select_load_bounds(study.find_bounds(found[0][1].traffic, replace(device, l2_bytes=size)))[-1]
        for size in sizes
    ]
    title = f"{study}; {study.device.sms:,} workers"
    return traffic_plot.draw(title, device.l2, sizes, curves, bounds)


def _parse_png(text: str) -> Output:
    if not text.lower().endswith(".png"):
        raise typer.BadParameter(f"{text!r} is no name of a picture; use one that ends in .png")
    return parse_output_file(text)


OrderResult = tuple[names.NamedOrder, "TrafficCount"]


def _sweep(study: Study) -> list[OrderResult]:
    """Return all named orders in ascending order of traffic."""
    orders = names.list_orders([op.grid for op in study.graph.ops])
    found = [(named, study.run(named)) for named in show_progress(orders, "simulating", len(orders))]
    return sorted(found, key=lambda pair: pair[1].traffic.dram_read)


def _count_loaded(traffic: Traffic) -> int:
    """Return the bytes that the tiles load; each written byte is written once."""
    return traffic.touched_bytes - traffic.written_bytes


def _compute_hit_rate(traffic: Traffic) -> float:
    """Return the share of the loaded bytes that the cache held."""
    return 1 - traffic.dram_read / _count_loaded(traffic)


def _select_load_bounds(bounds: Sequence[TrafficBound]) -> list[TrafficBound]:
    """Return the bounds on loads only: the safe one, and the leading order if it is known."""
    return [bound for bound in bounds if bound.counts is BoundedQuantity.LOADS]


def _build_facts(study: Study, bounds: Sequence[TrafficBound], named: names.NamedOrder, count: TrafficCount) -> Table:
    traffic = count.traffic
    read = traffic.dram_read
    rows = [
        ("cache", _describe_cache(study)),
        ("workers", f"{study.device.sms:,}, in lockstep"),
        ("model", "exact LRU over pieces of tensors"),
        ("loads", f"{study.loads:,} pieces, {table.format_volume(_count_loaded(traffic))}"),
        (
            "hits",
            f"{table.format_volume(_count_loaded(traffic) - read)}, {100 * _compute_hit_rate(traffic):.2f} % of the "
            "loads",
        ),
        ("read from memory", table.format_volume(read)),
        *((f"  {name}", table.format_volume(count)) for name, count in sum_over_layers(traffic.read_bytes).items()),
        ("written to memory", table.format_volume(traffic.written_bytes)),
        (
            "compulsory reads",
            f"{table.format_volume(traffic.compulsory_bytes)}; {read / traffic.compulsory_bytes:.2f}x is read",
        ),
        *(
            (
                f"bound on reads, {bound.label.value}",
                f"{table.format_volume(bound.bytes)}; {read / bound.bytes:.2f}x is read",
            )
            for bound in _select_load_bounds(bounds)
        ),
        ("source of the bounds", bounds[0].source),
    ]
    return table.build_facts(f"{named.name}: {study}", rows)


def _build_family(study: Study, bounds: Sequence[TrafficBound], found: Sequence[OrderResult]) -> Table:
    on_loads = _select_load_bounds(bounds)
    headings = ("order", "read from memory", "hit rate", *(f"of {bound.label.value}" for bound in on_loads))
    rows = (
        (
            named.name,
            table.format_volume(count.traffic.dram_read),
            f"{100 * _compute_hit_rate(count.traffic):.2f} %",
            *(f"{count.traffic.dram_read / bound.bytes:.2f}x" for bound in on_loads),
        )
        for named, count in found
    )
    shown = table.build_columns(f"{study}; {_describe_cache(study)}; {study.device.sms:,} workers", headings, rows)
    listed = ", ".join(f"{bound.label.value} {table.format_volume(bound.bytes)}" for bound in on_loads)
    shown.caption = f"bounds on reads: {listed} ({bounds[0].source})"
    shown.caption_justify = "left"
    return shown


def _describe_cache(study: Study) -> str:
    l2 = study.device.l2
    if study.device.name == names.ONE_CACHE:
        return f"{names.ONE_CACHE} of {table.format_size(l2.side_bytes)}"
    return f"L2 of the {study.device.name}, {l2.sides} sides of {table.format_size(l2.side_bytes)}"


def _to_data(study: Study, bounds: Sequence[TrafficBound], found: Sequence[OrderResult]) -> dict[str, Any]:
    l2, on_loads = study.device.l2, _select_load_bounds(bounds)
    return {
        "workload": study.workload.to_data(),
        "tiles": study.tiling,
        "workers": study.device.sms,
        "cache": {"name": study.device.name, "sides": l2.sides, "side_bytes": l2.side_bytes},
        "loads": study.loads,
        "bounds": [
            {"bytes": b.bytes, "label": b.label.value, "counts": b.counts.value, "source": b.source} for b in bounds
        ],
        "orders": [
            {
                "order": named.name,
                "loaded_bytes": _count_loaded(count.traffic),
                "hit_bytes": _count_loaded(count.traffic) - count.traffic.dram_read,
                "hit_rate": _compute_hit_rate(count.traffic),
                "dram_read_bytes": count.traffic.dram_read,
                "dram_read_bytes_by_tensor": dict(count.traffic.read_bytes),
                "dram_written_bytes": count.traffic.written_bytes,
                "compulsory_bytes": count.traffic.compulsory_bytes,
                **{
                    f"over_{bound.label.value.replace(' ', '_')}": count.traffic.dram_read / bound.bytes
                    for bound in on_loads
                },
            }
            for named, count in found
        ],
    }
