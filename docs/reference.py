"""Pages of the site that are not in docs/: the files that docs/ links to, the notes, and the API reference.

A hook of mkdocs. The reference is a page for each room of the package with the names that ``interlace`` exports from
it, and one for each public module in ``MODULES``. It is read from the text of the package: nothing is imported, so
that neither PyTorch nor a GPU is needed to build it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
#: Files of the root that the site adds, by their name there.
ADDED = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
#: Rooms whose names ``interlace`` exports, and the titles of their pages.
ROOMS = {
    "graph": "Graphs",
    "kernels": "Kernels and ops",
    "policies": "Schedules, policies, orders and splits",
    "plan": "Plans and proofs",
    "planner": "Plans from schedules",
    "deploy": "Planning for an executor",
    "executors": "Executors",
    "megakernel": "Options of a run",
    "trace": "Traces",
    "sim": "Executors, simulated",
    "core": "Devices and dtypes",
}
#: Modules that users import by themselves, or as an attribute of ``interlace``.
MODULES = {
    "workloads": "Workloads",
    "loops": "Kernels of loops",
    "loops.frontend.library": "Kernels of loops: examples",
    "nn": "Modules of PyTorch",
    "nn.decoder.decoder": "Decoders",
    "device": "Waits and posts in your own Triton kernels",
    "streams": "Streams",
    "planner.explain": "Why a plan won",
    "planner.bounds": "Lower bounds on traffic",
    "tune": "Measured search",
    "studio": "The studio in a notebook",
    "bench.timing": "Benchmarks: timing",
    "bench.record": "Benchmarks: records",
    "core.errors": "Errors",
    "core.loop_errors": "Errors of kernels of loops",
    "core.launch_errors": "Errors of runs on a device",
}


def reference(src: Path = SRC) -> dict[str, str]:
    """The Markdown of each page of the reference, by its file's name.

    Raises:
        KeyError: a name that ``interlace`` exports is of a room that has no title.
    """
    package, listed = src / "interlace", {room: [f"# {title}"] for room, title in ROOMS.items()}
    for name, origin in _exports(package / "api.py").items():
        if f"{origin}.{name}".removeprefix(".") not in MODULES:
            listed[origin.partition(".")[0]].append(f"::: interlace.{name}")
    for module, title in MODULES.items():
        page = listed[module.replace(".", "-")] = [f"# {title}", f"`interlace.{module}`"]
        path = package.joinpath(*module.split("."))
        if path.is_dir():
            exported = _exports(path / "__init__.py").items()
            names = [n for n, origin in exported if f"{origin}.{n}" not in MODULES]
            page += [f"::: interlace.{module}.{name}" for name in names]
        else:
            page.append(f"::: interlace.{module}")
    links = (f"- [{parts[0].removeprefix('# ')}]({name}.md)" for name, parts in listed.items())
    listed["index"] = ["# API reference", "Every public name, from its docstring.", "\n".join(links)]
    return {f"{name}.md": "\n\n".join(parts) + "\n" for name, parts in listed.items()}


def _exports(init: Path) -> dict[str, str]:
    """The names in ``__all__`` of a package, each with the module that it comes from, below ``interlace``.

    What the package defines itself comes from ``__init__``.
    """
    tree = ast.parse(init.read_text(encoding="utf-8"))
    origin = {
        alias.asname or alias.name: (node.module or "").removeprefix("interlace").removeprefix(".")
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (exported,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return {name: origin.get(name, "__init__") for name in exported}


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: add pages, and the examples as they are."""
    from mkdocs.structure.files import File

    texts = {f"reference/{name}": text for name, text in reference().items()}
    texts |= {name: (ROOT / origin).read_text(encoding="utf-8") for name, origin in ADDED.items()}
    texts |= {f"examples/{path.name}": path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}
    notes = (ROOT / "benchmarks/notes").glob("*.md")
    texts |= {f"notes/{path.name}": path.read_text(encoding="utf-8") for path in notes}
    texts["examples/index.md"] = _listed(path.name for path in sorted((ROOT / "examples").glob("[0-9]*.py")))
    texts["LICENSE.md"] = f"# Licence\n\n```text\n{(ROOT / 'LICENSE').read_text(encoding='utf-8')}```\n"
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs: links as they are in the repository, turned into links of the site."""
    return site_links(markdown)


def site_links(markdown: str) -> str:
    """Turn ``docs/loops.md`` into ``loops.md``, ``../README.md`` into ``index.md``: only notes have a folder."""
    for pattern, by in (
        (r"\]\((?:\.\./)?benchmarks/notes/", "](notes/"),
        (r"\]\((?:docs|\.\.)/(?!\.\.)", "]("),
        (r"\]\(\.\./\.\./docs/", "](../"),
        (r"\]\(README\.md", "](index.md"),
        (r"\]\(examples/?\)", "](examples/index.md)"),
        (r"\]\(LICENSE\)", "](LICENSE.md)"),
    ):
        markdown = re.sub(pattern, by, markdown)
    return markdown


def _listed(names: Iterable[str]) -> str:
    return "# Examples\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
