"""200 random games in a browser: every counter after every click, undo and jump, against the study of orders.

A game runs inside the page, which gets real events and is read after each; so a step costs one request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import numpy as np

from interlace.core.errors import StudioError
from interlace.orders.cache import simulate_lru_mask
from interlace.orders.panels import EvictionPolicy, Visit
from interlace.orders.replay import find_loaded
from interlace.studio.game import GameOptions, Path, Unit, find_named_path, group_waves, list_named_orders
from interlace.studio.wire import format_options

from .conftest import Page

GAMES = 200
STEPS = 6

# Does one step after the other, and returns what stands on the page after each.
PLAY = """async ({ options, ghost, steps }) => {
  const at = (id) => document.getElementById(id);
  const idle = () => new Promise((done) => {
    const html = document.documentElement;
    if (html.dataset.busy === "false") return done();
    const watch = new MutationObserver(() => html.dataset.busy === "false" && (watch.disconnect(), done()));
    watch.observe(html, { attributeFilter: ["data-busy"] });
  });
  const set = (field, value, event) => { field.value = value; field.dispatchEvent(new Event(event)); };
  SVGSVGElement.prototype.setPointerCapture = () => {}; // no real pointer is down
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const acts = {
    press,
    jump: (to) => set(at("step"), to, "input"),
    take: ([tile, shiftKey]) => {
      const box = document.querySelector(`[data-tile="${tile}"]`).getBoundingClientRect();
      const [clientX, clientY] = [box.x + box.width / 2, box.y + box.height / 2];
      const event = { clientX, clientY, shiftKey, bubbles: true };
      for (const type of ["pointerdown", "pointerup"]) {
        document.querySelector("#board svg").dispatchEvent(new PointerEvent(type, event));
      }
    },
  };
  const text = (element) => element.textContent;
  const shown = () => ({
    counters: ["steps", "loads", "hits", "load_bytes"].map((id) => text(at(id))),
    ghost: [...document.querySelectorAll("tbody .ghost-column")].map((cell) => (cell.hidden ? "" : text(cell))),
    panels: [...document.querySelectorAll(".panel .count")].map(text),
    tiles: [...document.querySelectorAll(".tile")].map((tile) => tile.getAttribute("aria-label").split(": ")[1]),
  });
  const fields = [...at("setup").elements].filter((field) => field.name);
  for (const field of fields) field.value = options[field.name];
  fields[0].dispatchEvent(new Event("change"));
  await idle();
  if (!at("setup-error").hidden) throw new Error(text(at("setup-error")));
  set(at("ghost"), ghost, "change");
  press("Home");
  await idle();
  const found = [];
  for (const [act, argument] of steps) {
    acts[act](argument);
    await idle();
    found.push(shown());
  }
  return found;
}"""


@dataclass
class Play:
    """State that the page should keep: a path and the number of its steps taken."""

    options: GameOptions
    path: Path = ()
    at: int = 0
    steps: list[tuple[str, Any]] = field(default_factory=list)

    def draw(self, rng: random.Random) -> None:
        """One more step."""
        act = rng.choice(("take",) * 5 + ("u", "r", "Home", "End", "jump"))
        if act == "take":
            self._take(rng)
        elif act == "jump":
            self.at = rng.randint(0, len(self.path))
            self.steps.append(("jump", self.at))
        else:
            moved = {"u": self.at - 1, "r": self.at + 1, "Home": 0, "End": len(self.path)}[act]
            self.at = min(max(moved, 0), len(self.path))
            self.steps.append(("press", act))

    def _take(self, rng: random.Random) -> None:
        grid = self.options.grid
        visit = Visit(rng.randrange(grid.rows), rng.randrange(grid.columns), rng.random() < 0.3)
        self.steps.append(("take", [visit.row * grid.columns + visit.column, visit.column_first]))
        if visit[:2] in [taken[:2] for taken in self.path[: self.at]]:
            return  # it is taken already
        if self.path[self.at : self.at + 1] != (visit,):
            self.path = (*self.path[: self.at], visit)
        self.at += 1


def draw_options(rng: random.Random) -> GameOptions:
    """Small products, with every kind of cache."""
    while True:
        rows, columns, chunks = rng.randint(1, 6), rng.randint(1, 6), rng.choice((1, 1, 2, 3))
        unit, cache = rng.choice(tuple(Unit)), rng.choice(tuple(EvictionPolicy))
        capacity, ragged = rng.randint(2, 9) * (1 << 13 if unit is Unit.BYTES else 1), rng.choice((0, 0, 10))
        sizes = (64 * rows - ragged, 64 * columns, 32 * chunks - ragged, 64, 64, 32, capacity)
        try:
            return GameOptions(*sizes, unit, cache, rng.choice((1, 1, 2, 3)))
        except StudioError:
            continue


def list_misses(options: GameOptions, path: Path) -> list[tuple[int, int]]:
    """Step and unit of each load: under LRU of the cache of ``orders.cache``, which the page does not use."""
    groups, owner = group_waves(options.grid, path, options.workers)
    capacity, cache, unequal = options.replay_arguments
    if cache is EvictionPolicy.OPT or not groups:
        return [
            (at, unit) for at, units in zip(owner, find_loaded(groups, capacity, cache), strict=True) for unit in units
        ]
    units = np.array([unit for group in groups for unit in group])
    hit = simulate_lru_mask(units, capacity, np.array(options.sizes) if unequal else None)
    return [(owner[i // 2], int(units[i])) for i in np.flatnonzero(~hit)]


def nbytes(count: int) -> str:
    """As the page writes it."""
    value, unit = float(count), 0
    while value >= 999.5:
        value, unit = value / 1000, unit + 1
    return f"{f'{value:#.3g}'.rstrip('.') if unit else count} {('B', 'kB', 'MB')[unit]}"


def counters(options: GameOptions, path: Path, total: str) -> list[str]:
    """Steps, loads, hits and bytes."""
    missing = list_misses(options, path)
    hits = 2 * len(path) * options.grid.chunks - len(missing)
    return [total, str(len(missing)), str(hits), nbytes(sum(options.sizes[unit] for _, unit in missing))]


def expect_page(play: Play, ghost: str) -> dict[str, list[str]]:
    """Return what should stand on the page."""
    options, grid, taken = play.options, play.options.grid, play.path[: play.at]
    missing = list_misses(options, taken)
    panels = [sum(unit // grid.chunks == panel for _, unit in missing) for panel in range(grid.rows + grid.columns)]
    times = [loads / grid.chunks for loads in panels]
    step_of = {visit[:2]: step for step, visit in enumerate(taken)}
    tiles = []
    for place in product(range(grid.rows), range(grid.columns)):
        step = step_of.get(place)
        loads = sum(at == step for at, _ in missing)
        tiles.append("open" if step is None else f"step {step + 1}, {loads} loads")
    beside = find_named_path(grid, ghost)[: play.at] if ghost else ()
    return {
        "counters": counters(options, taken, f"{play.at} / {grid.tiles}"),
        "ghost": counters(options, beside, "")[1:] if ghost else [""] * 3,
        "panels": ["" if not n else f"{n:.0f}×" if n == int(n) else f"{n:.1f}×" for n in times],
        "tiles": tiles,
    }


def test_every_counter_after_every_step_is_that_of_the_study_of_orders(browser: Any, address: str) -> None:
    page = Page(browser, address, requests=False)
    rng = random.Random(0)
    before: Play | None = None
    for number in range(GAMES):
        options = draw_options(rng)
        grid = options.grid
        play = Play(options)
        if before and (before.options.grid.rows, before.options.grid.columns) == (grid.rows, grid.columns):
            play.path = before.path  # which stays while it fits
        ghost = rng.choice(("", *list_named_orders(grid)))
        expected = []
        for _ in range(STEPS):
            play.draw(rng)
            expected.append(expect_page(play, ghost))
        game = {"options": format_options(options), "ghost": ghost, "steps": play.steps}
        found = page.page.evaluate(PLAY, game)
        for step, (here, there) in enumerate(zip(found, expected, strict=True)):
            assert here == there, (number, step, options, play.steps[: step + 1])
        before = play
    page.close()
