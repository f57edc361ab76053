"""CUDA C++ headers: what the composition reads of them, and that they compile alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from interlace import csrc
from interlace.bench.stream import _HEAD
from interlace.csrc import read_header
from interlace.kernels.abi import SYNC, TABLES, TENSOR_MAP
from interlace.kernels.bodies import Cluster
from interlace.kernels.cuda.elements import ELEMENTS
from interlace.kernels.primitives.tagged_cuda import LL_WAIT
from interlace.kernels.primitives.words_cuda import EMPTY_BYTE
from interlace.megakernel.compose import build_launch_struct
from interlace.megakernel.dispatch import EMPTY, MAX_HELD_ITEMS, generate_constants, select_queue_struct
from interlace.megakernel.spawn import _CONSTANTS
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import Stealing
from tests.emulator.build import HERE, MISSING
from tests.emulator.translate import translate

ROOT = Path(csrc.__file__).parent
#: Constants of a launch; any will do.
LAUNCH = """
constexpr int STAGES = 4, WARPGROUPS = 2, TICKETS = 4, PREFETCH_BYTES = 8192, LOAD_BYTES = 4096;
constexpr int HEADER_BYTES = 0, RING_BYTES = 49152, SCRATCH_BYTES = 1024, RESIDENT_BYTES = 16, OPERAND_BYTES = 128;
constexpr int IN_FLIGHT_BYTES = 32768, CONSUMER_REGISTERS = 224, LOADER_REGISTERS = 56, KEEPS = 1 << 16;
constexpr int LEAVES_SUMS = 1 << 17, AGAIN = 1 << 18, LAST = 1 << 19, ENDED = 2, MISCOUNTED = -8, UNFINISHED = -9;
constexpr int KEPT = 3, DEPENDENT_LAUNCH = 1, CLAIMS_AHEAD = 0;
extern __shared__ __align__(1024) unsigned char shared_memory[];
#define SHARED_BASE shared_address(shared_memory)
"""
SWITCHES = """
DEVICE void look_ahead(const Launch& launch, Item& item) {}
DEVICE void prefetch(const Launch& launch, const Item& item, Stage& stage, int& n, Tickets& tickets) {}
DEVICE void load(const Launch& launch, const Item& item, int k_lo, int k_hi, Stage& stage) {}
DEVICE void compute(const Launch& launch, const Item& item, Stage& stage) {}
"""
HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.cuh"))
#: Without tiles of ops, which take the arguments and constants of an op, and without tickets of clusters, which take
#: other hooks of the ring.
ALONE = [name for name in HEADERS if not name.startswith("ops/") and name != "dispatch/cluster_ticket.cuh"]
#: The emulator has no clusters.
EMULATED = [name for name in ALONE if name != "cluster/cluster.cuh"]


def generated() -> dict[str, str]:
    """What a launch generates, by header: structs of ``kernels/abi``, and constants."""

    def head(of: dict[str, int]) -> str:
        return "".join(f"constexpr int {name} = {value};\n" for name, value in of.items())

    def launch(dispatch: Dispatch) -> str:
        structs = select_queue_struct(dispatch).source + build_launch_struct(dispatch).source
        return f'#include "semaphore.cuh"\n{LAUNCH}{structs}'

    return {
        "generated/tensor_map": TENSOR_MAP.source,
        "generated/tables": f"{TABLES}constexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;\n",
        "generated/launch": launch(Dispatch.TICKET),
        "spawn/generated/launch": launch(Dispatch.SPAWN),
        "generated/clusters": f'#include "generated/launch.cuh"\n'
        f"enum {{ CLUSTER_ROWS = 2, CLUSTER_COLUMNS = 1, CLUSTER = {Cluster(2, 1).blocks} }};\n",
        "generated/late": f"constexpr int HELD = {MAX_HELD_ITEMS};\nconstexpr bool LAST_ALONE = false;\n",
        "generated/empty": f"enum {{ EMPTY = {EMPTY} }};\n",
        "generated/stealing": head(generate_constants(Dispatch.STEALING, Stealing(), 132)),
        "generated/dispatcher": head(generate_constants(Dispatch.DISPATCHER, Stealing(), 132)),
        "generated/elements": f'#include "ptx.cuh"\n{ELEMENTS}',
        "generated/sync": SYNC.source,
        "generated/switches": f'#include "dispatch/ticket.cuh"\n{SWITCHES}',
        "generated/stream": f'#include "ptx.cuh"\n{_HEAD}',
        "generated/words": f"constexpr int AWAITED_WORDS = {LL_WAIT};\n",
        "generated/spawn": _CONSTANTS,
    }


def write_headers(folder: Path, form: Callable[[str], str]) -> None:
    """Write the headers in a form that a compiler takes, next to what a launch generates."""
    texts = {name: (ROOT / name).read_text() for name in HEADERS}
    texts |= {f"{name}.cuh": f"#pragma once\n{text}" for name, text in generated().items()}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(form(text))


def errors_of(folder: Path, names: Sequence[str], *command: str) -> str:
    """What a compiler says of headers, each in a source of its own."""
    errors = ""
    for name in names:
        source = folder / "alone.cu"
        source.write_text(f'#include "{name}"\n')
        queue = [f"-I{folder}/spawn"] if "spawn" in name else []  # spawn dispatch has a queue of its own kind
        done = subprocess.run([*command, *queue, f"-I{folder}", source], capture_output=True, text=True, check=False)
        errors += done.stderr if done.returncode else ""
    return errors


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_each_header_compiles_alone_with_gcc(tmp_path: Path) -> None:
    write_headers(tmp_path, translate)
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
    assert "DEVICE static bool closes(" in read_header("ops/matmul/matmul.cuh")


def test_every_header_says_what_it_is() -> None:
    for name in HEADERS:
        assert (ROOT / name).read_text().startswith("// ")
        assert read_header(name).startswith("\n")
