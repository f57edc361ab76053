"""Kernels of your own, written once and run by every executor: a row-wise scale, then a vertical blur.

    python examples/03_your_own_kernel.py

    y[r, c] = gain[r] * x[r, c]
    z[r, c] = (y[r - 1, c] + 2 * y[r, c] + y[r + 1, c]) / 4          rows beyond the edge count as 0

A kernel is three things: what each tile reads and writes (data, from which all dependencies follow), what it
computes (NumPy, the reference), and how (a Triton body, optional). A fourth, also optional, lets plans of it be read
from files: how an op follows from tensors and params, so that a file cannot name others.

The blur's tiles are taller than those of the scale and reach one row beyond themselves, so a tile of the blur needs
two, three or four of the scale.
"""

from __future__ import annotations

import numpy as np
from machine import executors, find_device, run

import interlace as il
from interlace.core.errors import FootprintError, PlanFormatError
from interlace.executors.footprint import check_footprint

DEVICE = find_device()

# ---------------------------------------------------------------- what they compute, on float64 regions


def scale_reference(_, regions, params):
    return {"y": regions["gain"][:, None] * regions["x"]}


def blur_reference(_, regions, params):
    """``above`` and ``below`` are clipped to the tensor, so at its edges they have no row."""
    here = regions["y"]
    rows = np.vstack([regions["above"], here, regions["below"]])
    if len(regions["above"]) == 0:
        rows = np.vstack([np.zeros((1, here.shape[1])), rows])
    if len(regions["below"]) == 0:
        rows = np.vstack([rows, np.zeros((1, here.shape[1]))])
    return {"z": (rows[:-2] + 2 * here + rows[2:]) / 4}


# ---------------------------------------------------------------- how, in Triton

if DEVICE is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def scale_tile(tile, x, gain, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
        row = tile.i * BM + tl.arange(0, BM)[:, None]
        column = tile.j * BN + tl.arange(0, BN)[None, :]
        inside = (row < M) & (column < N)
        at = row * N + column
        factor = tl.load(gain + row, mask=row < M)
        tl.store(y + at, factor * tl.load(x + at, mask=inside), mask=inside)

    @triton.jit
    def blur_tile(tile, y, z, M, N, BM: tl.constexpr, BN: tl.constexpr):
        row = tile.i * BM + tl.arange(0, BM)[:, None]
        column = tile.j * BN + tl.arange(0, BN)[None, :]
        inside = (row < M) & (column < N)
        at = row * N + column
        above = tl.load(y + at - N, mask=inside & (row > 0), other=0.0)
        here = tl.load(y + at, mask=inside)
        below = tl.load(y + at + N, mask=inside & (row < M - 1), other=0.0)
        tl.store(z + at, (above + 2 * here + below) / 4, mask=inside)


# The bodies are asked for only by executors that need them, so without Triton the names may be missing.
SCALE = il.Kernel(
    "scale",
    il.Reference(scale_reference),
    lambda: il.TritonBody(finish=scale_tile),
    make=lambda name, t, params: scale(name, t["x"], t["gain"], t["y"], params["BM"], params["BN"]),
)
BLUR = il.Kernel(
    "blur",
    il.Reference(blur_reference),
    lambda: il.TritonBody(finish=blur_tile),
    make=lambda name, t, params: blur(name, t["y"], t["z"], params["BM"], params["BN"], "above" in t),
)

# ---------------------------------------------------------------- what each tile touches


def scale(name: str, x: il.Tensor, gain: il.Tensor, y: il.Tensor, bm: int, bn: int) -> il.Op:
    (m, n), (i, j) = x.shape, il.axes(2)
    spans = (i.block(bm), j.block(bn))
    return SCALE.make_op(
        name,
        grid=(-(-m // bm), -(-n // bn)),
        reads={"x": (x, spans), "gain": (gain, (i.block(bm),))},
        writes={"y": (y, spans)},
        params={"M": m, "N": n, "BM": bm, "BN": bn},
    )


def blur(name: str, y: il.Tensor, z: il.Tensor, bm: int, bn: int, halo: bool = True) -> il.Op:
    (m, n), (i, j) = y.shape, il.axes(2)
    columns = j.block(bn)
    above = il.Span(i * bm - 1, i * bm)
    below = il.Span(i * bm + bm, i * bm + (bm + 1))
    edges = {"above": (y, (above, columns)), "below": (y, (below, columns))}
    return BLUR.make_op(
        name,
        grid=(-(-m // bm), -(-n // bn)),
        reads={"y": (y, (i.block(bm), columns)), **(edges if halo else {})},
        writes={"z": (z, (i.block(bm), columns))},
        params={"M": m, "N": n, "BM": bm, "BN": bn},
    )


def make_graph(m: int, n: int, bm: int, bn: int, halo: bool = True) -> il.Graph:
    x, y, z = (il.Tensor(name, (m, n), il.fp32) for name in "xyz")
    gain = il.Tensor("gain", (m,), il.fp32)
    ops = (scale("scale", x, gain, y, bm, bn), blur("blur", y, z, 2 * bm, bn, halo))
    return il.Graph("scale-blur", (x, gain, y, z), ops, inputs=("x", "gain"), outputs=("z",))


def main() -> None:
    m, n, bm, bn, workers = (2000, 1000, 8, 64, 100) if DEVICE == "cuda" else (72, 40, 8, 16, 4)
    graph = make_graph(m, n, bm, bn)
    print(graph)

    dependencies = il.Dependencies(graph)
    needs = [set() for _ in range(graph.op("blur").tiles)]
    for link in dependencies.links:
        tiles = dependencies.find_tile_producers(link)
        for tile, needed in enumerate(needs):
            needed.update(tiles[tile].tolist())
    print(f"\ntiles of scale that a tile of blur needs: {sorted({len(needed) for needed in needs})}")

    # Does each body touch what its op declares, and nothing else? Dependencies follow from that alone.
    for op in graph.ops:
        check_footprint(graph, op.name, device=DEVICE or "reference")
        print(f"{op.name}: the body touches what its access maps declare")
    try:
        check_footprint(make_graph(m, n, bm, bn, halo=False), "blur", device=DEVICE or "reference")
    except FootprintError as error:
        print(f"without the halo, FootprintError: {error}")
    else:
        raise AssertionError("an undeclared read went unseen")

    plan = il.build(graph, il.Schedule(workers, policy=il.RowSync(), interleaving=il.RowPanels(2)))
    again = il.read_plan(plan.to_json(), [SCALE, BLUR])
    assert again == plan
    try:
        il.read_plan(plan.to_json().replace(f'"N":{n}', f'"N":{2 * n}', 1), [SCALE, BLUR])
    except PlanFormatError as error:
        print(f"\na file that names other sizes, PlanFormatError: {error}")
    else:
        raise AssertionError("a plan of other sizes was read")

    random = np.random.default_rng(0)
    x = random.standard_normal((m, n)).astype(np.float32)
    gain = random.standard_normal(m).astype(np.float32)
    scaled = np.pad(gain.astype(np.float64)[:, None] * x, ((1, 1), (0, 0)))
    gold = (scaled[:-2] + 2 * scaled[1:-1] + scaled[2:]) / 4

    print(f"\non {DEVICE or 'the base install, without torch and triton'}, largest error:")
    schedule = il.Schedule(workers, policy=il.RowSync(), interleaving=il.RowPanels(2))
    for name, executor in executors(DEVICE, graph, schedule):
        error = float(np.abs(run(executor, {"x": x, "gain": gain})["z"] - gold).max())
        print(f"  {name:32}{error:.1e}")
        assert error < 1e-4, name


if __name__ == "__main__":
    main()
