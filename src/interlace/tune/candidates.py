"""Settings of an FFN that prediction is asked about: broad grids, for it costs milliseconds each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from interlace.core.dtypes import DType
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, fits
from interlace.workloads.one_launch import OneLaunch
from interlace.workloads.persistent import adapted, persistent_fits
from interlace.workloads.settings import FFNSetting, ffn_settings
from interlace.workloads.tuned import Setting

_FEW, _SOME = 256, 1024  # tokens up to which weights are the 64-row operand; up to which splits may pay
_MANY = 4096  # from which on a prediction takes a tenth of a second, and only large tiles in groups come close
_IN_FLIGHT_BYTES = (64 << 10, 96 << 10)  # what it takes to saturate memory (docs/performance.md)
_PARTS = (1, 2, 3, 4, 6, 8)
_TILES = ((128, 128, 64), (128, 256, 64), (256, 128, 64))
_DEEP_TILES = ((128, 64, 128), (128, 128, 128))
_GROUPS, _WIDE_GROUPS = (0, 2, 4), (8, 16)
_NEIGHBOURS = (0.5, 1, 2)  # numbers of tokens, as parts of ours, whose tilings may suit us too


def candidates(case: OneLaunch) -> tuple[Setting, ...]:
    """Settings that make a launch, the default first, each once."""
    if case.on_hopper:
        return _unlike(case.default(), _for_hopper(case.m, case.shape, case.dtype, case.gpu.sms))
    return _unlike(case.default(), _for_persistent(case))


def _unlike(first: Setting, rest: Iterator[Setting]) -> tuple[Setting, ...]:
    return tuple(dict.fromkeys((first, *rest)))


def _for_hopper(m: int, shape: FFNShape, dtype: DType, sms: int) -> Iterator[HopperSetting]:
    likely = [*(_for_few_tokens(m, shape, sms) if m <= _FEW else ()), *(_for_many_tokens(m) if m >= _FEW else ())]
    return (setting for setting in likely if fits(m, shape, setting, dtype))


def _for_few_tokens(m: int, shape: FFNShape, sms: int) -> Iterator[HopperSetting]:
    """Weights as the 64-row operand: shapes of stages, splits that keep every SM busy, bytes in flight."""
    padded = min(_FEW, max(16, 1 << (m - 1).bit_length()))
    for tokens, n, k in product((padded, padded // 2), (64, 128, 256), (64, 128, 256)):
        if tokens < 64 and (tokens < padded or n == 256):
            continue
        shares = 2 if n > 64 and tokens * n > 64 * 128 else 1
        rows = -(-m // tokens)
        ups = _splits(rows * -(-shape.ffn // n), -(-shape.hidden // k), sms)
        downs = _splits(rows * -(-shape.hidden // n), -(-shape.ffn // k), sms)
        for up, down, flying in product(ups, downs, _IN_FLIGHT_BYTES):
            yield HopperSetting(tokens, n, k, True, shares, up, down, max(1, flying // (n * k * 2)))


def _splits(tiles: int, chunks: int, sms: int) -> list[int]:
    """Parts per tile that give each SM half an item to three items, or come closest to that."""
    possible = [parts for parts in _PARTS if parts <= chunks]
    busy = [parts for parts in possible if sms <= 2 * tiles * parts <= 6 * sms]
    return busy or [possible[0] if 2 * tiles > sms else possible[-1]]


def _for_many_tokens(m: int) -> Iterator[HopperSetting]:
    """Tokens as rows: shapes of tiles, which of them run close together, what becomes of the last wave."""
    tiles = _TILES if m >= _MANY else (*_TILES, *_DEEP_TILES)
    groups = _WIDE_GROUPS if m >= _MANY else (*_GROUPS, *_WIDE_GROUPS)
    splits = ((1, 1), (1, 2), (2, 1), (2, 2)) if m <= _SOME else ((1, 1),)
    levels = ((False, False), (True, False), (False, True), (True, True))
    for (rows, n, k), group in product(tiles, groups):
        if group > -(-m // rows):
            continue
        plain = HopperSetting(rows, n, k, False, 2, group=group)
        yield from (replace(plain, split_up=up, split_down=down) for up, down in splits)
        yield from (replace(plain, level_up=up, level_down=down) for up, down in levels)


def _for_persistent(case: OneLaunch) -> Iterator[FFNSetting]:
    """Tilings that did well at about as many tokens."""
    shape, dtype, smem_bytes = case.shape, case.dtype, case.gpu.smem_bytes
    for share in _NEIGHBOURS:
        for setting in ffn_settings(max(1, int(case.m * share)), shape):
            fitted = adapted(setting, shape, dtype, smem_bytes)
            if persistent_fits(shape, fitted, dtype, smem_bytes):
                yield fitted
