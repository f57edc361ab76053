"""A game of the studio as an animated picture without scripts: row by row beside serpentine, through five panels.

Every element of the picture has one state per step, which SMIL sets at the step's time:

    states a a b c c of five steps     -->     values a;b;c at keyTimes 0;0.4;0.6
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.sax.saxutils import quoteattr

from interlace.studio.game import GameOptions, GamePosition, find_named_path, play

STEP_S, HOLD = 0.6, 5  # seconds of a step; steps that the end stays
CELL, SIDE, GAP, TOP = 46, 34, 40, 50
HIT, LOAD, HELD, LINE, OPEN, TEXT, PALE = "#0072b2", "#d55e00", "#d5e7f5", "#c3cad3", "#ffffff", "#151a21", "#fbdcc0"


def animated(names: Sequence[str] = ("row", "serpentine")) -> str:
    """The picture of some orders of the game that the studio opens with, side by side, as SVG."""
    options = GameOptions()
    grid = options.grid
    steps = grid.tiles + 1
    width = SIDE + grid.columns * CELL
    total = (steps + HOLD) * STEP_S
    parts, loads = [], []
    for number, name in enumerate(names):
        path = find_named_path(grid, name)
        positions = [play(options, path[:at]) for at in range(steps)]
        loads.append(positions[-1].loads)
        inner = _board(options, [grid.columns * v.row + v.column for v in path], positions, total)
        title = {"row": "Row by row"}.get(name, name.capitalize())
        x = 16 + number * (width + GAP)
        parts.append(f'<g transform="translate({x} {TOP})"><text y="-26" class="name">{title}</text>{inner}</g>')
    told = ", ".join(f"{name} loads {count}" for name, count in zip(names, loads, strict=True))
    size = 32 + len(names) * width + (len(names) - 1) * GAP, TOP + SIDE + grid.rows * CELL + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" role="img" '
        f'viewBox="0 0 {size[0]} {size[1]}">\n'
        f"<title>The same 4 x 4 tiles through a cache of five panels: {told}</title>\n"
        f"<style>text{{font:13px system-ui,sans-serif;fill:{TEXT}}}.name{{font-weight:650;font-size:15px}}"
        f".tile,.panel{{stroke:{LINE}}}.small{{font-size:11px}}</style>\n"
        f'<rect width="100%" height="100%" rx="10" fill="#f6f8fa"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _board(options: GameOptions, order: Sequence[int], positions: Sequence[GamePosition], total: float) -> str:
    """Tiles by their loads, panels by whether the cache holds them, and the counters."""
    grid, made = options.grid, []

    def rect(x: float, y: float, w: float, h: float, kind: str, states: Sequence[str]) -> None:
        made.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" class="{kind}" fill="{states[0]}">'
            f"{_changing('fill', states, total)}</rect>"
        )

    for panel in range(grid.rows + grid.columns):
        states = [_panel(position, panel) for position in positions]
        if panel < grid.rows:
            rect(0, SIDE + panel * CELL + 2, SIDE - 6, CELL - 4, "panel", states)
        else:
            rect(SIDE + (panel - grid.rows) * CELL + 2, 0, CELL - 4, SIDE - 6, "panel", states)
    for tile in range(grid.tiles):
        at = order.index(tile)
        last = positions[-1].costs[at]
        done = (HELD, PALE, LOAD)[last]
        states = [OPEN if step <= at else done for step in range(len(positions))]
        row, column = divmod(tile, grid.columns)
        x, y = SIDE + column * CELL, SIDE + row * CELL
        rect(x + 2, y + 2, CELL - 4, CELL - 4, "tile", states)
        shown = ["hidden" if step <= at else "visible" for step in range(len(positions))]
        change = _changing("visibility", shown, total)
        made.append(f'<text x="{x + 9}" y="{y + 20}" visibility="hidden">{at + 1}{change}</text>')
    counts = [position.loads for position in positions]
    for count in sorted(set(counts)):
        shown = ["visible" if other == count else "hidden" for other in counts]
        x = SIDE + grid.columns * CELL - 2
        made.append(
            f'<text x="{x}" y="-26" text-anchor="end" visibility="{shown[0]}">{count} loads'
            f"{_changing('visibility', shown, total)}</text>"
        )
    return "".join(made)


def _panel(position: GamePosition, panel: int) -> str:
    loaded = {at: loads for at, _, loads in position.last}
    if panel in loaded:
        return LOAD if loaded[panel] else HIT
    return HELD if any(held.panel == panel for held in position.cached) else OPEN


def _changing(attribute: str, states: Sequence[str], total: float) -> str:
    """The states of an attribute, each from its step on; those that stay are left out."""
    runs = [(next(group)[0], state) for state, group in groupby(enumerate(states), key=lambda each: each[1])]
    if len(runs) == 1:
        return ""
    times = ";".join(f"{step * STEP_S / total:.4g}" for step, _ in runs)
    values = quoteattr(";".join(state for _, state in runs))
    return (
        f'<animate attributeName="{attribute}" calcMode="discrete" dur="{total:g}s" repeatCount="indefinite" '
        f'keyTimes="{times}" values={values}/>'
    )
