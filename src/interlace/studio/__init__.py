"""Studio: a local page, or a notebook widget, to explore tile orders with the package's replays and searches.

import interlace as il
il.studio.show(plan)     # in Jupyter or marimo; needs the extra studio
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlace.studio.widget import Showable, StudioWidget


__all__ = ["show"]


def show(what: Showable, height: int = 720) -> StudioWidget:
    """Return a page of the studio as a notebook widget, which sends its requests to this kernel instead of a server.

    Args:
        what: a plan or its proof; a trace; a grid of panels, ``orders.panels.PanelGrid``, or the options of a game,
            ``studio.game.Options`` or ``studio.chain.Chain``, to play; or a view of ``interlace studio``'s files.
        height: height of its frame, in pixels.

    Raises:
        ImportError: anywidget is not installed; the extra ``studio`` has it.
        StudioError: anything else, or more items than the page draws.
        PlanError: a plan with invalid columns.
    """
    from interlace.studio.widget import build_widget

    return build_widget(what, height)
