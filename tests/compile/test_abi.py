"""Compilers see the layout that the host fills, and the primitives work in any launch."""

from __future__ import annotations

import re

import pytest

from interlace.core.errors import CompileError
from interlace.csrc import expand
from interlace.kernels.abi import ITEM, SYNC, TABLES, WAIT
from interlace.kernels.copy.triton import copy_tile
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.cuda.preamble import SEMAPHORES
from interlace.kernels.cuda.ptx import PTX
from interlace.kernels.templates import gate_kernel, grid_kernel, persistent_static_kernel, persistent_ticket_kernel

from ..permuted import run_permuted
from ..unit.test_abi import NESTED, OPERANDS

KERNEL = 'extern "C" __global__ void nothing() {}\n'


def test_nvrtc_sees_the_same_structs_and_refuses_any_other_layout() -> None:
    compile_source(TABLES + SYNC.source + OPERANDS.source + NESTED.source + KERNEL, "layouts", preamble=PTX)
    for struct, wrong in (
        (ITEM, ITEM.source.replace("  int op;\n  int i;\n", "  int i;\n  int op;\n")),
        (WAIT, WAIT.source.replace("__align__(16) ", "")),
        (SYNC, SYNC.source.replace("  int first;\n", "  long long first;\n")),
    ):
        assert wrong != struct.source
        with pytest.raises(CompileError, match="static assertion failed"):
            compile_source(TABLES * (struct is SYNC) + wrong + KERNEL, "wrong", preamble=PTX)


def test_primitives_stand_alone_for_any_launch_that_has_their_fields() -> None:
    """The launch has other fields, 32-bit runs, and a warp that waits."""
    text = r"""
    struct Mine {
      int* semaphores;
      int* fault;
      Record* record;
      const WaitRow* waits;
      const ItemRow* items;
      unsigned long long timeout_ns, jitter_ns;
    };
    struct Item : ItemRow {
      unsigned run;
    };
    extern "C" __global__ void mine(const __grid_constant__ Mine launch) {
      const Item item = {load_row(launch.items + blockIdx.x), 3u};
      random_delay(launch, item, 2);
      await_posts(launch, item, load_row(launch.waits + item.wait_lo), threadIdx.x % 32, 32, 32);
      __syncthreads();
      if (threadIdx.x == 0) add_release(launch.semaphores + item.post);
    }"""
    binary = compile_source(text, "mine", preamble=PTX + SEMAPHORES)
    assert (binary.resources.spill_bytes, binary.warnings) == (0, ())
    for name in ("begin_item", "end_item", "struct Sync"):
        assert not re.search(rf"\b{name}\b", expand(PTX + SEMAPHORES))


def cache_keys() -> list[str]:
    """Return the cache key of a kernel that reads no table, and those of all kernels that read one."""
    launches = grid_kernel, gate_kernel, persistent_static_kernel, persistent_ticket_kernel
    return [kernel.cache_key for kernel in (copy_tile, *launches)]


def test_kernels_are_compiled_anew_when_a_column_moves() -> None:
    """Triton's cache key of a kernel depends on the table, and on the table only."""
    other = run_permuted("from tests.compile.test_abi import cache_keys\nprint(*cache_keys())").split()
    assert [a == b for a, b in zip(cache_keys(), other, strict=True)] == [True, False, False, False, False]
