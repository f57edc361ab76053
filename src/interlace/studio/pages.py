"""Files of the page, read once: no requested name reaches the file system.

A page is a file of ``page/parts`` in four sections: ``intro`` next to its title, ``body``, and ``keys`` and ``notes``
of its list of keyboard shortcuts. ``frame.html`` there has the parts that all pages share. Parts that some pages share
are files that these pages include.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SECTION = re.compile(r"<!-- (intro|body|keys|notes) -->\n")
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:(?:async )?function\*?|class|const) ([\w$]+)", re.MULTILINE)
_INCLUDE = re.compile(r"<!-- include (\w+) -->\n")


@dataclass(frozen=True)
class Page:
    """A page: the stem of its file, its name in links, and its script."""

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
    """File that the server sends."""

    content: bytes
    type: str


def load_assets() -> dict[str, Asset]:
    """Return every file by its name."""
    found = {f"{page.name}.html": Asset(_assemble_page(page).encode(), "text/html") for page in PAGES}
    for entry in _find_folder().iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind:
            found[entry.name] = Asset(entry.read_bytes(), kind)
    return found


def inline_page(page: Page) -> str:
    """Return a page as one text that requests no file and has no links to other pages, for a frame in a notebook."""
    style = _find_folder().joinpath("style.css").read_text("utf-8")
    head = f'<style>{style}</style>\n<script type="module">\n{bundle_scripts("help.js", page.script)}</script>'
    return _fill_frame(page, head, "")


def bundle_scripts(*names: str) -> str:
    """Return ES modules of the page and all their imports as one text, each a block that returns its exports.

    import { ask as get } from "./api.js";      -->     const { ask: get } = modules["api.js"];
    export const many = ...                     -->     const many = ...   and many in modules["shapes.js"]
    """
    found: dict[str, str] = {}

    def add(name: str) -> None:
        text = _find_folder().joinpath(name).read_text("utf-8")
        for _, imported in _IMPORT.findall(text):
            if imported not in found:
                add(imported)
        exports = ", ".join(_EXPORT.findall(text))
        body = _EXPORT.sub(lambda match: match[0].removeprefix("export "), text)
        body = _IMPORT.sub(lambda match: f'const {{{match[1].replace(" as ", ": ")}}} = modules["{match[2]}"];', body)
        found[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n'

    for name in names:
        if name not in found:
            add(name)
    return "const modules = {};\n" + "".join(found.values())


def _assemble_page(page: Page) -> str:
    scripts = [f'<script type="module" src="/{name}"></script>' for name in ("help.js", page.script)]
    icon, style = '<link rel="icon" href="/icon.svg">', '<link rel="stylesheet" href="/style.css">'
    return _fill_frame(page, "\n".join([icon, style, *scripts]), "".join(_format_link(other, page) for other in PAGES))


def _fill_frame(page: Page, head: str, links: str) -> str:
    parts = _find_folder().joinpath("parts")

    def text(name: str) -> str:
        return _INCLUDE.sub(lambda found: text(found[1]), parts.joinpath(f"{name}.html").read_text("utf-8"))

    _, *named = _SECTION.split(text(page.name))
    sections = {name: section.strip() for name, section in zip(named[::2], named[1::2], strict=True)}
    title = "Interlace studio" if page.name == "index" else f"{page.label}: Interlace studio"
    return Template(text("frame")).substitute(sections, title=title, head=head, links=links)


def _format_link(to: Page, page: Page) -> str:
    address = "/" if to.name == "index" else f"/{to.name}.html"
    here = ' aria-current="page"' if to is page else ""
    return f'<a href="{address}"{here}>{to.label}</a>'


def _find_folder() -> Traversable:
    return files("interlace.studio").joinpath("page")
