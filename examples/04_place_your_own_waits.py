"""Kernels that place their own waits and posts, a stream each: prefix sums, then the largest per row.

    python examples/04_place_your_own_waits.py

    y[r, :] = cumulative sum of x[r, :]
    z[r]    = max(y[r, :]) + bias[r]

The plan says which tile runs where in the launch, what it waits for and what it posts; the kernels say when:
``device.load_tile`` tells a program its tile, ``device.wait`` stands before the first load that depends on another
kernel, ``device.post`` behind the last store. Loads that depend on nothing may come before the wait.
"""

from __future__ import annotations

import numpy as np
from machine import find_device, run

import interlace as il
from interlace.core.errors import HangError

DEVICE = find_device()

if DEVICE is not None:
    import torch
    import triton
    import triton.language as tl

    from interlace import device

    @triton.jit
    def prefix_sums(sync, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, FORGET: tl.constexpr):
        tile = device.load_tile(sync)
        row = tile.i * BM + tl.arange(0, BM)[:, None]
        column = tl.arange(0, BN)[None, :]
        inside = (row < M) & (column < N)
        values = tl.load(x + row * N + column, mask=inside, other=0.0)
        device.wait(tile, sync)  # nothing to wait for here, but the plan knows that better
        tl.store(y + row * N + column, tl.cumsum(values, 1), mask=inside)
        if not FORGET:
            device.post(tile, sync)

    @triton.jit
    def largest(sync, y, bias, z, M, N, BM: tl.constexpr, BN: tl.constexpr):
        tile = device.load_tile(sync)
        row = tile.i * BM + tl.arange(0, BM)
        column = tl.arange(0, BN)[None, :]
        inside = (row[:, None] < M) & (column < N)
        add = tl.load(bias + row, mask=row < M, other=0.0)  # an input: it can be read before the wait
        device.wait(tile, sync)
        values = tl.load(y + row[:, None] * N + column, mask=inside, other=float("-inf"))
        tl.store(z + row, tl.max(values, 1) + add, mask=row < M)
        device.post(tile, sync)


def prefix_sums_reference(_, regions, params):
    return {"y": np.cumsum(regions["x"], axis=1)}


def largest_reference(_, regions, params):
    return {"z": regions["y"].max(axis=1) + regions["bias"]}


def make_graph(m: int, n: int, bm_first: int, bm_second: int) -> il.Graph:
    """Kernels without a Triton body: the tiles, what they touch, and what they compute."""
    x, y = (il.Tensor(name, (m, n), il.fp32) for name in "xy")
    bias, z = (il.Tensor(name, (m,), il.fp32) for name in ("bias", "z"))
    (i,) = il.axes(1)
    first = il.Kernel("prefix-sums", il.Reference(prefix_sums_reference)).make_op(
        "prefix sums",
        grid=(-(-m // bm_first),),
        reads={"x": (x, (i.block(bm_first), il.ALL))},
        writes={"y": (y, (i.block(bm_first), il.ALL))},
    )
    second = il.Kernel("largest", il.Reference(largest_reference)).make_op(
        "largest",
        grid=(-(-m // bm_second),),
        reads={"y": (y, (i.block(bm_second), il.ALL)), "bias": (bias, (i.block(bm_second),))},
        writes={"z": (z, (i.block(bm_second),))},
    )
    return il.Graph("prefix-sums-largest", (x, bias, y, z), (first, second), ("x", "bias"), ("z",))


def main() -> None:
    m, n, bm_first, bm_second = (4096, 1000, 4, 16) if DEVICE == "cuda" else (40, 50, 4, 16)
    graph = make_graph(m, n, bm_first, bm_second)
    plan = il.build(graph, il.Schedule(workers=4, policy=il.TileSync()))
    proof = il.verify(plan)
    assert proof.edges == proof.edges_by_wait
    print(f"{len(plan.items)} tiles, {plan.semaphores} semaphores, {proof.edges} dependencies, all by waits")

    random = np.random.default_rng(0)
    x = random.standard_normal((m, n)).astype(np.float32)
    bias = random.standard_normal(m).astype(np.float32)
    gold = np.cumsum(x.astype(np.float64), axis=1).max(axis=1) + bias
    error = np.abs(run(il.ReferenceExecutor(proof), {"x": x, "bias": bias})["z"] - gold).max()
    print(f"reference: largest error {error:.1e}")
    assert error < 1e-12
    if DEVICE is None:
        print("the kernels themselves need torch and triton")
        return

    executor = il.SemaphoreStreamsExecutor(proof, il.RunOptions(DEVICE, timeout_s=0.2))
    on = torch.device(DEVICE)
    tx, tbias = torch.from_numpy(x).to(on), torch.from_numpy(bias).to(on)
    y, z = torch.empty(m, n, device=on), torch.empty(m, device=on)
    bn = triton.next_power_of_2(n)

    def run_once(forget: bool = False) -> None:
        with executor.open_stages() as stages:
            with stages["prefix sums"] as stage:
                prefix_sums[stage.grid](stage.sync, tx, y, m, n, bm_first, bn, forget)
            with stages["largest"] as stage:
                largest[stage.grid](stage.sync, y, tbias, z, m, n, bm_second, bn)
        executor.synchronize()

    for attempt in range(3):  # nothing is cleared in between: counters count on from run to run
        y.fill_(float("nan"))
        z.fill_(float("nan"))
        run_once()
        error = np.abs(z.cpu().numpy() - gold).max()
        print(f"own kernels on {DEVICE}, run {attempt}: largest error {error:.1e}")
        assert error < 1e-3

    try:
        run_once(forget=True)
    except HangError as hang:
        print(f"a kernel that forgets its posts: HangError: {hang}")
    else:
        raise AssertionError("a missing post went unseen")
    z.fill_(float("nan"))
    run_once()
    print(f"the next run: largest error {np.abs(z.cpu().numpy() - gold).max():.1e}")


if __name__ == "__main__":
    main()
