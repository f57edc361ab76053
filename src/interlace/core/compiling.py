"""Reports of functions that numba compiles, for callers that explain why the first use takes seconds.

    with reports_to(lambda module, name: print(f"compiling {module}.{name}")):
        predict(plan, device)

A function that is loaded from the cache is not reported. This module does not import numba, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, str], None]
_reports: list[Report] = []


@contextmanager
def reports_to(report: Report) -> Iterator[None]:
    """Call ``report`` with module and name of each function before it is compiled, in whichever thread that happens."""
    _reports.append(report)
    try:
        yield
    finally:
        _reports.remove(report)


def report_compiling(module: str, name: str) -> None:
    """Notify all listeners that a function is about to be compiled."""
    for report in tuple(_reports):
        report(module, name)
