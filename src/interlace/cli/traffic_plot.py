"""Picture of ``interlace traffic --sweep``: bytes read from memory against the size of the cache, by order.

matplotlib is imported only when the picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from interlace.cli import table
from interlace.cli.console import FAILED, fail
from interlace.core.devices import L2
from interlace.planner.bounds import TrafficBound

_LABEL_STEP = 0.042  # height of a label as a share of the picture's height


def check_installed() -> None:
    """Fail in one line if matplotlib is missing or cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise fail("--plot needs matplotlib; run: pip install -e '.[plot]'", FAILED) from None
    except ValueError as error:  # its environment variables have invalid values
        raise fail(f"--plot needs matplotlib, which does not start: {error}", FAILED) from None


def draw(
    title: str, l2: L2, sizes: Sequence[int], curves: Mapping[str, Sequence[int]], bounds: Sequence[TrafficBound]
) -> bytes:
    """Return the picture as a PNG: a labelled line per order, and a bound (for matmuls ~ 1 / the root of the size).

    Args:
        title: title of the picture.
        l2: cache whose size is marked.
        sizes: sizes of the cache in bytes, all sides together, ascending.
        curves: bytes read at each size, by order.
        bounds: lower bounds on these bytes, one for each size.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    marked, label = l2.sides * l2.side_bytes, f"{bounds[0].label.value.replace(' ', '-')} bound"
    figure = Figure(figsize=(9, 5.5), dpi=150)
    FigureCanvasAgg(figure)
    axis = figure.add_axes((0.2, 0.11, 0.7, 0.79))
    colours = _assign_colours(list(curves))
    for name, read in curves.items():
        axis.plot(sizes, read, color=colours[name], linewidth=1.4)
    axis.plot(sizes, [bound.bytes for bound in bounds], color="black", linewidth=1.2, linestyle="--")
    axis.axvline(marked, color="0.6", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlim(sizes[0], sizes[-1])
    # Orders differ most where the cache is small, so the labels are there and the numbers on the other side.
    axis.yaxis.tick_right()
    axis.yaxis.set_label_position("right")
    _format_axis(axis)
    sides = f", all {l2.sides} sides together" if l2.sides > 1 else ""
    axis.set_xlabel(f"size of the cache{sides}")
    axis.set_ylabel("read from memory")
    axis.spines[["top", "left"]].set_visible(False)
    leader = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (1, 0.5)}
    lowest, highest = np.log(axis.get_ylim())
    starts = {name: read[0] for name, read in curves.items()} | {label: bounds[0].bytes}
    ends = {name: float((np.log(start) - lowest) / (highest - lowest)) for name, start in starts.items()}
    for name, at in _separate_labels(ends).items():
        colour = colours.get(name, "black")
        axis.annotate(
            name,
            (0.0, ends[name]),
            (-0.05, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            ha="right",
            va="center",
            fontsize=8,
            color=colour,
            arrowprops=leader | {"color": colour},
        )
    above = axis.get_xaxis_transform()
    axis.text(marked, 1.0, f" {table.format_size(marked)}", transform=above, fontsize=8, color="0.4", va="top")
    figure.suptitle(title, fontsize=10)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _assign_colours(listed: Sequence[str]) -> dict[str, Any]:
    """Assign a colour to each order; orders that differ only in a number get shades of one colour."""
    from matplotlib import colormaps

    plain = [name for name in listed if ":" not in name]
    colours: dict[str, Any] = {name: colormaps["Dark2"](i % 8) for i, name in enumerate(plain)}
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in listed if ":" in name))
    for kind, shades in zip(kinds, ("Blues", "Reds", "Greens", "Purples"), strict=False):
        members = [name for name in listed if name.startswith(f"{kind}:")]
        members.sort(key=lambda name: int(name.partition(":")[2]))
        for i, name in enumerate(members):
            colours[name] = colormaps[shades](0.4 + 0.55 * i / max(len(members) - 1, 1))
    return colours


def _separate_labels(wanted: dict[str, float]) -> dict[str, float]:
    """Return heights near the given ones, a label's height apart: 0.5, 0.5 and 0.51 become 0.46, 0.5 and 0.55."""
    ranked = sorted(wanted, key=lambda name: wanted[name])
    steps = _LABEL_STEP * np.arange(len(ranked))
    heights = np.array([wanted[name] for name in ranked]) - steps
    # Monotone least squares by pooling neighbours that are out of order.
    pools: list[tuple[float, int]] = []
    for height in heights:
        pools.append((float(height), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, few), (high, many) = pools[-2:]
            pools[-2:] = [((low * few + high * many) / (few + many), few + many)]
    placed = np.repeat([height for height, _ in pools], [count for _, count in pools])
    placed = np.clip(placed, 0.0, 1.0 - steps[-1]) + steps
    return dict(zip(ranked, placed.tolist(), strict=True))


def _format_axis(axis: Any) -> None:
    """Format sizes as 8 MiB and volumes as 500 MB instead of powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: table.format_size(round(value))))
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: table.format_volume(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
