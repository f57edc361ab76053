"""``interlace traffic``: what a matmul reads from memory under an order of its tiles, and what no order can avoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from interlace.cli import names, table, traffic_plot
from interlace.cli.console import BadInput, bad_input, progress, say, show, working
from interlace.cli.options import DTypeOption, JsonFile, command
from interlace.cli.outputs import Output, output_file, save, save_json
from interlace.core.devices import DEFAULT_GPU, DeviceSpec, known_chips
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.kernels.matmul import MatmulTile
from interlace.plan.plan import Plan
from interlace.planner.bounds import Bound, Gemm, matmul
from interlace.planner.build import Choices, build
from interlace.policies.orders import GroupedPanels
from interlace.workloads.chains import one_matmul

if TYPE_CHECKING:
    from interlace.planner.predict import Traffic

_DEFAULT_ORDER = names.NamedOrder("grouped:8", GroupedPanels(8))
_MOST_TILES = 1 << 22
_MOST_PIECES = 1 << 25  # sim.traffic.LIMIT, from which on chunks would be taken together
_SUM_BYTES = 4


@dataclass(frozen=True)
class Study:
    """One matmul and the cache that it runs through; None where the default is meant."""

    m: Annotated[int, typer.Option("--m", min=1, help="Rows of x, and of the result.")]
    n: Annotated[int, typer.Option("--n", min=1, help="Rows of w, columns of the result.")]
    k: Annotated[int, typer.Option("--k", min=1, help="Columns of x and w: the reduction.")]
    dtype: DTypeOption = None
    tile: Annotated[
        names.TileShape | None,
        typer.Option(
            "--tile",
            parser=names.tile,
            metavar="MxNxK",
            help="Output tile and chunk of the reduction, 128x128x64 by default.",
        ),
    ] = None
    cache: Annotated[
        DeviceSpec | None,
        typer.Option(
            "--cache",
            parser=names.cache,
            metavar="SIZE",
            help="One LRU cache of this size (50MiB, 60MB, bytes) read at equal speed, or a chip "
            f"({', '.join(known_chips())}; the {DEFAULT_GPU.name} by default): its L2 in sides, its SMs of slightly "
            "unequal speed.",
        ),
    ] = None
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=1 << 16, help="Tiles that run at once, in lockstep.")
    ] = DEFAULT_GPU.sms
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            parser=names.CACHE_MODELS.parse,
            autocompletion=names.CACHE_MODELS.complete,
            metavar="MODEL",
            help="How the cache is taken: tile (the default; whole pieces of tensors, exact LRU) or line "
            "(128-byte lines in hashed sets).",
        ),
    ] = None

    @property
    def element(self) -> DType:
        """Type of all three tensors."""
        return self.dtype or bf16

    @property
    def shape(self) -> names.TileShape:
        """Output tile and chunk."""
        return self.tile or names.TileShape(128, 128, 64)

    @property
    def device(self) -> DeviceSpec:
        """The cache, with as many SMs as there are workers."""
        return replace(self.cache or DEFAULT_GPU, sms=self.workers)

    @property
    def grid(self) -> tuple[int, int]:
        """Output tiles."""
        return -(-self.m // self.shape.m), -(-self.n // self.shape.n)

    @property
    def loads(self) -> int:
        """Pieces of x and w that the tiles load, chunk by chunk."""
        return 2 * self.grid[0] * self.grid[1] * -(-self.k // self.shape.k)

    @property
    def working_set(self) -> int:
        """Bytes of one chunk of both operands and of one output tile, no larger than the tensors."""
        m, n, k = min(self.shape.m, self.m), min(self.shape.n, self.n), min(self.shape.k, self.k)
        return (m * k + n * k + m * n) * self.element.itemsize

    def graph(self) -> Graph:
        """The matmul.

        Raises:
            BadInput: the tile fits no SM, the cache no tile, or the simulation not all tiles.
        """
        tile, device = self.shape, self.device
        with bad_input():
            graph = one_matmul(self.m, self.n, self.k, self.element, MatmulTile(tile.m, tile.n, tile.k))
        sums, most = _SUM_BYTES * tile.m * tile.n, device.l1_bytes + device.register_bytes
        if sums > most:
            raise BadInput(
                f"a tile of {tile.m}x{tile.n} sums up in {table.size(sums)} of fp32, but an SM holds "
                f"{table.size(most)}; use a smaller one, such as 128x128x64"
            )
        if self.working_set > device.l2.side_bytes:
            raise BadInput(
                f"a cache of {table.size(device.l2.side_bytes)} is below one working set: a chunk of both operands "
                f"and an output tile of {tile.m}x{tile.n}x{tile.k} take {table.size(self.working_set)}; "
                "use a larger --cache or a smaller --tile"
            )
        rows, columns = self.grid
        if rows * columns > _MOST_TILES:
            raise BadInput(
                f"{rows} x {columns} tiles, but a simulation takes {_MOST_TILES:,}; use larger tiles, "
                "or a smaller problem of the same kind"
            )
        # Loads, the output, the steps, and the pieces themselves, as the simulation counts them.
        pieces = (self.loads * 3 // 2) + 2 * rows * columns + (rows + columns) * -(-self.k // tile.k)
        if pieces > _MOST_PIECES:
            raise BadInput(
                f"{rows * columns:,} tiles with {-(-self.k // tile.k):,} chunks touch {pieces:,} pieces of tensors, "
                f"but a simulation takes {_MOST_PIECES:,}; use larger chunks, or a smaller problem of the same kind"
            )
        return graph

    def plan(self, graph: Graph, named: names.NamedOrder) -> Plan:
        """The matmul in an order."""
        return build(graph, Choices(self.workers, order=named.order))

    def bounds(self) -> tuple[Bound, Bound, Bound]:
        """Safe for loads, safe for loads and stores, leading order for loads."""
        return matmul(Gemm(self.m, self.n, self.k), self.element.itemsize, self.device)

    def run(self, graph: Graph, named: names.NamedOrder) -> Traffic:
        """What the matmul moves in an order."""
        from interlace.planner.predict import Model, predict

        return predict(self.plan(graph, named), self.device, model=Model(self.model or "tile")).traffic

    def __str__(self) -> str:
        tile = self.shape
        return f"{self.m} x {self.n} x {self.k} in tiles of {tile.m}x{tile.n}x{tile.k}, {self.element}"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command(app, "traffic")
    def traffic(
        study: Study,
        order: Annotated[
            names.NamedOrder | None,
            typer.Option(
                "--order",
                parser=names.named_order,
                autocompletion=names.ORDERS.complete,
                metavar="ORDER",
                help=f"In which order the tiles run: {names.ORDERS.listing}; grouped:8 by default.",
            ),
        ] = None,
        sweep: Annotated[bool, typer.Option("--sweep", help="Compare all named orders.")] = False,
        plot: Annotated[
            Output | None,
            typer.Option(
                "--plot",
                metavar="FILE.png",
                parser=_png,
                help="With --sweep: draw bytes read against the size of the cache, a line per order.",
            ),
        ] = None,
        json: JsonFile = None,
    ) -> None:
        """Count what a matmul reads from memory under an order of its tiles, beside what no order can avoid.

        Workers take the tiles of out = x @ w.T in the order given and run through K in lockstep. Each chunk loads a
        piece of x and a piece of w through a cache that evicts what was used longest ago; the misses are read
        from memory. Nothing is measured and no GPU is needed.

        Example: interlace traffic --m 8192 --n 8192 --k 8192 --tile 128x128x64 --cache 50MiB --order grouped:8

        Example: interlace traffic --m 8192 --n 8192 --k 8192 --sweep --plot orders.png
        """
        if sweep and order is not None:
            raise BadInput("--sweep compares all orders and takes no --order; leave one of them out")
        if plot is not None and not sweep:
            raise BadInput("--plot draws the orders of --sweep; pass --sweep too")
        if plot is not None and study.model == "line":
            raise BadInput("--plot draws by the tile model; leave out --model line, or --plot")
        if plot is not None:
            traffic_plot.check_installed()
        graph = study.graph()
        with bad_input():
            if sweep:
                found = _sweep(study, graph)
            else:
                chosen = order or _DEFAULT_ORDER
                with working("simulating (the first use compiles the simulation)"):
                    found = [(chosen, study.run(graph, chosen))]
            if json is not None:
                save_json(json, _data(study, found))
            if plot is not None:
                orders = [named for named, _ in found]
                save(plot, traffic_plot.draw(study, graph, progress(orders, "drawing", len(orders))))
        show(_family(study, found) if sweep else _facts(study, *found[0]))
        if plot is not None:
            say(f"wrote {plot}")


def _png(text: str) -> Output:
    if not text.lower().endswith(".png"):
        raise typer.BadParameter(f"{text!r} is no name of a picture; use one that ends in .png")
    return output_file(text)


def _sweep(study: Study, graph: Graph) -> list[tuple[names.NamedOrder, Traffic]]:
    """All named orders, the least traffic first."""
    orders = names.orders_of(study.grid)
    found = [(named, study.run(graph, named)) for named in progress(orders, "simulating", len(orders))]
    return sorted(found, key=lambda pair: pair[1].dram_read)


def _loaded(traffic: Traffic) -> int:
    """Bytes that the tiles load; each byte of the output is written once."""
    return traffic.touched - traffic.written


def _hit_rate(traffic: Traffic) -> float:
    """Share of these that the cache held."""
    return 1 - traffic.dram_read / _loaded(traffic)


def _facts(study: Study, named: names.NamedOrder, traffic: Traffic) -> Table:
    safe, _, leading = study.bounds()
    read = traffic.dram_read
    rows = [
        ("cache", _cache(study)),
        ("workers", f"{study.workers:,}, in lockstep"),
        ("model", "exact LRU over pieces of tensors" if study.model != "line" else "hashed sets of 128-byte lines"),
        ("loads", f"{study.loads:,} pieces, {table.volume(_loaded(traffic))}"),
        ("hits", f"{table.volume(_loaded(traffic) - read)}, {100 * _hit_rate(traffic):.2f} % of the loads"),
        ("read from memory", table.volume(read)),
        *((f"  {name}", table.volume(count)) for name, count in traffic.read.items()),
        ("written to memory", table.volume(traffic.written)),
        ("compulsory reads", f"{table.volume(traffic.compulsory)}; {read / traffic.compulsory:.2f}x is read"),
        *(
            (f"bound on reads, {bound.label.value}", f"{table.volume(bound.bytes)}; {read / bound.bytes:.2f}x is read")
            for bound in (safe, leading)
        ),
        ("source of the bounds", safe.source),
    ]
    return table.facts(f"{named.name}: {study}", rows)


def _family(study: Study, found: Sequence[tuple[names.NamedOrder, Traffic]]) -> Table:
    safe, _, leading = study.bounds()
    headings = ("order", "read from memory", "hit rate", f"of {safe.label.value}", f"of {leading.label.value}")
    rows = (
        (
            named.name,
            table.volume(traffic.dram_read),
            f"{100 * _hit_rate(traffic):.2f} %",
            f"{traffic.dram_read / safe.bytes:.2f}x",
            f"{traffic.dram_read / leading.bytes:.2f}x",
        )
        for named, traffic in found
    )
    shown = table.columns(f"{study}; {_cache(study)}; {study.workers:,} workers", headings, rows)
    shown.caption = (
        f"bounds on reads: safe {table.volume(safe.bytes)}, leading order {table.volume(leading.bytes)} ({safe.source})"
    )
    shown.caption_justify = "left"
    return shown


def _cache(study: Study) -> str:
    l2 = study.device.l2
    if study.device.name == names.ONE_CACHE:
        return f"{names.ONE_CACHE} of {table.size(l2.side_bytes)}"
    return f"L2 of the {study.device.name}, {l2.sides} sides of {table.size(l2.side_bytes)}"


def _data(study: Study, found: Sequence[tuple[names.NamedOrder, Traffic]]) -> dict[str, object]:
    tile, l2, bounds = study.shape, study.device.l2, study.bounds()
    safe, _, leading = bounds
    return {
        "m": study.m,
        "n": study.n,
        "k": study.k,
        "dtype": study.element.name,
        "tile": [tile.m, tile.n, tile.k],
        "workers": study.workers,
        "model": study.model or "tile",
        "cache": {"name": study.device.name, "sides": l2.sides, "side_bytes": l2.side_bytes},
        "loads": study.loads,
        "bounds": [
            {"bytes": b.bytes, "label": b.label.value, "counts": b.counts.value, "source": b.source} for b in bounds
        ],
        "orders": [
            {
                "order": named.name,
                "loaded_bytes": _loaded(traffic),
                "hit_bytes": _loaded(traffic) - traffic.dram_read,
                "hit_rate": _hit_rate(traffic),
                "dram_read_bytes": traffic.dram_read,
                "dram_read_bytes_by_tensor": dict(traffic.read),
                "dram_written_bytes": traffic.written,
                "compulsory_bytes": traffic.compulsory,
                "over_safe": traffic.dram_read / safe.bytes,
                "over_leading_order": traffic.dram_read / leading.bytes,
            }
            for named, traffic in found
        ],
    }
