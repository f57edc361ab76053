"""The API reference has every public name once, each with a docstring; the site's links are those of the repository."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import interlace

ROOT = Path(__file__).parents[2]
SITE: dict[str, Any] = runpy.run_path(str(ROOT / "docs/reference.py"))
PAGES: dict[str, str] = SITE["reference"]()


def list_names() -> list[str]:
    return [name for text in PAGES.values() for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def test_every_public_name_stands_once() -> None:
    names = list_names()
    assert len(names) == len(set(names))
    for package in ("interlace", "interlace.loops", "interlace.workloads", "interlace.tune"):
        module = importlib.import_module(package)
        public = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
        assert {f"{package}.{name}" for name in public} <= set(names)
    assert {"interlace.core.errors", "interlace.bench.timing", "interlace.loops.frontend.library"} <= set(names)


@pytest.mark.parametrize("package", ["interlace", "interlace.loops", "interlace.tune"])
def test_public_classes_and_functions_have_docstrings(package: str) -> None:
    module = importlib.import_module(package)
    found = {name: getattr(module, name) for name in module.__all__}
    bare = [
        name
        for name, thing in found.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and not (thing.__doc__ or "").strip()
    ]
    assert bare == []
    made = [name for name, thing in found.items() if (thing.__doc__ or "").startswith(f"{name}(")]  # by dataclass
    assert made == []


def test_what_the_reference_names_exists() -> None:
    for name in list_names():
        path = name.split(".")
        if path[:2] in (["interlace", "nn"], ["interlace", "device"]):
            continue  # need PyTorch and Triton
        place = interlace
        for at, part in enumerate(path[1:], 2):
            if not hasattr(place, part):
                importlib.import_module(".".join(path[:at]))
            place = getattr(place, part)


def test_the_first_page_links_every_other() -> None:
    links = set(re.findall(r"\]\((.+?)\)", PAGES["index.md"]))
    assert links == PAGES.keys() - {"index.md"}


def test_a_room_without_a_title_is_refused(tmp_path: Path) -> None:
    (tmp_path / "interlace").mkdir()
    (tmp_path / "interlace/api.py").write_text("from interlace.attic.box import Box\n__all__ = ['Box']\n")
    with pytest.raises(KeyError, match="attic"):
        SITE["reference"](tmp_path)


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("[a](docs/loops.md#rules)", "[a](loops.md#rules)"),
        ("[a](../README.md#install)", "[a](index.md#install)"),
        ("[a](../examples/01_two_copies.py)", "[a](examples/01_two_copies.py)"),
        ("[a](examples)", "[a](examples/index.md)"),
        ("[a](LICENSE)", "[a](LICENSE.md)"),
        ("[a](planner.md)", "[a](planner.md)"),
        ("[a](../benchmarks/notes/ffn.md#clusters)", "[a](notes/ffn.md#clusters)"),
        ("[a](../../docs/planner.md)", "[a](../planner.md)"),
    ],
)
def test_links_of_the_repository_are_links_of_the_site(link: str, on_the_site: str) -> None:
    assert SITE["site_links"](link) == on_the_site


def test_links_of_pages_lead_to_what_is_on_the_site() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    pages |= {name: (ROOT / origin).read_text() for name, origin in SITE["ADDED"].items()}
    there = {path.name for path in (ROOT / "docs").iterdir()} | pages.keys() | {"LICENSE.md", "examples/index.md"}
    there |= {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    there |= {f"notes/{path.name}" for path in (ROOT / "benchmarks/notes").glob("*.md")}
    links = {
        (name, link)
        for name, text in pages.items()
        for link in re.findall(r"\]\(([^()\s#]+)", SITE["site_links"](re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
        if "://" not in link and link not in there
    }
    assert links == set()


def test_the_site_is_built_from_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert listed == pages | set(SITE["ADDED"]) | {"reference/index.md", "notes/README.md"}
