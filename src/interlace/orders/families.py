"""Named families of orders, as walks: starting points and baselines of a search.

Over undivided panels, a walk is an order. Over panels in chunks there is one more choice: the direction of a tile along
K. ``Sawtooth`` alternates the direction from tile to tile. A tile then begins with the chunks that the previous one
touched last (the alternating scan of Zhu, Pan and Ding, 2026). Four chunks:

    tile         0          1          2
    ascending    0 1 2 3    0 1 2 3    0 1 2 3
    sawtooth     0 1 2 3    3 2 1 0    0 1 2 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from interlace.orders.panels import PanelGrid, Visit
from interlace.policies.orders import (
    ColumnMajor,
    GroupedColumnMajor,
    GroupedSerpentine,
    Hilbert,
    Morton,
    Order,
    RowMajor,
    Serpentine,
)

PLAIN: Mapping[str, Order] = {
    "row": RowMajor(),
    "column": ColumnMajor(),
    "serpentine": Serpentine(),
    "morton": Morton(),
    "hilbert": Hilbert(),
}
"""Orders by their usual names."""
GROUPED: Mapping[str, Callable[[int], Order]] = {"grouped": GroupedColumnMajor, "grouped-serpentine": GroupedSerpentine}
"""Orders with a parameter, the number of rows, which follows a colon: ``grouped:4``."""


@dataclass(frozen=True)
class Family:
    """Member of a family: an order, and whether its tiles alternate their direction along K."""

    order: Order
    sawtooth: bool = False

    def make_walk(self, grid: PanelGrid) -> tuple[Visit, ...]:
        """Return the visits, each with the row panel first."""
        visits = grid.make_walk(self.order)
        if not self.sawtooth:
            return visits
        return tuple(visit._replace(backwards=i % 2 == 1) for i, visit in enumerate(visits))

    @property
    def name(self) -> str:
        """Usual name: ``grouped:4``, or ``grouped:4, sawtooth``."""
        order = self.order
        if isinstance(order, GroupedColumnMajor | GroupedSerpentine):
            name = next(f"{name}:{order.rows}" for name, make in GROUPED.items() if make is type(order))
        else:
            name = next(name for name, known in PLAIN.items() if known == order)
        return f"{name}, sawtooth" if self.sawtooth else name

    def __str__(self) -> str:
        return f"Sawtooth({self.order})" if self.sawtooth else str(self.order)


def list_families(grid: PanelGrid, capacity: int) -> tuple[Family, ...]:
    """Return the members that are tried on a grid, the plain ones first.

    The groups have 2, 4, 8, 16 or 32 rows, as many rows as the cache holds in addition to one or two columns, and the
    heights nearest to those that divide the rows evenly.
    """
    fits = [height for height in (capacity // grid.chunks - 1, capacity // grid.chunks - 2) if height > 0]
    even = [-(-grid.rows // -(-grid.rows // height)) for height in fits]
    heights = sorted({2, 4, 8, 16, 32, *fits, *even} & set(range(2, grid.rows)))
    orders: list[Order] = [RowMajor(), ColumnMajor(), Serpentine()]
    orders += [GroupedColumnMajor(height) for height in heights]
    orders += [GroupedSerpentine(height) for height in heights]
    orders += [Morton(), Hilbert()]
    ways = (False, True) if grid.chunks > 1 else (False,)
    return tuple(Family(order, sawtooth) for sawtooth in ways for order in orders)
