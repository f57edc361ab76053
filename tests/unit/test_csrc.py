"""CUDA C++ headers: what the composition reads of them, and that they compile alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import interlace as il
from interlace import csrc
from interlace.bench.stream import _HEAD
from interlace.csrc import expand, include, read_header
from interlace.kernels.abi import SYNC, TABLES, TENSOR_MAP
from interlace.kernels.cuda.config import template_of
from interlace.kernels.cuda.preamble import ELEMENTS, WORDS
from interlace.megakernel.compose import build_launch_struct
from interlace.megakernel.constants import define_constants
from interlace.megakernel.dispatch import CODES, select_code
from tests.emulator.build import HERE, MISSING
from tests.emulator.translate import translate

from .csrc_ops import generated_of_ops, kernel_of

ROOT = Path(csrc.__file__).parent
#: What asm statements of ops name; all headers of a launch see it.
ELEMENT = '#define ELEMENT_PTX "bf16"\n'
SWITCHES = """
DEVICE void look_ahead(const Launch& launch, Item& item) {}
DEVICE void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {}
DEVICE void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {}
DEVICE void compute(const Launch& launch, const Item& item, Stage& stage) {}
"""
HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.cuh"))
ALONE = HEADERS
#: The emulator has no clusters.
EMULATED = [name for name in ALONE if "cluster" not in name or name == "cluster/alone.cuh"]
#: What a launch generates otherwise for some headers, by a part of their names.
UNLIKE = ("spawn", "cluster")


def launch(dispatch: il.Dispatch) -> str:
    """Constants and structs of a launch, with constants of all dispatches."""
    plan = il.build(il.workloads.one_matmul(8, 64, 64), il.Schedule(1))
    constants = il.MegakernelExecutor(plan, il.RunOptions("meta")).composition.source.partition("struct Queue")[0]
    constants += define_constants(
        {name: n for code in CODES for name, n in select_code(code, blocks=132).constants.items()}
    )
    return f'#include "semaphore.cuh"\n{constants}{CODES[dispatch].queue.source}{build_launch_struct(dispatch).source}'


def generate_headers() -> dict[str, str]:
    """Return what a launch generates, by header: structs of ``kernels/abi``, and constants."""
    return {
        "generated/tensor_map": TENSOR_MAP.source,
        "generated/tables": TABLES + WORDS.removesuffix(include("sentinel.cuh")),
        "generated/launch": launch(il.Dispatch.TICKET),
        "spawn/generated/launch": launch(il.Dispatch.SPAWN),
        "generated/cluster": '#include "cluster/alone.cuh"\n',
        "cluster/generated/cluster": '#include "cluster/cluster.cuh"\n',
        "generated/dispatch": '#include "dispatch/ticket.cuh"\nusing Tickets = TicketDispatch;\n',
        "generated/elements": f'#include "ptx.cuh"\n{ELEMENTS}',
        "generated/sync": SYNC.source,
        "generated/switches": f'#include "generated/dispatch.cuh"\n{SWITCHES}',
        "generated/stream": f'#include "ptx.cuh"\n{_HEAD}',
        **generated_of_ops(),
    }


def write_headers(folder: Path, form: Callable[[str], str]) -> None:
    """Write the headers in a form that a compiler takes, next to what a launch generates."""
    texts = {name: (ROOT / name).read_text() for name in HEADERS}
    texts |= {f"{name}.cuh": f"#pragma once\n{text}" for name, text in generate_headers().items()}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(form(text))


def errors_of(folder: Path, names: Sequence[str], *command: str) -> str:
    """Return what a compiler reports of headers, each in a source of its own."""
    errors = ""
    for name in names:
        source = folder / "alone.cu"
        source.write_text(f'#include "{name}"\n')
        own = [part for part in UNLIKE if part in name and name != "cluster/alone.cuh"]
        if name.startswith("ops/"):  # with the arguments of an op
            own = [kernel_of(name)]
        folders = [f"-I{folder / path}" for path in (*own, "")]
        done = subprocess.run([*command, *folders, source], capture_output=True, text=True, check=False)
        errors += done.stderr if done.returncode else ""
    return errors


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_each_header_compiles_alone_with_gcc(tmp_path: Path) -> None:
    write_headers(tmp_path, lambda text: translate(f"{ELEMENT}{text}"))
    command = ["g++", "-xc++", "-std=c++20", "-fsyntax-only", "-w", f"-I{HERE}", "-include", "cuda.h"]
    assert errors_of(tmp_path, EMULATED, *command) == ""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_each_header_compiles_alone_with_nvcc(tmp_path: Path) -> None:
    write_headers(tmp_path, str)
    assert errors_of(tmp_path, ALONE, "nvcc", "-std=c++17", "-arch=sm_90a", "-w", "-ptx", "-o", "/dev/null") == ""


def test_the_text_of_a_header_begins_after_its_includes() -> None:
    assert read_header("ring/plain.cuh").startswith("\nconstexpr int THREADS")
    assert "#include" not in read_header("ops/matmul/matmul.cuh")


def test_every_header_says_what_it_is() -> None:
    for name in HEADERS:
        assert (ROOT / name).read_text().startswith("// ")
        assert read_header(name).startswith("\n")


def test_a_source_has_each_header_once_after_those_that_it_includes() -> None:
    source = "int a;\n" + include("ring/passage.cuh") + "int b;\n" + include("ring/ring.cuh") + "int c;\n"
    text = expand(source, "mine.cu")
    order = ("ptx.cuh", "semaphore.cuh", "sentinel.cuh", "ring/ring.cuh", "ring/passage.cuh")
    assert tuple(re.findall(r'^#line \d+ "(.*\.cuh)"$', text, re.MULTILINE)) == ("offsetof.cuh", *order)
    assert re.findall(r'^#line (\d+) "mine.cu"\nint (\w);$', text, re.MULTILINE) == [("4", "b"), ("7", "c")]
    assert "#include" not in text


def test_lines_of_a_header_keep_their_numbers() -> None:
    for name in HEADERS:
        _, line, text = re.split(rf'^#line (\d+) "{name}"\n', expand(include(name)), flags=re.MULTILINE)
        lines = (ROOT / name).read_text().split("\n")[int(line) - 1 :]
        if "#include" not in "".join(lines):  # fragments have no lines of their own
            assert text.split("\n")[: len(lines) - 1] == lines[:-1]


def test_headers_of_a_source_that_precedes_are_not_repeated() -> None:
    text = expand(include("sentinel.cuh"), after=include("semaphore.cuh"))
    assert re.findall(r'"(.*\.cuh)"', text) == ["sentinel.cuh"]
    assert expand(include("semaphore.cuh"), "mine.cu", after=include("semaphore.cuh")) == '\n#line 3 "mine.cu"\n'


def test_line_directives_and_other_includes_of_a_source_stay() -> None:
    source = '#line 7 "theirs.cu"\n#include "theirs.h"\n#include <cuda.h>\n' + include("offsetof.cuh") + "int a;\n"
    text = expand(source)
    assert text.startswith('#line 7 "theirs.cu"\n#include "theirs.h"\n#include <cuda.h>\n\n#line 3 "offsetof.cuh"\n')
    assert text.endswith('#line 11 "theirs.cu"\nint a;\n')


def test_a_header_of_ops_stands_in_each_namespace_that_includes_it() -> None:
    source = f"namespace a {{\n{include('ops/rows.cuh')}}}\nnamespace b {{\n{include('ops/rows.cuh')}}}\n"
    assert expand(source).count(read_header("ops/rows.cuh")) == 2


def test_a_config_names_what_is_not_zero_and_defines_all() -> None:
    name, text = template_of("Matmul", {"BM": 16, "SWAP_AB": True, "BIAS": False, "NORM_K": 0, "EPS": 1e-05})
    assert name == "Matmul_BM16_SWAP_AB_EPS9p99999975em06"
    assert text == (
        f"struct {name}_Config {{ static constexpr int BM = 16; static constexpr bool SWAP_AB = true; "
        "static constexpr bool BIAS = false; static constexpr int NORM_K = 0; "
        f"static constexpr float EPS = 9.999999747378752e-06f; }}; typedef Matmul<{name}_Config> {name};\n"
    )


@pytest.mark.parametrize(("one", "other"), [(1e-05, 1e05), (1e-05, 1.0000001e-05), (1, 10), (True, False)])
def test_configs_of_unlike_parameters_have_unlike_names(one: float, other: float) -> None:
    (first, _), (second, _) = (template_of("Tile", {"A": value}) for value in (one, other))
    assert first != second
