"""FFNs on the Hopper executor: how they are tiled by default, what else is worth trying, and the plan of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from interlace.core.devices import H200
from interlace.core.dtypes import DType, bf16
from interlace.core.errors import PlanError, ShapeError
from interlace.executors.hopper import HopperExecutor, default_pipeline
from interlace.executors.options import Options
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import gluon_body
from interlace.kernels.matmul import MatmulTile
from interlace.plan.plan import Plan
from interlace.planner.build import Choices, build
from interlace.policies.orders import GroupedPanels, RowMajor
from interlace.policies.splits import Split, SplitK, SplitTail, Whole
from interlace.workloads.ffn import FFNShape, ffn

_MOST_PARTS = 64  # of one tile's reduction


@dataclass(frozen=True)
class HopperSetting:
    """How an FFN runs on the Hopper executor, as plain numbers.

    Attributes:
        m, n, k: extents of a tile in tokens and weight rows, and of a stage along k. A gated op takes half of k if
            that leaves a panel, and half of n if its two sums would not fit the registers.
        swap: weights are the tensor core's 64-row operand.
        shares: warpgroups per tile, 1 or 2.
        split_up, split_down: parts of each tile's reduction.
        in_flight: most stages of weights under way at once in one block, 0 for the default.
        group: row panels that an order groups, 0 for row-major.
        level_up, level_down: cut the tiles of the last wave in two, so that all SMs share it.
    """

    m: int
    n: int
    k: int
    swap: bool
    shares: int = 1
    split_up: int = 1
    split_down: int = 1
    in_flight: int = 0
    group: int = 0
    level_up: bool = False
    level_down: bool = False

    def to_data(self) -> dict[str, int | bool]:
        """As JSON data."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> HopperSetting:
        """The inverse of ``to_data``. Raises ValueError for anything else than what it wrote."""
        fields = {name: type(value) for name, value in asdict(HopperSetting(64, 64, 64, False)).items()}
        right = isinstance(data, Mapping) and set(data) == set(fields)
        if not right or any(type(data[name]) is not kind for name, kind in fields.items()):
            raise ValueError(f"not a Hopper setting: {data!r}")
        return HopperSetting(**data)

    def __str__(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}", "swapped" if self.swap else "", f"{self.shares} warpgroups"]
        parts += [f"up / {self.split_up}" if self.split_up > 1 else ""]
        parts += [f"down / {self.split_down}" if self.split_down > 1 else ""]
        parts += [f"{self.in_flight} in flight" if self.in_flight else ""]
        parts += [f"groups of {self.group}" if self.group else ""]
        parts += ["last wave of up levelled" if self.level_up else ""]
        parts += ["last wave of down levelled" if self.level_down else ""]
        return ", ".join(part for part in parts if part)


def hopper_setting(m: int, shape: FFNShape) -> HopperSetting:
    """The default setting for m tokens, from measurements on an H200 (docs/performance.md)."""

    def up_tiles(n: int) -> int:
        return -(-shape.ffn // n)

    def down_tiles(n: int) -> int:
        return -(-shape.hidden // n)

    tall = up_tiles(128) >= 0.8 * H200.sms
    if m <= 32:
        up, down = _splits(up_tiles(64), down_tiles(64))
        return HopperSetting(16 if m <= 16 else 32, 64, 256, True, 1, up, down, in_flight=3)
    if m <= 64 and tall:
        up, down = _splits(up_tiles(128), down_tiles(128))
        return HopperSetting(64, 128, 64, True, 1, up, down, in_flight=4)
    if m <= 64:
        up, down = _splits(up_tiles(64), down_tiles(64), 0.7)
        return HopperSetting(64, 64, 128, True, 1, up, down, in_flight=4)
    if m <= 128 and not tall and shape.gated:
        up, down = _splits(up_tiles(64), down_tiles(64))
        return HopperSetting(128, 64, 128, True, 1, up, down, in_flight=4)
    if m <= 128 or (m <= 256 and tall and not shape.gated):
        up, down = _splits(up_tiles(128), down_tiles(128), 0.8 if tall else 0.7)
        return HopperSetting(128 if m <= 128 else 256, 128, 64, True, 2, up, down, in_flight=4)
    # Many tokens: a last wave is levelled where no other work can fill it. Behind one wave of the up-projection
    # there is none; behind several, the down-projection's first tiles fill the last, unless they are long.
    rows, n = -(-m // 128), 128 if m <= 256 and not shape.gated else 256
    wave_up, wave_down = rows * up_tiles(n) % H200.sms, rows * down_tiles(n) % H200.sms
    one_wave = rows * up_tiles(n) <= H200.sms
    long_down = shape.ffn > shape.hidden and wave_up <= H200.sms // 2
    return HopperSetting(
        128,
        n,
        64,
        False,
        2,
        in_flight=4 if n == 256 else 6,
        group=4 if m <= 1024 else 8,
        level_up=not shape.gated and (one_wave or long_down),
        level_down=m <= 512 and wave_down <= H200.sms // 2,
    )


def _splits(up_tiles: int, down_tiles: int, least: float = 0.8) -> tuple[int, int]:
    """Parts of each tile where memory is the limit: one round of items that keeps most SMs busy, else about two.

    A round is one if it fills ``least`` of the SMs: the more tokens, the more a fix-up costs.

    After an up-projection of more than a round, blocks reach the down-projection at different times, and need
    items small enough to level that out.
    """

    def parts(tiles: int, one_round: bool) -> int:
        rounds = [tiles * p / H200.sms for p in range(1, 17)]
        good = [p for p, r in enumerate(rounds, 1) if r >= 1.6 or (one_round and least <= r <= 1)]
        return good[0] if good else 16

    up = parts(up_tiles, True)
    return up, parts(down_tiles, up_tiles * up <= H200.sms)


def fits(m: int, shape: FFNShape, setting: HopperSetting, dtype: DType = bf16) -> bool:
    """Whether a setting makes a launch: three stages or more in shared memory, all sums in registers."""
    splits = (setting.split_up, setting.split_down)
    if setting.shares not in (1, 2) or not all(1 <= parts <= _MOST_PARTS for parts in splits):
        return False
    if min(setting.in_flight, setting.group) < 0:
        return False
    if (setting.level_up and setting.split_up > 1) or (setting.level_down and setting.split_down > 1):
        return False
    try:
        graph = hopper_graph(m, shape, setting, dtype)
        for op in graph.ops:
            gluon_body(op).check(op, setting.shares)
        return default_pipeline(graph, H200).stages >= 3
    except (ShapeError, PlanError):
        return False


def hopper_graph(m: int, shape: FFNShape, setting: HopperSetting, dtype: DType, bias: bool = False) -> Graph:
    down = MatmulTile(setting.m, setting.n, setting.k, num_warps=4 * setting.shares, swap=setting.swap)
    up = down
    if shape.gated:
        up = replace(down, k=down.k // 2) if down.k > 64 else down
        if up.m * up.n * 2 > 128 * 128 * setting.shares:
            up = replace(up, n=up.n // 2)
    return ffn(m, shape, dtype, up, down, bias)


def hopper_plan(
    m: int, shape: FFNShape, setting: HopperSetting, dtype: DType = bf16, workers: int = H200.sms, bias: bool = False
) -> Plan:
    """The plan of an FFN over m tokens under a setting."""

    def split(op: Op, parts: int, level: bool) -> Split:
        if level:
            return SplitTail.levelled(op.tiles, op.reduction.chunks if op.reduction else 1, workers)
        return SplitK(parts) if parts > 1 else Whole()

    graph = hopper_graph(m, shape, setting, dtype, bias)
    up, down = graph.ops
    choices = Choices(
        workers,
        order=GroupedPanels(setting.group) if setting.group else RowMajor(),
        split={
            "up": split(up, setting.split_up, setting.level_up),
            "down": split(down, setting.split_down, setting.level_down),
        },
    )
    return build(graph, choices)


def hopper_executor(
    m: int,
    shape: FFNShape,
    setting: HopperSetting,
    options: Options | None = None,
    dtype: DType = bf16,
    workers: int = H200.sms,
    bias: bool = False,
) -> HopperExecutor:
    """An FFN over m tokens, planned, verified and ready to run.

    Raises:
        PlanError, NoDeviceError, ShapeError, DTypeError: as ``HopperExecutor`` does.
    """
    plan = hopper_plan(m, shape, setting, dtype, workers, bias)
    pipeline = default_pipeline(plan.graph, H200)
    if setting.in_flight:
        pipeline = replace(pipeline, in_flight=setting.in_flight)
    return HopperExecutor(plan, options, pipeline)
