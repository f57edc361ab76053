"""No executor knows a column by its number."""

from __future__ import annotations

import json

from ..permuted import run_permuted
from .table_probe import probe


def test_executors_are_right_whatever_the_order_of_the_columns() -> None:
    """Outputs, traces and the watchdog's record are those of the table as it is."""
    code = "import json\nfrom tests.interpret.table_probe import probe\nprint(json.dumps(probe()))"
    found = json.loads(run_permuted(code))
    assert found == json.loads(json.dumps(probe()))
    assert found["hang"][2] > found["hang"][3] >= 0
