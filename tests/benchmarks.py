"""Scripts of ``benchmarks``, for tests."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def load_script(name: str) -> dict[str, Any]:
    """Return the names that a script defines; it may import its neighbours."""
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        return runpy.run_path(str(BENCHMARKS / f"{name}.py"))
