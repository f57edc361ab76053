"""The suite is run with versions that pyproject.toml admits, the oldest and the newest of them too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
ADMITTED = {r.name: r.specifier for group in GROUPS for r in map(Requirement, group)}


def read_pins(name: str) -> dict[str, Version]:
    text = (ROOT / "constraints" / f"{name}.txt").read_text()
    return {m[1]: Version(m[2]) for m in re.finditer(r"^([\w-]+)==(\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", ["tested", "oldest", "newest"])
def test_every_pin_lies_within_the_range_of_its_package(name: str) -> None:
    for package, version in read_pins(name).items():
        assert version in ADMITTED[package], package


def test_the_oldest_are_the_least_that_is_admitted() -> None:
    least = {
        name: Version(bound.version) for name, some in ADMITTED.items() for bound in some if bound.operator == ">="
    }
    oldest = read_pins("oldest")
    for name, bound in least.items():
        assert oldest[name].release[: len(bound.release)] == bound.release, name


def test_tools_without_a_least_version_are_the_tested_ones_everywhere() -> None:
    tested = read_pins("tested")
    unbound = {name: tested[name] for name, some in ADMITTED.items() if name in tested and not some}
    for name in ("oldest", "newest"):
        assert unbound.items() <= read_pins(name).items(), name
    assert set(read_pins("oldest")) == set(tested)
    newest = {name: version for name, version in read_pins("newest").items() if name not in ("torch", "triton")}
    assert newest.items() <= tested.items()


def test_all_else_that_is_installed_by_name_is_pinned() -> None:
    assert set(read_pins("tested")) == set(ADMITTED) - {"interlace"}


def test_launches_are_compiled_with_the_oldest_and_the_newest_triton() -> None:
    (compiled,) = re.findall(r"^TRITONS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert compiled.split() == [str(read_pins(name)["triton"]) for name in ("oldest", "newest")]
