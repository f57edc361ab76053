"""A view that a thread builds while its page is already open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from interlace.studio.plan_view import PlanView
from interlace.studio.records import RecordView
from interlace.studio.timeline import TimelineView

#: View that a page shows.
StudioView = PlanView | TimelineView | RecordView


class Pending:
    """A view that is not complete yet.

    Args:
        kind: class of the view.
        make: function that makes it; an error that it raises is the answer to each request for the view.
        says: text that the page shows until then.
    """

    def __init__(self, kind: type[StudioView], make: Callable[[], StudioView], says: str) -> None:
        self.kind, self.says = kind, says
        self._made: Future[StudioView] = Future()
        self._thread = threading.Thread(target=self._run, args=(make,), daemon=True)
        self._begin = threading.Lock()

    @property
    def page(self) -> str:
        """File of the page that shows the view."""
        return self.kind.page

    def start(self) -> None:
        """Start the thread, unless it runs or has ended."""
        with self._begin:
            if self._thread.ident is None:
                self._thread.start()

    def view(self) -> StudioView | None:
        """Return the view; None until it is made. Raises what its function raised."""
        self.start()
        return self._made.result() if self._made.done() else None

    def _run(self, make: Callable[[], StudioView]) -> None:
        try:
            self._made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the view gets it
            self._made.set_exception(error)
