"""Examples run without arguments, under the interpreter and on the base install; so does code in the docs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .programs import ROOT, TIMEOUT_S, command, environment, run

EXAMPLES = ROOT / "examples"

#: What stands in the output of each example, on any machine.
EVERYWHERE = {
    "01_two_copies.py": [
        "op 'second', tile (1, 3) reads y[64:128, 96:128] and so depends (RAW) on",
        "proof: 16 dependencies enforced, 16 of them by waits",
        "CoverageError: op 'second', tile (1, 3) reads y[64:128, 96:128], which op 'first', tile (2, 1)",
        "reference, random interleaving   z == x",
    ],
    "02_two_matmuls.py": [
        "first: 4 x 4 tiles, each a reduction of 2 chunks",
        "TileSync()              RowMajor, OpAfterOp                     16      8      32      2       0",
        "BatchedRowSync(rows=2)  Serpentine, RowPanels                    2      8       8      2      61",
        "KernelSync()            RowMajor, OpAfterOp                      1      8       8      2      53",
    ],
    "03_your_own_kernel.py": [
        "tiles of scale that a tile of blur needs: [2, 3, 4]",
        "blur: the body touches what its access maps declare",
        "without the halo, FootprintError: op 'blur', tile (0, 0)",
    ],
    "04_place_your_own_waits.py": [
        "13 tiles, 10 semaphores, 10 dependencies, all by waits",
        "reference: largest error 0.0e+00",
    ],
    "05_swap_into_llama.py": ["a Llama with hidden width 256, FFN width 512, 2 layers"],
    "06_row_sums_as_loops.py": [
        "rewritten means the same: True",
        "no hazard in 1181 events",
        "reads  x: y[16*t0 : 16*t0 + 16, :]",
        "3 dependencies enforced: a block of sums waits for one block of scale",
        "as ops of a graph, right: True",
        "no Hopper GPU here: not compiled, not run",
    ],
    "07_matmul_as_loops.py": [
        "rewritten means the same: True",
        "no hazard in 3367 events",
        "no Hopper GPU here: not compiled, not run",
    ],
    "08_text_of_your_own.py": [
        "no race, provided that op 'norm' touches what its access maps say, which is not proved",
        "reference, random interleaving: error",
        "not run here:",
    ],
    "09_generate.py": ["a small model with random weights"],
    "10_loops_in_one_launch.py": [
        "next stage: h_tile, gate_tile\n        gate_tile = tma load gate[",
        "no race, provided that op 'scale' touches what its access maps say, which is not proved",
        "reference, random interleaving: error",
        "not run here:",
    ],
}
#: What stands there besides if there is a device; kernels of loops need a GPU.
ON_A_DEVICE = {
    "01_two_copies.py": [
        "on cpu:",
        "cuda_graph",
        "semaphore_streams",
        "persistent, ticket",
        "persistent, static",
    ],
    "02_two_matmuls.py": ["on cpu, worst", "cuda_graph", "semaphore_streams", "persistent, ticket"],
    "03_your_own_kernel.py": [
        "on cpu, largest",
        "pdl",
        "semaphore_streams",
        "persistent, ticket",
        "reads y[16:17, 0:16]",
    ],
    "04_place_your_own_waits.py": [
        "own kernels on cpu, run 2: largest error",
        "HangError: op 'largest', tile (0) (item 10) waited for semaphore 3 to reach 1 posts and saw 0",
        "op 'prefix sums', tile (3) never posted",
        "the next run: largest error",
    ],
    "05_swap_into_llama.py": [
        "swapped 2 feed-forward networks",
        "48 tokens run in PyTorch's own ops: tensors are on a device of type 'cpu'",
        "FallbackWarning: this FFN runs as plain PyTorch: tensors are on a device of type 'cpu'",
        "on cpu, logits differ by",
    ],
    "06_row_sums_as_loops.py": [],
    "07_matmul_as_loops.py": [],
    "08_text_of_your_own.py": [],
    "09_generate.py": [
        "PyTorch's own ops: tensors are on a device of type 'cpu'",
        "3 prompts, 2 slots: [6, 6, 6] tokens",
        "each as if alone: True",
        "slot 1 holds 2 tokens, 1 is free",
    ],
    "10_loops_in_one_launch.py": [],
}

BLOCK_GPU_STACK = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"{name} is not a base dependency", name=name)
        return None


sys.meta_path.insert(0, Blocker())
"""


def output_of(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_example_is_numbered_and_tested() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")} - {"machine.py"}
    assert names == set(EVERYWHERE) == set(ON_A_DEVICE)
    assert sorted(name[:2] for name in names) == [f"{n:02}" for n in range(1, len(names) + 1)]


@pytest.mark.parametrize("name", [name for name in EVERYWHERE if name.endswith("_as_loops.py")])
def test_kernels_of_loops_start_in_two_imports(name: str) -> None:
    imports = re.findall(r"^(?:import|from) interlace.*$", (EXAMPLES / name).read_text(), re.MULTILINE)
    assert imports == ["import interlace as il", "from interlace import loops"]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_an_example_runs_under_the_interpreter(name: str) -> None:
    output = output_of(run(EXAMPLES / name))
    missing = [line for line in EVERYWHERE[name] + ON_A_DEVICE[name] if line not in output]
    assert missing == [], output


@pytest.mark.parametrize("name", EVERYWHERE)
def test_an_example_runs_without_torch_and_triton(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCK_GPU_STACK)
    alone = command(str(EXAMPLES / name))
    bare = environment(tmp_path, interpret="1")
    output = output_of(subprocess.run(alone, capture_output=True, text=True, timeout=TIMEOUT_S, env=bare, check=False))
    assert [line for line in EVERYWHERE[name] if line not in output] == [], output
    if ON_A_DEVICE[name]:
        assert "torch and triton" in output
    assert [line for line in ("semaphore_streams", "on cpu") if line in output] == []


BLOCK = re.compile(
    r"(?:^\*Needs (?P<needs>[^*]+)\*\n\n)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "*Needs " in path.read_text()]


def needs(block: re.Match[str]) -> str:
    """Return what a block needs, as its page names it."""
    line = block["needs"] or "nothing"
    for kind in ("a model file", "a GPU", "Triton compiles", "PyTorch", "nothing"):
        if kind in line:
            return kind
    raise AssertionError(line)


def blocks_of(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_needs_triton_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """A page's blocks are one program; a block for the compiler stands alone, the others interpret."""
    blocks = [b for b in blocks_of(page) if needs(b) not in ("a GPU", "a model file")]
    programs = [
        ("1", [b for b in blocks if needs(b) != "Triton compiles"]),
        *(("0", [b]) for b in blocks if needs(b) == "Triton compiles"),
    ]
    for interpret, program in programs:
        script = tmp_path / "page.py"
        script.write_text("\n".join(b["code"] for b in program))
        shown = "".join(b["output"] or "" for b in program)
        assert output_of(run(script, interpret=interpret)) == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_needs_the_compiler_says_so_under_the_interpreter(page: Path, tmp_path: Path) -> None:
    """The error repeats the line above the code, in one line, where the code would otherwise fail inside Triton."""
    for block in blocks_of(page):
        if needs(block) == "Triton compiles":
            assert "Python started without `TRITON_INTERPRET=1`" in block["needs"]
            script = tmp_path / "page.py"
            script.write_text(block["code"])
            process = run(script)
            assert process.returncode == 1
            assert process.stderr.splitlines()[-1] == (
                "interlace.core.errors.NoDeviceError: device 'meta' needs Triton as a compiler; start Python without "
                "TRITON_INTERPRET=1, or use device='cpu'"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_with_several_blocks_says_that_they_continue_each_other(page: Path) -> None:
    if len([b for b in blocks_of(page) if needs(b) != "Triton compiles"]) > 1:
        assert re.search(r"code blocks (on|of) this page continue each other", page.read_text(), re.IGNORECASE)
