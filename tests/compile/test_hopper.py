"""The Hopper launch compiles for sm_90 without a GPU, keeps the memory order, and has the instructions it should."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pytest

import interlace as il
from interlace.kernels.bodies import Pipeline
from interlace.kernels.lint import count, lint, resources

from ..ring import Ring, hopper_executor

A = il.Activation
SHAPES = {
    "relu": il.workloads.FFNShape(4096, 14336, A.RELU, False),
    "gated": il.workloads.FFNShape(4096, 14336, A.SILU, True),
    "gelu-bias": il.workloads.FFNShape(12288, 6144, A.GELU_TANH, False),
}
SPLIT = Ring(128, 128, 64, False, 2, (2, 2), group=8)
NARROW = Ring(64, 64, 128, True)


@dataclass(frozen=True)
class Variant:
    """A kernel to compile; the default setting for its tokens unless it names another."""

    shape: str
    m: int
    setting: Ring | None = None
    trace: bool = False
    jitter_s: float = 0.0
    dependent: bool = False
    dtype: str = "bf16"

    @property
    def gated(self) -> bool:
        return SHAPES[self.shape].gated

    def __str__(self) -> str:
        marks = [self.dtype] if self.dtype != "bf16" else []
        marks += [name for name in ("trace", "jitter_s", "dependent", "setting") if getattr(self, name)]
        return "-".join([self.shape, str(self.m), *marks])


#: Each tile of the default settings, whole and split, with each epilogue on the narrowest and the widest; those with a
#: trace, jitter or dependent launch stand for the plain ones, which have less in their registers.
VARIANTS = [
    *(Variant("relu", m) for m in (1, 32, 64, 128, 256, 4096)),
    *(Variant("gated", m) for m in (16, 32, 64, 128, 512, 4096)),
    *(Variant("gelu-bias", m) for m in (16, 256, 512)),
    Variant("relu", 64, dtype="fp16"),
    Variant("relu", 300, SPLIT),
    Variant("relu", 64, NARROW),
    Variant("relu", 16, dependent=True),
    Variant("relu", 512, dependent=True),
    Variant("gated", 16, trace=True),
    Variant("gelu-bias", 16, jitter_s=20e-6),
    Variant("relu", 300, trace=True, jitter_s=20e-6, dependent=True),
]
MUTATED = [Variant("relu", 16, dependent=True), Variant("relu", 300, SPLIT), Variant("gated", 16)]


@dataclass(frozen=True)
class Compiled:
    """What a variant became."""

    ptx: str
    smem_bytes: int
    pipeline: Pipeline
    ops: tuple[il.Op, ...]
    split_ops: int

    @property
    def swap_ab(self) -> bool:
        """Whether weights are the 64-row operand."""
        return bool(self.ops[0].param("SWAP"))

    def tiles(self) -> list[tuple[int, int, int, int]]:
        """Tokens, weight rows, panels along k and weights of each op."""
        return [
            (
                *(int(op.param(name)) for name in ("BM", "BN")),
                int(op.param("BK")) // 64,
                sum(access.arg in ("weight", "gate") for access in op.reads),
            )
            for op in self.ops
        ]


@cache
def compiled(variant: Variant) -> Compiled:
    executor = hopper_executor(
        variant.m,
        SHAPES[variant.shape],
        variant.setting,
        il.Options(
            "meta", trace=variant.trace, jitter_s=variant.jitter_s, dependent_launch=variant.dependent
        ),
        dtype=il.dtype(variant.dtype),
        bias=variant.shape == "gelu-bias",
    )
    (launch,) = executor.launches()
    kernel = launch.compile_ahead()
    split_ops = int((executor._table.parts > 1).sum())
    return Compiled(kernel.asm["ptx"], kernel.metadata.shared, executor.pipeline, executor.plan.graph.ops, split_ops)


each = pytest.mark.parametrize("variant", VARIANTS, ids=str)


@each
def test_memory_order_holds_and_resources_suffice(variant: Variant) -> None:
    kernel = compiled(variant)
    assert lint(kernel.ptx, posts=True, waits=True) == []
    used = resources(kernel.ptx)
    assert used.spill_bytes == 0
    assert not used.serialised
    # What a thread has at the launch, before warpgroups trade: 64 Ki registers over 8 warps, or over 12.
    warps = 8 if kernel.pipeline.warpgroups == 1 else 12
    assert used.registers * 32 * warps <= 1 << 16
    assert used.registers <= (248 if kernel.pipeline.warpgroups == 1 else 168)
    # Deep rings are the point: nearly all shared memory is in use, and none beyond it.
    stage = 2 * 64 * (kernel.pipeline.independent_rows + kernel.pipeline.dependent_rows)
    assert kernel.pipeline.stages >= 3
    assert kernel.pipeline.stages * stage < kernel.smem_bytes <= il.H200.smem_bytes


@each
def test_every_stage_is_multiplied_in_full(variant: Variant) -> None:
    """64 rows by 16 elements of k per wgmma: blocks of all shares, times panels, weights and 4, for each op."""
    kernel = compiled(variant)
    dtype = variant.dtype.replace("fp", "f")
    expected = 0
    for m, n, along, weights in kernel.tiles():
        rows, columns = (n, m) if kernel.swap_ab else (m, n)
        blocks = (rows // 64) * along * weights * (64 // 16)
        expected += blocks
        shape = f"m64n{columns}k16"  # one wgmma takes up to 256 columns
        assert count(kernel.ptx, rf"wgmma\.mma_async\.sync\.aligned\.{shape}\.f32\.{dtype}\.{dtype}") >= blocks
    assert count(kernel.ptx, r"wgmma\.mma_async") == expected
    assert count(kernel.ptx, r"[^g]mma\.sync") == 0


@each
def test_every_panel_is_one_bulk_load_or_of_columns_one_a_box_and_nothing_else_copies(variant: Variant) -> None:
    kernel = compiled(variant)
    boxes = {m: min(4, max(1, m // 32)) if kernel.swap_ab else 1 for m, *_ in kernel.tiles()}
    expected = sum(along * (weights + boxes[m]) for m, _, along, weights in kernel.tiles())
    assert count(kernel.ptx, r"cp\.async\.bulk\.tensor\.2d\.shared::(?:cluster|cta)\.global") == expected
    assert count(kernel.ptx, r"cp\.async") == expected
    # Each op announces the bytes of its weights and of its activations, those of as many boxes as are there.
    announced = re.findall(r"mbarrier\.arrive\.expect_tx\.shared(?:::cta)?\.b64 _, \[%r\d+\], (\d+);", kernel.ptx)
    panel = 64 * 2
    loads = []
    for m, n, along, weights in kernel.tiles():
        many = range(boxes[m] + 1) if boxes[m] > 1 else [1]
        loads += [n * along * weights * panel, *(b * m // boxes[m] * along * panel for b in many)]
    assert sorted(map(int, announced)) == sorted(loads)


@each
def test_warpgroups_post_and_meet(variant: Variant) -> None:
    kernel = compiled(variant)
    warpgroups = kernel.pipeline.warpgroups
    posts = count(kernel.ptx, r"(?:atom|red)\.global\.gpu\.release\.add\.u32")
    meetings = count(kernel.ptx, r"atom\.global\.gpu\.acq_rel\.add\.u64")
    assert warpgroups <= posts <= 2 * warpgroups  # the compiler may share one between the ops
    assert meetings == kernel.split_ops * warpgroups


@each
def test_bulk_loads_of_activations_alone_follow_a_wait(variant: Variant) -> None:
    ptx = compiled(variant).ptx
    assert count(ptx, r"fence\.proxy\.async\.global") == 2  # one per op
    assert count(ptx, r"ld\.acquire\.gpu") == 4  # a look and a loop per op


@each
def test_dependent_launch_is_in_the_code_only_if_asked_for(variant: Variant) -> None:
    ptx = compiled(variant).ptx
    # The bound loader waits; the free loader lets the next launch in, from each op's loop or at its end.
    assert count(ptx, r"griddepcontrol\.wait") == (1 if variant.dependent else 0)
    assert count(ptx, r"griddepcontrol\.launch_dependents") == (3 if variant.dependent else 0)


@pytest.mark.parametrize(
    "tile",
    [il.MatmulTile(32, 64, 128, swap_ab=True), il.MatmulTile(128, 128, 128, num_warps=8)],
    ids=["swapped", "large"],
)
def test_waits_inside_reductions_keep_the_memory_order(tile: il.MatmulTile) -> None:
    shape = il.workloads.FFNShape(1024, 2816, A.RELU, False)
    plan = il.build(il.workloads.ffn(300, shape, il.bf16, tile, tile), il.Choices(132, chunk_waits=True))
    executor = il.HopperExecutor(plan, il.Options("meta"))
    assert executor._table.chunked
    (launch,) = executor.launches()
    ptx = launch.compile_ahead().asm["ptx"]
    assert lint(ptx, posts=True, waits=True) == []
    assert count(ptx, r"ld\.acquire\.gpu") == 8  # at the start and inside, each a look and a loop, per op


def without(lines: list[str], i: int) -> str:
    return "\n".join([*lines[:i], "", *lines[i + 1 :]])


def places(lines: list[str], pattern: str) -> list[int]:
    return [i for i, line in enumerate(lines) if re.search(pattern, line)]


@pytest.mark.parametrize("variant", MUTATED, ids=str)
def test_the_lint_finds_each_missing_proxy_fence(variant: Variant) -> None:
    lines = compiled(variant).ptx.splitlines()
    fences = places(lines, r"fence\.proxy\.async\.global")
    assert len(fences) == 2
    for fence in fences:
        findings = lint(without(lines, fence), posts=True, waits=True)
        assert {finding.rule for finding in findings} == {"tma-load"}
        assert all("cp.async.bulk.tensor" in finding.text for finding in findings)


@pytest.mark.parametrize("variant", MUTATED, ids=str)
def test_the_lint_finds_each_missing_barrier_before_a_release(variant: Variant) -> None:
    kernel = compiled(variant)
    lines = kernel.ptx.splitlines()
    releases = places(lines, r"\b(?:atom|red)\.\S*(?:release|acq_rel)")
    assert releases
    names = set()
    for release in releases:
        block = lines[max(places(lines[:release], r"^\$L\w+:|\bst\.global|\bbra\b")) : release]
        names |= {line.split()[1] for line in block if "bar.sync" in line}
        bare = [line for line in block if "bar.sync" not in line]
        mutated = [*lines[: release - len(block)], *bare, *lines[release:]]
        found = [(f.rule, f.line) for f in lint("\n".join(mutated), posts=True, waits=True)]
        assert found == [("release", release + 1 - len(block) + len(bare))]
    assert len(names) == kernel.pipeline.warpgroups  # each warpgroup has a barrier of its own


@pytest.mark.parametrize("variant", MUTATED, ids=str)
def test_the_lint_finds_missing_warp_barriers_behind_polls(variant: Variant) -> None:
    ptx = "\n".join("" if "bar.warp.sync" in line else line for line in compiled(variant).ptx.splitlines())
    assert {finding.rule for finding in lint(ptx, posts=True, waits=True)} == {"acquire", "hand-over"}


@pytest.mark.parametrize("variant", [v for v in MUTATED if v.dependent], ids=str)
def test_the_lint_finds_a_data_load_ahead_of_the_dependent_launch_wait(variant: Variant) -> None:
    lines = compiled(variant).ptx.splitlines()
    (wait,) = places(lines, r"griddepcontrol\.wait")
    early = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];"
    findings = lint("\n".join([*lines[:wait], early, *lines[wait:]]), posts=True, waits=True)
    assert [(f.rule, f.line) for f in findings] == [("dependent", wait + 1)]
