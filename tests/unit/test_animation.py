"""The animated game of the studio page is what its script makes: small, no scripts, with the loads of both orders."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

DOCS = Path(__file__).parents[2] / "docs"


def test_the_animation_is_made_by_its_script_and_ends_at_the_loads_of_both_orders() -> None:
    text = runpy.run_path(str(DOCS / "animation.py"))["animated"]()
    assert (DOCS / "game.svg").read_text() == text
    assert len(text) < 300_000
    root = ElementTree.fromstring(text)
    assert "row loads 17, serpentine loads 11" in (root.findtext("{*}title") or "")
    assert not re.search(r"<script|href|javascript|url\(", text)
    for animation in root.iter("{http://www.w3.org/2000/svg}animate"):
        times = [float(time) for time in animation.get("keyTimes", "").split(";")]
        assert times[0] == 0
        assert times == sorted(set(times))
        assert times[-1] < 1
        assert len(times) == len(animation.get("values", "").split(";"))
