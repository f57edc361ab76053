"""A whole decode step as one launch on the emulator: right for ragged batches, step after step, without a fault."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.sample import compute_gumbel_noise, find_cutoff  # noqa: E402
from interlace.workloads import Decode, LlamaShape, build_decode_graph  # noqa: E402

from ..cases import TORCH, relative_error  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, prepare  # noqa: E402
from ..emulator.random_steps import search  # noqa: E402
from ..paged import in_pages, in_rows  # noqa: E402
from ..thorough import some  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

CAPACITY, POSITIONS, TEMPERATURES = 100, (0, 5, 90), (0.0, 0.5, 0.75)
SHAPES = {
    "norms and biases": LlamaShape(2, 64, 96, 4, 2, 24, 161, qkv_bias=True, qk_norm=True),
    "more queries than are taken at once, in pages": LlamaShape(1, 64, 64, 9, 1, 64, 97, tied=True),
    "heads of 80": LlamaShape(1, 64, 64, 6, 2, 80, 97, qk_norm=True, tied=True),
    "heads of 144, in pages": LlamaShape(1, 64, 64, 2, 1, 144, 97, tied=True),
}
PAGES = 4  # where they are: a sequence with two, and one with none


def problem(name: str) -> Decode:
    return Decode(**{**vars(SHAPES[name]), "batch": len(POSITIONS), "capacity": CAPACITY, "context": 0})


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {}
    for name, shape in SHAPES.items():
        splits = 2 if shape.kv_heads > 1 else 1
        sms = splits * len(POSITIONS) * shape.kv_heads
        device = replace(il.H200, sms=sms, sm_dram_bytes_per_s=1e6)  # so slow that any cache is split
        pages = PAGES if "pages" in name else None
        graph = build_decode_graph(shape, len(POSITIONS), CAPACITY, device, has_sampling=shape.qk_norm, pages=pages)
        plan = il.autoplan(graph, il.H200, il.MegakernelExecutor, workers=1)
        assert plan.graph.op("layers.0.attend").grid[2] == splits
        made[name] = EmulatedLaunch(plan, stages=3)
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_steps_of_a_ragged_batch_are_right_and_touch_nothing_else(name: str) -> None:
    """Caches hold NaN where nothing was appended yet, and so do intermediates before they are written.

    Of one model the tokens are drawn, each sequence's in its own way.
    """
    run, work = launches()[name], problem(name)
    graph = run.plan.graph
    given = dict(work.make_inputs(0)) | {"position": np.array(POSITIONS, np.float32)}
    t = {n: torch.from_numpy(value).to(TORCH[graph.tensor(n).dtype.name]) for n, value in given.items()}
    caches = [n for n in graph.inputs if n.endswith("_cache")]
    for n in caches:
        for b, at in enumerate(POSITIONS):
            t[n][b, :, at:] = float("nan")
    if "table" in graph.inputs:
        t = in_pages(t, PAGES)
    ways = {"temperature": TEMPERATURES, "top_k": [0, 5, 0], "top_p": [1.0, 1.0, 0.9], "key": [[3, 0], [3, 1], [3, 2]]}
    t |= {n: torch.tensor(way, dtype=TORCH[graph.tensor(n).dtype.name]) for n, way in ways.items() if n in graph.inputs}
    t |= {n: run.allocate_tensor(n) for n in graph.outputs}
    for step in range(2):
        alone = in_rows(t) if "table" in t else t
        right = work.run_dense(np, {n: value.double().numpy() for n, value in alone.items()})
        for n in (*graph.intermediates, "logits"):
            value = t[n] if n in t else run.get_intermediate(n)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        run.seed = step
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        assert relative_error(t["logits"], torch.from_numpy(right["logits"])) < 8e-3
        for b, following in enumerate(t["next"].tolist()):
            x = t["logits"][b].double().numpy()
            if "key" in t and TEMPERATURES[b]:
                low = find_cutoff(x, TEMPERATURES[b], ways["top_k"][b], ways["top_p"][b])
                position, key = t["position"][b : b + 1].numpy(), t["key"][b].numpy()
                x = np.where(
                    x >= low, x / TEMPERATURES[b] + compute_gumbel_noise(np.arange(len(x)), position, key), -np.inf
                )
            assert following == x.argmax()
        t["tokens"].copy_(t["next"])
        t["position"] += 1
        alone = in_rows(t) if "table" in t else t
        for n in caches:
            assert [int(alone[n][b, 0, :, 0].isnan().sum()) for b in range(3)] == [
                CAPACITY - at - step - 1 for at in POSITIONS
            ]


@pytest.mark.parametrize(
    "numbers", some([range(1046, 1047), range(1047, 1050)], lambda numbers: numbers.start == 1046), ids=str
)
def test_random_steps_by_words_are_bit_for_bit_those_by_semaphores_and_right(numbers: range) -> None:
    tried, wrong = search(numbers)
    assert tried == len(numbers)
    assert wrong == []
