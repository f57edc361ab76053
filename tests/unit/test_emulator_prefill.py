"""Attention with its output product as the megakernel, on the emulator: right for any lengths, and free of races."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.causal_attention import AttentionTile  # noqa: E402
from interlace.workloads.prefill import pack_sequences, prefill_attention  # noqa: E402

from ..cases import TORCH, relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare, run_poisoned  # noqa: E402
from ..prefill import compute_exact, inputs  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: Blocks that all rows see, sequences that begin within a tile and within a block, and padding of NaN at the end.
RAGGED = pack_sequences((150, 3, 60), 270)
#: Padding between sequences, and rows of a tile without any token.
GAPS = np.concatenate([pack_sequences((70,)), np.full(90, 999, np.int32), np.full(40, 160, np.int32)])
#: Values are handed back while they are multiplied.
HASTY = (
    "      wgmma_wait<0>();\n      settle(accumulators);\n      release(stage, before);\n",
    "      release(stage, before);\n      wgmma_wait<0>();\n      settle(accumulators);\n",
)


def graph(
    head_dim: int, groups: int, keys: int, rows: int, dtype: il.DType = il.bf16, longest: int | None = None
) -> il.Graph:
    """Two heads of queries to one of keys, in tiles of so many warpgroups and keys."""
    tile = AttentionTile(64 * groups, keys, num_warps=4 * groups)
    product = il.MatmulTile(64 * groups, 64, num_warps=4 * groups)
    return prefill_attention(rows, 64, 2, 1, head_dim, dtype, longest=longest, tile=tile, product=product)


GRAPHS = {
    "two warpgroups, ragged, a window": (graph(64, 2, 32, len(RAGGED), il.fp16, 140), RAGGED),
    "wide heads, gaps": (graph(128, 1, 32, len(GAPS)), GAPS),
    "queries in the scratch, gaps": (graph(256, 2, 32, len(GAPS)), GAPS),
}


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {name: EmulatedLaunch(il.build(g, il.Schedule(1)), stages=3) for name, (g, _) in GRAPHS.items()}
    plan = il.build(graph(128, 1, 32, len(GAPS)), il.Schedule(1))
    made["hasty"] = EmulatedLaunch(plan, stages=2, change=HASTY)
    prepare([*made.values()])
    return made


def tensors(g: il.Graph, first: np.ndarray) -> dict[str, torch.Tensor]:
    drawn = inputs(g, first)
    return {name: torch.from_numpy(value).to(TORCH[g.tensor(name).dtype.name]) for name, value in drawn.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_sequences_of_any_lengths_are_right_run_after_run(name: str) -> None:
    run, (g, first) = launches()[name], GRAPHS[name]
    t = tensors(g, first)
    op = g.op("attention")
    right = torch.from_numpy(
        compute_exact({n: v.double().numpy() for n, v in t.items()}, int(op.param("D")), int(op.param("WINDOW")))
    )
    for seed in range(2):
        out = run_poisoned(run, t, seed)
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(out, right) < g.tensor("out").dtype.epsilon
        assert not out[torch.from_numpy(first) > torch.arange(len(first))].any()


def test_a_stage_that_is_handed_back_too_soon_is_reported() -> None:
    assert "race" in kinds_of_faults(launches()["hasty"], tensors(*GRAPHS["wide heads, gaps"]), range(3))
