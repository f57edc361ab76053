"""How modules of the package depend on each other, also where only a type checker imports."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


def import_graph(src: Path) -> dict[str, set[str]]:
    """Return the modules below ``src`` that each of them imports, anywhere in its text.

    A package is what its ``__init__`` says; ``from package import name`` means ``package.name`` if that is a module.
    That importing a module runs its packages first is left out: Python allows it.
    """
    files = {".".join(path.relative_to(src).with_suffix("").parts): path for path in src.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found = graph.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                inner = {f"{module}.{alias.name}" for alias in node.names}
                found.update(inner & files.keys())
                found.update({module} if inner - files.keys() else ())
        graph[name] = found & files.keys() - {name}
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; none if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = import_graph(SRC)
    assert graph["interlace.planner.build"] >= {"interlace.plan.plan", "interlace.graph.graph"}
    assert cycle(graph) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("from house.b import B", "from house.a import A"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.b import B", "import house.a"),
        ("def f():\n    from house import b", "from .a import A"),
        ("from . import b", "from .a import A"),
    ],
)
def test_a_circle_is_found_wherever_it_is_closed(tmp_path: Path, a: str, b: str) -> None:
    (tmp_path / "house").mkdir()
    for name, text in (("__init__", ""), ("a", a), ("b", b)):
        (tmp_path / "house" / f"{name}.py").write_text(text)
    assert {"house.a", "house.b"} == set(cycle(import_graph(tmp_path)))


def test_the_numbers_of_gelu_stand_once() -> None:
    holders = {path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if "0.044715" in path.read_text()}
    assert holders == {"interlace/kernels/gelu.py"}


def test_the_forward_of_a_model_is_written_once_for_each_backend() -> None:
    """``models.llama`` builds the graph of a step."""
    folders = (SRC, *(SRC.parent / name for name in ("tests", "benchmarks", "examples")))
    texts = {path: path.read_text() for folder in folders for path in folder.rglob("*.py") if path != Path(__file__)}
    layer, activation = (
        re.compile(pattern) for pattern in (r"post_(norm|attention_layernorm)", r"silu\(|SILU\(|exp\(-")
    )
    holders = {path for path, text in texts.items() if layer.search(text) and activation.search(text)}
    assert holders == {SRC / "interlace/models" / f"{name}.py" for name in ("forward_numpy", "forward_torch", "llama")}
