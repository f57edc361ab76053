"""``interlace traffic``: what a workload reads from memory under an order of its tiles, and what no order can avoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from interlace.cli import names, table, traffic_plot
from interlace.cli.console import BadInput, convert_to_bad_input, print_table, show_progress, show_spinner
from interlace.cli.options import JsonFile
from interlace.cli.outputs import Output, parse_output_file, report_written, save, save_json
from interlace.cli.traffic_study import CacheOptions, Study
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.kernels.base import sum_over_layers
from interlace.planner.bounds import BoundedQuantity, TrafficBound
from interlace.policies.orders import GroupedColumnMajor
from interlace.sim.modes import SERIAL

if TYPE_CHECKING:
    from interlace.planner.predict import Traffic, TrafficCount

_DEFAULT_ORDER = names.NamedOrder("grouped:8", GroupedColumnMajor(8))
# Sizes that are drawn, relative to the size of the cache; sizes that hold no tile are omitted.
_SIZES = np.geomspace(1 / 8, 8, 49)


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
        study = Study.from_workload(work.build_workload(gpu=True), options)
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
    from interlace.planner.predict import predict_dram_reads

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
        ("read from memory", f"{table.format_volume(read)}{_format_interval(study, count)}"),
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


def _format_interval(study: Study, count: TrafficCount) -> str:
    """Return the interval of the bytes read where it says more than its middle, near a knee of the cache."""
    interval = study.predict_interval(count.plan)
    if interval.is_narrow:
        return ""
    return f"; {table.format_volume(interval.low)} to {table.format_volume(interval.high)} near a knee of the cache"


def _describe_cache(study: Study) -> str:
    l2 = study.device.l2
    if study.device.name == names.ONE_CACHE:
        return f"{names.ONE_CACHE} of {table.format_size(l2.side_bytes)}"
    return f"L2 of the {study.device.name}, {l2.sides} sides of {table.format_size(l2.side_bytes)}"


def _to_data(study: Study, bounds: Sequence[TrafficBound], found: Sequence[OrderResult]) -> dict[str, Any]:
    l2, on_loads = study.device.l2, _select_load_bounds(bounds)
    intervals = [study.predict_interval(count.plan) for _, count in found]
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
                "dram_read_interval_bytes": [interval.low, interval.high],
                "dram_read_bytes_by_tensor": dict(count.traffic.read_bytes),
                "dram_written_bytes": count.traffic.written_bytes,
                "compulsory_bytes": count.traffic.compulsory_bytes,
                **{
                    f"over_{bound.label.value.replace(' ', '_')}": count.traffic.dram_read / bound.bytes
                    for bound in on_loads
                },
            }
            for (named, count), interval in zip(found, intervals, strict=True)
        ],
    }
