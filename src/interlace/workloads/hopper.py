"""FFNs on the Hopper executor: how they are tiled by default, what else is worth trying, and the plan of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from interlace.core.dtypes import DType, bf16
from interlace.core.errors import ShapeError
from interlace.executors.device import Options
from interlace.executors.hopper import HopperExecutor, default_pipeline
from interlace.kernels.matmul import MatmulTile
from interlace.plan.plan import Plan
from interlace.planner.build import Choices, build
from interlace.policies.interleavings import OpAfterOp, Panels
from interlace.policies.orders import GroupedPanels, RowMajor
from interlace.policies.splits import Split, SplitK, Whole
from interlace.policies.sync import RowSync, TileSync
from interlace.workloads.ffn import FFNShape, ffn

_MOST_PARTS = 64  # of one tile's reduction


@dataclass(frozen=True)
class HopperSetting:
    """How an FFN runs on the Hopper executor, as plain numbers.

    Attributes:
        m, n, k: extents of a tile in tokens and weight rows, and of a stage along k.
        swap: weights are the tensor core's 64-row operand.
        shares: warpgroups per tile, 1 or 2.
        split_up, split_down: parts of each tile's reduction.
        in_flight: most stages of weights under way at once in one block, 0 for the default.
        group: row panels that an order groups, 0 for row-major.
        interleave: row panels of the up-projection before the panels of the down-projection that they feed;
            0 for one op after the other.
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
    interleave: int = 0

    def to_data(self) -> dict[str, int | bool]:
        """As JSON data."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> HopperSetting:
        """The inverse of ``to_data``. Raises ValueError for anything else than what it wrote."""
        fields = {name: type(value) for name, value in asdict(HopperSetting(64, 64, 64, False)).items()}
        if set(data) != set(fields) or any(type(data[name]) is not kind for name, kind in fields.items()):
            raise ValueError(f"not a Hopper setting: {dict(data)!r}")
        return HopperSetting(**data)

    def __str__(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}", "swapped" if self.swap else "", f"{self.shares} warpgroups"]
        parts += [f"up / {self.split_up}" if self.split_up > 1 else ""]
        parts += [f"down / {self.split_down}" if self.split_down > 1 else ""]
        parts += [f"{self.in_flight} in flight" if self.in_flight else ""]
        parts += [f"groups of {self.group}" if self.group else ""]
        parts += [f"interleaved by {self.interleave}" if self.interleave else ""]
        return ", ".join(part for part in parts if part)


def hopper_setting(m: int, shape: FFNShape) -> HopperSetting:
    """The default setting for m tokens, from measurements on an H200 (docs/performance.md).

    A gated FFN has stages of twice the extent, for its two weights, and tiles of half the size, for its two sums.
    """
    if m <= 32:
        return HopperSetting(16 if m <= 16 else 32, 64, 256, True, split_down=4, in_flight=3)
    if shape.gated and m <= 64:
        return HopperSetting(64, 128, 128, True, split_down=4)
    if shape.gated and m <= 256:
        return HopperSetting(128, 128, 128, True, 2, split_down=4)
    if shape.gated:
        return HopperSetting(128, 128, 128, False, 2, group=8)
    if m <= 64:
        return HopperSetting(64, 128, 64, True, split_down=4, in_flight=4)
    if m <= 128:
        return HopperSetting(128, 128, 64, True, 2, split_down=4, in_flight=4)
    if m <= 256:
        return HopperSetting(256, 128, 64, True, 2, split_down=4)
    return HopperSetting(128, 256, 64, False, 2, group=8)


def fits(m: int, shape: FFNShape, setting: HopperSetting, dtype: DType = bf16) -> bool:
    """Whether a setting makes a launch: three stages or more in shared memory, all sums in registers.

    A thread of a warpgroup keeps at most 128 floats of sums; more would spill.
    """
    sums = 2 if shape.gated else 1
    rows, columns = (setting.n, setting.m) if setting.swap else (setting.m, setting.n)
    splits = (setting.split_up, setting.split_down)
    if setting.shares not in (1, 2) or not all(1 <= parts <= _MOST_PARTS for parts in splits):
        return False
    if min(setting.in_flight, setting.group, setting.interleave) < 0:
        return False
    if rows % (64 * setting.shares) or columns > 256 or setting.k % (64 * sums):
        return False
    if rows * columns * sums > 128 * 128 * setting.shares:
        return False
    try:
        ops = ffn(m, shape, dtype, _tile(setting), _tile(setting)).ops
    except ShapeError:  # an extent that is no power of two
        return False
    return default_pipeline(ops).stages >= 3


def _tile(setting: HopperSetting) -> MatmulTile:
    return MatmulTile(setting.m, setting.n, setting.k, num_warps=4 * setting.shares, swap=setting.swap)


def hopper_plan(
    m: int, shape: FFNShape, setting: HopperSetting, dtype: DType = bf16, workers: int = 132, bias: bool = False
) -> Plan:
    """The plan of an FFN over m tokens under a setting."""
    tile = _tile(setting)

    def split(parts: int) -> Split:
        return SplitK(parts) if parts > 1 else Whole()

    choices = Choices(
        workers,
        policy=RowSync() if setting.interleave else TileSync(),
        order=GroupedPanels(setting.group) if setting.group else RowMajor(),
        split={"up": split(setting.split_up), "down": split(setting.split_down)},
        interleaving=Panels(setting.interleave) if setting.interleave else OpAfterOp(),
    )
    return build(ffn(m, shape, dtype, tile, tile, bias), choices)


def hopper_executor(
    m: int,
    shape: FFNShape,
    setting: HopperSetting,
    options: Options | None = None,
    dtype: DType = bf16,
    workers: int = 132,
    bias: bool = False,
) -> HopperExecutor:
    """An FFN over m tokens, planned, verified and ready to run.

    Raises:
        PlanError, NoDeviceError, ShapeError, DTypeError: as ``HopperExecutor`` does.
    """
    plan = hopper_plan(m, shape, setting, dtype, workers, bias)
    pipeline = default_pipeline(plan.graph.ops)
    if setting.in_flight:
        pipeline = replace(pipeline, in_flight=setting.in_flight)
    return HopperExecutor(plan, options, pipeline)
