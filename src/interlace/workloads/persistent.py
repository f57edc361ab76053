"""FFNs on the persistent executor: which tilings fit a GPU, how they are tiled by default, and the plan of each.

A stage of the software pipeline holds one chunk of every operand. In bf16, a gated 128 x 128 x 64 tile takes
64 * (128 + 2 * 128) * 2 = 48 KiB a stage, so that 227 KiB hold four; in fp32 a chunk of 32 takes as much.
"""

from __future__ import annotations

from dataclasses import replace

from interlace.core.dtypes import DType, bf16
from interlace.executors.options import Options
from interlace.executors.persistent import PersistentExecutor
from interlace.kernels.matmul import MatmulTile
from interlace.plan.plan import Plan
from interlace.planner.build import Choices, build
from interlace.workloads.ffn import FFNShape, ffn
from interlace.workloads.settings import FFNSetting

_SUMS_PER_THREAD = 128  # float32, beside which registers hold operands and addresses
_LEAST_CHUNK = 16


def persistent_setting(m: int, shape: FFNShape, dtype: DType, smem_bytes: int) -> FFNSetting:
    """The default setting for m tokens."""
    tile = MatmulTile.heuristic(m)
    up = tile
    if shape.gated and 2 * tile.m * tile.n > _SUMS_PER_THREAD * 32 * tile.num_warps:
        up = replace(tile, n=tile.n // 2)
    return adapted(FFNSetting(up, tile), shape, dtype, smem_bytes)


def adapted(setting: FFNSetting, shape: FFNShape, dtype: DType, smem_bytes: int) -> FFNSetting:
    """A setting for bf16 on an H200 with chunks of as many bytes, and no more stages than shared memory holds."""

    def tile(given: MatmulTile, weights: int) -> MatmulTile:
        k = max(_LEAST_CHUNK, given.k * bf16.itemsize // dtype.itemsize)
        one = replace(given, k=k, stages=1)
        stages = smem_bytes // _smem_bytes(one, weights, dtype)
        return replace(given, k=k, stages=max(1, min(given.stages, stages)))

    return replace(setting, up=tile(setting.up, 1 + shape.gated), down=tile(setting.down, 1))


def persistent_fits(shape: FFNShape, setting: FFNSetting, dtype: DType, smem_bytes: int) -> bool:
    """Whether a setting makes a launch: its stages in shared memory, its sums in registers."""

    def tile(tile: MatmulTile, weights: int) -> bool:
        sums = weights * tile.m * tile.n
        return (
            tile.num_warps in (4, 8)
            and sums <= _SUMS_PER_THREAD * 32 * tile.num_warps
            and _smem_bytes(tile, weights, dtype) <= smem_bytes
        )

    return tile(setting.up, 1 + shape.gated) and tile(setting.down, 1)


def _smem_bytes(tile: MatmulTile, weights: int, dtype: DType) -> int:
    return tile.stages * tile.k * (tile.m + weights * tile.n) * dtype.itemsize


def persistent_plan(m: int, shape: FFNShape, setting: FFNSetting, dtype: DType, workers: int) -> Plan:
    """The plan of an FFN over m tokens under a setting."""
    graph = ffn(m, shape, dtype, setting.up, setting.down)
    return build(graph, Choices(workers, order=setting.order, split=setting.splits))


def persistent_executor(
    m: int, shape: FFNShape, setting: FFNSetting, options: Options, dtype: DType, workers: int
) -> PersistentExecutor:
    """An FFN over m tokens, planned, verified and ready to run.

    Raises:
        PlanError, NoDeviceError: as ``PersistentExecutor`` does.
    """
    return PersistentExecutor(persistent_plan(m, shape, setting, dtype, workers), options)
