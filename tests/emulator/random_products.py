"""Random kernels with a matmul in a persistent loop; its result may pass through shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from interlace.core.dtypes import DType, bf16, fp16, fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.statements import Copy, LoopKernel
from interlace.loops.rewrite.circular import circular_buffer


@dataclass(frozen=True)
class Product:
    """``c[g] = a @ b[g].T`` for some ``g``, in steps of 64 along the inner dimension.

    Attributes:
        groups: number of groups of 64 rows, one per warpgroup.
        rings: stages and prefetch distance of the tiles of ``a``, ``b`` and the bias; without stages there is no ring.
        bias: how the bias row is loaded, if there is one.
        out: stored from registers, or through a tile in shared memory by plain stores or by TMA.
    """

    groups: int
    n: int
    dtype: DType
    batch: int
    steps: int
    rings: tuple[tuple[int, int], ...]
    bias: Copy | None
    out: str
    warp_specialised: bool

    def build(self) -> tuple[LoopKernel, dict[str, int]]:
        """Build the kernel with its marks, and extents.

        Raises:
            PipelineError: a rule is broken.
        """
        k = Builder("random_product", threads=128 * self.groups)
        m, n = 64 * self.groups, self.n
        batch, depth = k.symbol("batch"), k.symbol("depth")
        a, b = k.input("a", (m, depth), self.dtype), k.input("b", (batch, n, depth), self.dtype)
        c = k.output("c", (batch, m, n), fp32)
        a_s = k.shared("a_s", (m, 64), self.dtype, swizzle_bytes=128)
        b_s = k.shared("b_s", (n, 64), self.dtype, swizzle_bytes=128)
        acc = k.register("acc", (m, n), fp32)
        bias = k.input("bias", (batch, n), fp32) if self.bias else None
        row = k.shared("row", (1, n), fp32) if self.bias else None
        c_s = k.shared("c_s", (m, n), fp32) if self.out != "straight" else None
        with k.serial("g", batch) as g:
            if bias is not None and row is not None and self.bias is not None:
                k.load(row, bias.at(g, 0), self.bias)
            k.assign(acc, 0)
            with k.serial("s", (depth + 63) // 64) as s:
                k.load(a_s, a.at(0, s * 64))
                k.load(b_s, b.at(g, 0, s * 64))
                k.matmul(acc, a_s, b_s)
            if row is not None:
                k.assign(acc, acc + row)
            if c_s is None:
                k.store(c.at(g, 0, 0), acc)
            else:
                k.assign(c_s, acc)
                k.store(c.at(g, 0, 0), c_s, Copy.TMA if self.out == "tma" else Copy.PLAIN)
        kernel = k.build_kernel()
        for tile, (stages, prefetch) in zip(("a_s", "b_s", "row"), self.rings, strict=True):
            if stages and (tile != "row" or self.bias):
                kernel = circular_buffer(kernel, tile, stages, prefetch)
        return kernel, {"batch": self.batch, "depth": max(self.steps * 64 - 8 * (self.batch % 2), 0)}


def draw_product(random: Random) -> Product:
    """Draw a matmul of at most 128 x 64 per step."""
    rings = []
    for _ in range(3):
        stages = random.choice((0, 1, 2, 3, 4))
        rings.append((stages, random.choice((stages - 1, random.randrange(stages))) if stages else 0))
    return Product(
        groups=random.choice((1, 1, 2)),
        n=random.choice((8, 24, 64)),
        dtype=random.choice((bf16, fp16)),
        batch=random.choice((1, 2, 3)),
        steps=random.choice((0, 1, 2, 3, 5)),
        rings=tuple(rings),
        bias=random.choice((None, None, *Copy)),
        out=random.choice(("straight", "plain", "tma")),
        warp_specialised=random.random() < 0.5,
    )
