"""The Triton body of spin. Under the interpreter, which has no clock, it does not wait."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.semaphore import read_clock_ns


@triton.jit
def spin_tile(tile, sync, ns, out):
    begin = read_clock_ns(sync.INTERPRET)
    wanted = tl.load(ns + tile.i)
    if not sync.INTERPRET:
        now = begin
        while now - begin < wanted:
            now = read_clock_ns(sync.INTERPRET)
    tl.store(out + tile.i, wanted)
