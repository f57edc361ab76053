"""Attention of chunks of prompts in the megakernel, on the emulator: right, free of races, and planted faults found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.causal_attention import AttentionTile  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..chunks import DECODED, compute_chunk_attention, draw_chunk_inputs  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: dtype, elements of a head, positions of a page, warpgroups, keys of a block.
CASES = {
    "plain, two warpgroups": (il.fp16, 64, 0, 2, 64),
    "pages, wide heads": (il.bf16, 128, 64, 1, 32),
}


def draw(case: str) -> tuple[il.Graph, dict[str, np.ndarray]]:
    dtype, d, page, groups, keys = CASES[case]
    return draw_chunk_inputs(dtype, d, 1, page, AttentionTile(64 * groups, keys, 1, 4 * groups))


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {case: EmulatedLaunch(il.build(draw(case)[0], il.Schedule(1)), stages=3) for case in CASES}
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("case", CASES)
def test_segments_of_any_lengths_are_right_run_after_run(case: str) -> None:
    run, (graph, given) = launches()[case], draw(case)
    t = {name: torch.from_numpy(np.array(v)).to(TORCH[graph.tensor(name).dtype.name]) for name, v in given.items()}
    exact = {name: (v.double() if v.is_floating_point() else v).numpy() for name, v in t.items()}
    right = compute_chunk_attention(graph, exact)
    for seed in range(2):
        run.seed = seed
        t["out"] = torch.full_like(t["out"], float("nan"))
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        found = t["out"].double().numpy()
        assert np.isnan(found[:DECODED]).all()
        assert np.linalg.norm(found[DECODED:] - right) < 2 * graph.tensor("out").dtype.epsilon * np.linalg.norm(right)
        assert not found[DECODED:][given["first"] > np.arange(len(right))].any()
