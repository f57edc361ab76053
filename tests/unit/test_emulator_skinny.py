"""Tiles of few weight rows on the emulator: right whatever the schedule, and a slot handed back too early is found."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402

from ..cases import TORCH, relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402
from ..folded_norm import build_folded, compute_exact  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

FINE = 16  # columns of a sum of squares


def tile(m: int, n: int, k: int = 128, warps: int = 4) -> il.MatmulTile:
    return il.MatmulTile(m, n, k, num_warps=warps, swap_ab=True)


#: Tokens, tiles of both products, elements of a row of the first and of the second, what else; stages of the ring.
CASES = {
    "one token, 16 and 24 wide": (build_folded(1, tile(8, 16), tile(8, 24), depth=192, width=192, columns=FINE), 3),
    "three tokens of 16, gated, two warpgroups": (
        build_folded(
            3, tile(16, 32, 128, 8), tile(16, 32, 64, 8), depth=256, width=192, columns=FINE, gated=True, dtype=il.fp16
        ),
        4,
    ),
    "eight tokens, two stages, gated": (
        build_folded(8, tile(8, 32, 64), tile(8, 16), depth=64, width=256, columns=FINE, gated=True),
        2,
    ),
    "sixteen tokens, two warpgroups": (
        build_folded(16, tile(16, 16, 128, 8), tile(16, 24, 128, 8), depth=128, width=192, columns=FINE),
        2,
    ),
    "beside a tile of many rows, with nothing between the products": (
        build_folded(11, tile(16, 48), tile(16, 64), depth=128, width=192, columns=FINE, kept=False),
        3,
    ),
}
_HANDED_BACK = "    __syncwarp();\n    release_prefetch(stage, ahead.slot);\n"


_MEETING = "    if (WARPGROUPS > 1) synchronise_block();  // warpgroups with"


def behind_a_tile_of_each_warpgroup(change: tuple[str, str] | None = None) -> EmulatedLaunch:
    """A product whose warpgroups have tiles of their own and leave them one by one, and one that they share."""
    shapes = {"x": (128, 128), "w": (256, 128), "y": (128, 256), "x1": (1, 128), "w1": (48, 128), "y1": (1, 48)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    wide = il.matmul("wide", t["x"], t["w"], t["y"], tile=il.MatmulTile(128, 256, 64, num_warps=8))
    narrow = il.matmul("narrow", t["x1"], t["w1"], t["y1"], tile=tile(8, 24, 64, 8))
    graph = il.Graph("both", (*t.values(),), (wide, narrow), ("x", "w", "x1", "w1"), ("y", "y1"))
    return EmulatedLaunch(il.build(graph, il.Schedule(1)), stages=2, change=change)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: EmulatedLaunch(il.build(of, il.Schedule(1)), stages=n) for name, (of, n) in CASES.items()}
    graph, stages = CASES["eight tokens, two stages, gated"]
    change = _HANDED_BACK, _HANDED_BACK.partition("\n")[2]
    made["hasty"] = EmulatedLaunch(il.build(graph, il.Schedule(1)), stages=stages, change=change)
    made["apart"] = behind_a_tile_of_each_warpgroup()
    made["apart, hasty"] = behind_a_tile_of_each_warpgroup((_MEETING, "    // warpgroups with"))
    prepare([*made.values()])
    return made


def tensors(run: EmulatedLaunch) -> dict[str, torch.Tensor]:
    """Inputs, and poisoned outputs."""
    torch.manual_seed(0)
    graph, t = run.plan.graph, {}
    for tensor in map(graph.tensor, graph.inputs):
        scale = tensor.shape[-1] ** -0.5 if tensor.name.startswith("w") else 1.0
        t[tensor.name] = (torch.randn(tensor.shape) * scale).to(TORCH[tensor.dtype.name])
    return t | {name: torch.full_like(run.allocate_tensor(name), float("nan")) for name in graph.outputs}


@pytest.mark.parametrize("name", CASES)
def test_products_of_few_weight_rows_are_right_run_after_run(name: str) -> None:
    run = launches()[name]
    for run.seed in range(2):
        t = tensors(run)
        run.get_intermediate("scaled").fill_(float("nan"))
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        right = compute_exact(t, FINE)
        # Of rows as they are stored, which are not always left.
        assert relative_error(t["squares"], right["squares"]) < (1e-6 if "middle" in t else 2e-3)
        assert "middle" not in t or relative_error(t["middle"], right["middle"]) < 2e-3
        assert relative_error(t["out"], right["out"]) < 5e-3  # scaled is rounded too


def test_a_slot_handed_back_before_all_lanes_have_read_their_matrices_is_found() -> None:
    run = launches()["hasty"]
    for run.seed in range(4):
        run.run(tensors(run))
    assert "race" in {fault.kind for fault in run.faults}


@pytest.mark.parametrize(("name", "kinds"), [("apart", set()), ("apart, hasty", {"race"})])
def test_warpgroups_meet_before_they_take_the_scratch_that_each_had_alone(name: str, kinds: set[str]) -> None:
    run = launches()[name]
    for run.seed in range(3):
        t = tensors(run)
        run.run(t)
        if not kinds:
            for x, w, y in (("x", "w", "y"), ("x1", "w1", "y1")):
                assert relative_error(t[y], t[x].double() @ t[w].double().T) < 1e-2
    assert {fault.kind for fault in run.faults} == kinds
