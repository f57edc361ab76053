"""The sdist and the wheel that an index would get: built without a network, installed in a fresh environment, run."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The name of every folder of a sdist, and how the names of its files begin.
STEM = f"{PROJECT['name']}-{PROJECT['version']}"

#: Imports the package from where it was installed, and reads what is no Python.
READ = """
import importlib.metadata, importlib.resources, pkgutil, sys
import interlace, interlace.csrc, interlace.loops, interlace.orders.exact, interlace.tune
assert "DEVICE" in interlace.csrc.read_header("ptx.cuh")
assert interlace.__file__.startswith(sys.prefix), interlace.__file__
typed = importlib.resources.files("interlace").joinpath("py.typed").is_file()
print(importlib.metadata.version("interlace"), interlace.H200.sms, interlace.H100.sms, typed)
"""


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    """The standard output of a command that must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))} | more
    process = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def build(source: Path, target: str, folder: Path, builder: Mapping[str, str]) -> Path:
    """Build a sdist or a wheel of a folder with what is installed here."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source, **builder)
    (made,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel that is built of nothing but the sdist."""
    hatchling = pytest.importorskip("hatchling")
    builder = {"PYTHONPATH": str(Path(hatchling.__file__).parents[1])}
    folder = tmp_path_factory.mktemp("dist")
    sdist = build(ROOT, "sdist", folder, builder)
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 is the first of its line that knows filters, and 3.12 warns without one.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return sdist, build(folder / STEM, "wheel", folder, builder)


def test_the_sdist_has_what_its_tests_and_pages_need_and_nothing_of_a_working_copy(
    distributions: tuple[Path, Path],
) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = {name.removeprefix(f"{STEM}/") for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "mkdocs.yml", "constraints/tested.txt"}
    wanted |= {".clang-format"}
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")}
    assert (wanted | pages | {"tests/unit/test_distribution.py", "src/interlace/py.typed"}) - names == set()
    assert {name.partition("/")[0] for name in names} & {".venv", ".git", "build", "dist"} == set()
    assert [name for name in names if "__pycache__" in name or "_cache/" in name] == []


def test_the_wheel_has_the_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    package = ROOT / "src/interlace"
    files = {
        f"interlace/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"{STEM}.dist-info/")}
    assert names == files
    assert {"interlace/py.typed", "interlace/core/devices/h200.toml", "interlace/csrc/ptx.cuh"} <= names


def test_a_fresh_environment_runs_the_wheel(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    """It sees the dependencies that are installed here, but not this checkout."""
    fresh = tmp_path / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=tmp_path)
    python, command = fresh / "bin/python", fresh / "bin/interlace"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        distributions[1],
        cwd=tmp_path,
    )
    (site,) = fresh.glob("lib/python*/site-packages")
    here = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site / "here.pth").write_text("\n".join(here))

    assert run(command, "--version", cwd=tmp_path).split()[-1] == PROJECT["version"]
    assert run(python, "-c", READ, cwd=tmp_path).split() == [PROJECT["version"], "132", "132", "True"]
    shown = run(command, "run", "two-copies", "--m", "64", "--n", "64", "--executor", "reference", cwd=tmp_path)
    assert "reference" in shown
    assert "verified plan" in shown


def test_the_page_of_the_package_says_what_the_project_is(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        page = email.message_from_bytes(wheel.read(f"{STEM}.dist-info/METADATA"))
    described = page.get_payload()
    assert page["Description-Content-Type"] == "text/markdown"
    assert isinstance(described, str)
    assert described.strip() == (ROOT / "README.md").read_text().strip()
    kinds = page.get_all("Classifier", [])  # hatchling refuses those that no index knows
    least = re.sub(r"[^\d.]", "", PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {least}" in kinds
    assert {"Operating System :: POSIX :: Linux", "Environment :: GPU :: NVIDIA CUDA", "Typing :: Typed"} <= set(kinds)
