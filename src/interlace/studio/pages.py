"""The files of the page, read once: no name that is asked for reaches the file system.

A page is a file of ``page/parts`` in four sections: ``intro`` beside its title, ``body``, and ``keys`` and ``notes`` of
its sheet of keys. What all pages repeat is ``frame.html`` there, and what some do is a file that they include.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SECTION = re.compile(r"<!-- (intro|body|keys|notes) -->\n")
_INCLUDE = re.compile(r"<!-- include (\w+) -->\n")


@dataclass(frozen=True)
class Page:
    """A page: the stem of its file, what links call it, and its script."""

    name: str
    label: str
    script: str


PAGES = (
    Page("index", "One product", "main.js"),
    Page("chain", "Two products", "chain.js"),
    Page("plan", "Plan", "plan.js"),
    Page("trace", "Timeline", "trace.js"),
    Page("records", "Records", "records.js"),
)


@dataclass(frozen=True)
class Asset:
    """A file that the server answers with."""

    content: bytes
    type: str


def assets() -> dict[str, Asset]:
    """Every file by its name."""
    found = {f"{page.name}.html": Asset(_assembled(page).encode(), "text/html") for page in PAGES}
    for entry in _folder().iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind:
            found[entry.name] = Asset(entry.read_bytes(), kind)
    return found


def _assembled(page: Page) -> str:
    parts = _folder().joinpath("parts")

    def text(name: str) -> str:
        return _INCLUDE.sub(lambda found: text(found[1]), parts.joinpath(f"{name}.html").read_text("utf-8"))

    _, *named = _SECTION.split(text(page.name))
    sections = {name: section.strip() for name, section in zip(named[::2], named[1::2], strict=True)}
    links = "".join(_link(other, page) for other in PAGES)
    title = "Interlace studio" if page.name == "index" else f"{page.label}: Interlace studio"
    return Template(text("frame")).substitute(sections, title=title, script=page.script, links=links)


def _link(to: Page, page: Page) -> str:
    address = "/" if to.name == "index" else f"/{to.name}.html"
    here = ' aria-current="page"' if to is page else ""
    return f'<a href="{address}"{here}>{to.label}</a>'


def _folder() -> Traversable:
    return files("interlace.studio").joinpath("page")
