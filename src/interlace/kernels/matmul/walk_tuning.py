"""How matmuls of the one launch are tiled: by rule, and what else is worth trying.

Tiles may have any width that is a multiple of 8, and each op its own, so that one or two waves of tiles fill all SMs:
14336 weight rows make 128 tiles of 112 on 132 SMs, where tiles of 128 are 112. Which width and how many parts is a
matter of what a tile costs, in cycles of an SM for every 16 of k (measured on an H200, docs/performance.md):

    products             one for each weight row of a tile of 128 tokens, two matrices with a gate
    loads through L2     2/3 for each row of tokens and of weights: 32 bytes at the 48 bytes a cycle of sim's model

A wave lasts as long as its longest item, and an item costs 3000 cycles more (fill, epilogue, hand-over). Parts of a
tile write what they have summed, and the last reads all of it: 15 bytes a cycle (partial sums of 64 KiB take 5 us to
store and load).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul import gluon_tuning
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import matmuls, sums
from interlace.kernels.tuning import Tuning
from interlace.policies.setting import OpSetting, Setting

_FEW = 128  # tokens up to which memory is the limit, and the other operand hardly counts
_TALL, _WIDEST, _STEP = 128, 256, 8
_LEAST_WIDTH = 64  # below, loads of tokens are all that a tile does
_K16 = 16
_LOAD_CYCLES, _ITEM_CYCLES, _SUM_BYTES_PER_CYCLE = 2 / 3, 3000, 15
_PARTS = (1, 2, 3, 4)
_TRIED = 4  # ways of each op that a search looks at
_STAGE_BYTES = 28 << 10  # of weights: with few tokens eight stages fit
_MOST_TOKENS_SHARE = 3  # tokens may be a third of the weight rows of a tile before splitting beats narrow tiles


def default(graph: Graph, device: DeviceSpec) -> Setting:
    """The setting that is taken without a search."""
    ops = matmuls(graph)
    if not ops:
        return Setting()
    m = max(int(op.param("M")) for op in ops)
    if m > _FEW:
        return _wide(ops, m, device.sms)
    return _whole(ops, m, device.sms) or _here(gluon_tuning.default(graph, device))


def _here(setting: Setting) -> Setting:
    """A setting of the Gluon launch here, where loads in flight are a number of bytes."""
    return replace(setting, in_flight=0)


def _whole(ops: tuple[Op, ...], m: int, sms: int) -> Setting | None:
    """One wave of whole tiles per op, as wide as that makes them, if none is so narrow that tokens weigh more."""
    each = []
    for op in ops:
        width = _up(-(-int(op.param("N")) // sms), _STEP)
        rows = width * sums(op)
        if rows > _WIDEST or _up(m, _STEP) * _MOST_TOKENS_SHARE > rows:
            return None
        panels = max(1, _STAGE_BYTES // (rows * 2 * PANEL))
        tokens, warps = (64, 4) if m <= 64 else (128, 8)
        each.append((op.name, OpSetting(MatmulTile(tokens, width, panels * PANEL, num_warps=warps).params)))
    return Setting(tuple(each))


def _wide(ops: tuple[Op, ...], m: int, sms: int) -> Setting:
    """For many tokens: each op in the width and the parts that cost least."""
    group = 4 if m <= 1024 else 8
    each = []
    for op in ops:
        width, parts = min(_ways(op), key=lambda way: _cycles(op, way[0], way[1], sms))
        each.append((op.name, replace(_tiled(width), parts=parts, group=group)))
    return Setting(tuple(each))


def _ways(op: Op) -> Iterator[tuple[int, int]]:
    """Widths and parts of an op."""
    chunks = -(-int(op.param("K")) // PANEL)
    widths = range(_WIDEST // sums(op), _LEAST_WIDTH // sums(op) - 1, -_STEP)
    return ((width, parts) for width, parts in product(widths, _PARTS) if parts <= chunks)


def _cheapest(op: Op, sms: int) -> list[tuple[int, int]]:
    return sorted(_ways(op), key=lambda way: _cycles(op, way[0], way[1], sms))[:_TRIED]


def _cycles(op: Op, width: int, parts: int, sms: int) -> float:
    """Of an op over many tokens; see the module."""
    m, n, k = (int(op.param(name)) for name in "MNK")
    rows = width * sums(op)
    waves = -(-(-(-m // _TALL) * -(-n // width) * parts) // sms)
    steps = -(-k // _K16) / parts
    item = steps * max(rows, _LOAD_CYCLES * (_TALL + rows)) + _ITEM_CYCLES
    fix_up = 0.5 * (1 + parts) * 4 * _TALL * rows / _SUM_BYTES_PER_CYCLE if parts > 1 else 0.0
    return waves * item + fix_up


def _tiled(width: int) -> OpSetting:
    return OpSetting(MatmulTile(_TALL, width, PANEL, num_warps=8).params)


def likely(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """The rules for few and for many tokens, and those of the Gluon launch, whose tiles this one takes too."""
    ops = matmuls(graph)
    if not ops:
        return
    m = max(int(op.param("M")) for op in ops)
    whole = _whole(ops, m, device.sms)
    if whole is not None:
        yield whole
    if m > 64:
        yield _wide(ops, m, device.sms)
    yield from map(_here, gluon_tuning.likely(graph, device))


def settings(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """For many tokens the cheapest ways of each op with those of every other; then all of the Gluon launch."""
    ops = matmuls(graph)
    if not ops:
        return
    m = max(int(op.param("M")) for op in ops)
    if m > 64:
        for ways in product(*(_cheapest(op, device.sms) for op in ops)):
            pairs = zip(ops, ways, strict=True)
            yield Setting(tuple((op.name, replace(_tiled(way[0]), parts=way[1], group=4)) for op, way in pairs))
    yield from likely(graph, device)
    yield from map(_here, gluon_tuning.settings(graph, device))


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step


WALK = Tuning(default, likely, settings)
