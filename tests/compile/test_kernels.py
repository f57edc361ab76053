"""Every launch of every executor compiles for sm_90 without a GPU and keeps the memory order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

import interlace as il
from interlace.core.errors import ResourceError, ShapeError
from interlace.executors.launch import TritonLaunch
from interlace.kernels.lint import count_instructions, lint, run_ptxas
from interlace.plan.orderings import Ordering

from ..thorough import some

META = "meta"
TILE = il.MatmulTile(64, 64, 64, 3, 4)
TALL = il.MatmulTile(16, 64, 128, 4, 4, swap_ab=True, prefetch_bytes=65536)
LARGE = il.MatmulTile(128, 128, 64, 4, 8)
SMALL = il.MatmulTile(32, 32, 32, 3, 4)  # without tensor cores, compile time grows with the volume of the tile


def ffn(m: int, gated: bool, tile: il.MatmulTile, dtype: il.DType = il.bf16) -> il.Graph:
    shape = il.workloads.FFNShape(1024, 2048, il.Activation.SILU, gated)
    return il.workloads.ffn(m, shape, dtype, tile, tile)


GRAPHS = {
    "two-copies": il.workloads.two_copies(300, 400),
    "two-matmuls": il.workloads.two_matmuls(300, 400, 500, 600, il.fp16, TILE, TILE),
    "ffn-decode": ffn(16, False, TALL),
    "gated-ffn-decode": ffn(16, True, TALL),
    "gated-ffn": ffn(300, True, LARGE),
    "ffn-fp32": ffn(300, False, SMALL, il.fp32),
}

EXECUTORS = {
    "serial": (il.SerialExecutor, il.Schedule(132), il.RunOptions(META)),
    "pdl": (il.PdlExecutor, il.Schedule(132), il.RunOptions(META)),
    "semaphore_streams": (
        il.SemaphoreStreamsExecutor,
        il.Schedule(132, policy=il.RowSync()),
        il.RunOptions(META),
    ),
    "static": (il.PersistentExecutor, il.Schedule(132, il.Dispatch.STATIC), il.RunOptions(META)),
    "ticket": (il.PersistentExecutor, il.Schedule(132), il.RunOptions(META, dependent_launch=True)),
    "ticket-chunked-split": (
        il.PersistentExecutor,
        il.Schedule(132, chunk_waits=True, split=il.StreamK(264)),
        il.RunOptions(META),
    ),
    "ticket-traced": (il.PersistentExecutor, il.Schedule(132), il.RunOptions(META, trace=True)),
}


#: Pairs of every test run: each executor has two graphs or three, each graph at least two executors.
OFTEN = {
    "serial": ("two-copies", "gated-ffn-decode"),
    "pdl": ("ffn-decode", "ffn-fp32"),
    "semaphore_streams": ("two-copies", "gated-ffn-decode"),
    "static": ("two-copies", "two-matmuls"),
    "ticket": ("two-copies", "ffn-decode", "gated-ffn"),
    "ticket-chunked-split": ("two-copies", "gated-ffn"),
    "ticket-traced": ("two-matmuls", "ffn-fp32"),
}


@pytest.mark.parametrize("case", some(product(EXECUTORS, GRAPHS), lambda case: case[1] in OFTEN[case[0]]), ids="-".join)
def test_every_launch_compiles_for_sm_90_keeps_memory_order_and_does_not_spill(case: tuple[str, str]) -> None:
    name, graph = case
    cls, schedule, options = EXECUTORS[name]
    launches = cls(il.build(GRAPHS[graph], schedule), options).build_launches()
    for i, launch in enumerate(launches):
        compiled = launch.compile_ahead()
        ptx = compiled.asm["ptx"]
        # Of several launches, the first op posts and the last op waits (gates are in between); one launch does both.
        live = Ordering.WAIT in cls.enforced_orderings
        posts, waits = live and i == 0, live and i == len(launches) - 1
        assert lint(ptx, posts=posts, waits=waits) == []
        used = run_ptxas(ptx)
        assert used.registers <= 255
        assert not used.is_serialised
        # float32 without tensor cores keeps whole operands in registers; a trace keeps times across a division.
        # ptxas of triton 3.8 and later spills a few words of a small kernel where that fits more blocks on an SM.
        assert (
            used.spill_bytes == 0
            or graph == "ffn-fp32"
            or (name == "ticket-traced" and used.spill_bytes < 64)
            or (graph == "two-copies" and used.registers <= 40 and used.spill_bytes <= 48)
        )
        assert compiled.metadata.shared <= il.H200.smem_bytes


def compiled_ptx(graph: il.Graph, schedule: il.Schedule, **options: object) -> str:
    (launch,) = il.PersistentExecutor(il.build(graph, schedule), il.RunOptions(META, **options)).build_launches()
    return str(launch.compile_ahead().asm["ptx"])


def test_matmul_bodies_use_wgmma_and_pipelined_copies() -> None:
    for name in ("gated-ffn-decode", "gated-ffn"):
        ptx = compiled_ptx(GRAPHS[name], il.Schedule(132))
        assert count_instructions(ptx, r"wgmma\.mma_async") >= 8
        assert count_instructions(ptx, r"mma\.sync") == 0
        assert count_instructions(ptx, r"cp\.async\.cg\.shared\.global") >= 24


def test_posts_are_one_release_per_op_that_posts_and_waits_are_acquire_polls() -> None:
    ptx = compiled_ptx(GRAPHS["gated-ffn"], il.Schedule(132, policy=il.RowSync()))
    assert (
        count_instructions(ptx, r"(?:atom|red)\.\S*release\S*add") == 2
    )  # one per op's body; ``down`` is decided at run time
    assert count_instructions(ptx, r"ld\.acquire\.gpu") >= 6  # a look, then a poll and a loop, in each op's body


def test_a_launch_without_waits_has_no_semaphores() -> None:
    for launch in il.SerialExecutor(
        il.build(GRAPHS["gated-ffn"], il.Schedule(132)), il.RunOptions(META)
    ).build_launches():
        ptx = launch.compile_ahead().asm["ptx"]
        assert count_instructions(ptx, r"release|acquire|globaltimer") == 0


def test_an_edited_body_is_compiled_again() -> None:
    """Triton's cache sees functions that are compile-time arguments by name only, so a digest is passed with them."""
    plan = il.build(GRAPHS["two-copies"], il.Schedule(132))
    (launch,) = il.PersistentExecutor(plan, il.RunOptions(META)).build_launches()
    (bodies,) = [a for a in launch.arguments if isinstance(a, tuple) and hasattr(a[0], "__len__") and len(a[0]) == 6]
    from interlace.kernels.copy.triton import copy_tile

    assert copy_tile.cache_key in str(bodies[0][4].value)


def test_copies_in_tiles_that_no_block_holds_are_refused() -> None:
    x, y = (il.Tensor(name, (96, 96), il.fp32) for name in "xy")
    graph = il.Graph("copy", (x, y), (il.copy("c", x, y, tile=(48, 32)),), ("x",), ("y",))
    for executor in (il.SerialExecutor, il.PersistentExecutor):
        with pytest.raises(ShapeError, match=r"op 'c': tile of 48 x 32: Triton's extents must be powers of two"):
            executor(il.build(graph, il.Schedule(2)), il.RunOptions(META)).build_launches()


class TooLarge:
    """A Triton kernel that its device rejects."""

    def __init__(self, *what: object) -> None:
        self.error = OutOfResources(*what)

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.warmup

    def warmup(self, *arguments: object, **options: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ((300_000, 232_448, "shared memory"), "300000 bytes of shared memory .* has 232448; .* fewer stages"),
        ((1024, 512, "threads"), "1024 threads for a block, .* the device runs 512; .* fewer warps"),
        ((600, 512, "tensor memory"), "600 of tensor memory for a block, .* has 512; give it a smaller tile"),
    ],
)
def test_what_a_device_has_too_little_of_is_named_with_the_ops(what: tuple[object, ...], message: str) -> None:
    launch = TritonLaunch(TooLarge(*what), (1,), (), ops=("up", "down"))
    for run in (launch.run, launch.load):
        with pytest.raises(ResourceError, match=f"^the launch of op 'up' and 'down' needs {message}"):
            run()


def test_other_errors_of_a_launch_are_left_as_they_are() -> None:
    launch = TritonLaunch(TooLarge(1, 1, "threads"), (1,), ())
    launch.kernel.error = ValueError("another")
    with pytest.raises(ValueError, match="another"):
        launch.run()


class Counted:
    """A Triton kernel that counts how often its arguments are inspected, and how often its compiled kernel runs."""

    def __init__(self, compiled: bool) -> None:
        self.looked: list[object] = []
        self.ran: list[object] = []
        self.compiled = self.Compiled(self) if compiled else None

    def __getitem__(self, grid: object) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            self.looked.append((grid, arguments, options))
            return self.compiled

        return run

    class Compiled:
        def __init__(self, kernel: Counted) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
            return lambda *arguments: self.kernel.ran.append((grid, arguments))


def test_arguments_of_a_launch_are_looked_at_once() -> None:
    kernel = Counted(compiled=True)
    launches = [TritonLaunch(kernel, grid, ("x", 3), {"num_warps": 4}) for grid in ((7,), (7, 5, 3))]
    for launch in launches * 3:
        launch.run()
    assert kernel.looked == [(launch.grid, ("x", 3), {"num_warps": 4}) for launch in launches]
    assert kernel.ran == [((7, 1, 1), ("x", 3)), ((7, 5, 3), ("x", 3))] * 2
    interpreted = TritonLaunch(Counted(compiled=False), (7,), ())
    for _ in range(3):
        interpreted.run()
    assert len(interpreted.kernel.looked) == 3


def test_what_triton_compiles_can_be_run_by_itself() -> None:
    """A launch does this from its second run on, with all three extents of a grid and arguments in order."""
    graph = il.workloads.two_copies(64, 64)
    (launch, _) = il.SerialExecutor(il.build(graph, il.Schedule(2)), il.RunOptions(META)).build_launches()
    compiled = launch.compile_ahead()
    ran: list[tuple[Any, ...]] = []
    compiled._run, compiled.module = lambda *given: ran.append(given), object()
    compiled[(*launch.grid, 1, 1)](*launch.arguments, stream=5)
    ((x, y, z, stream, *_, arguments),) = ((*given[:4], given[9:]) for given in ran)
    assert ((x, y, z, stream), arguments) == ((*launch.grid, 1, 1, 5), launch.arguments)
