"""Which setting of the Hopper executor is fastest for an FFN on this GPU: try the likely ones and keep the best.

All candidates for one number of tokens are compiled in parallel, compared with float64, and timed in one process,
interleaved. The fastest few are then timed again beside the default, over more rounds: the least of a hundred
medians is partly luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from interlace.bench.hopper import OPTIONS, compile_all
from interlace.bench.problem import FFNProblem
from interlace.bench.timing import median_us
from interlace.core.dtypes import DType, bf16, fp16
from interlace.core.errors import DTypeError, InterlaceError
from interlace.executors.gpu import open_device
from interlace.executors.hopper import HopperExecutor
from interlace.workloads import tuned
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, fits, hopper_executor, hopper_setting

#: Called with what goes on, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]

_FEW, _SOME = 256, 1024  # tokens up to which weights are the 64-row operand; up to which splits may pay
_ROUNDS, _FINAL_ROUNDS, _FINALISTS = 7, 25, 5
_IN_FLIGHT_BYTES = (64 << 10, 96 << 10)  # what it takes to saturate memory (docs/performance.md)
_PARTS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Tuned:
    """What the search found for m tokens.

    Attributes:
        m: tokens.
        tried: candidates that ran and were right, the default among them.
        failed: candidates that did not compile, did not run, or were wrong.
        default, default_us: the default setting and its time.
        best, best_us: the fastest setting and its time, from the same interleaved rounds.
    """

    m: int
    tried: int
    failed: int
    default: HopperSetting
    default_us: float
    best: HopperSetting
    best_us: float

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "m": self.m,
            "tried": self.tried,
            "failed": self.failed,
            "default": {"setting": self.default.to_data(), "us": self.default_us},
            "best": {"setting": self.best.to_data(), "us": self.best_us},
        }


def candidates(m: int, shape: FFNShape, sms: int, dtype: DType = bf16) -> tuple[HopperSetting, ...]:
    """Settings worth timing for m tokens on a GPU of ``sms`` SMs, the default first, each once."""
    likely = [*(_for_few_tokens(m, shape, sms) if m <= _FEW else ()), *(_for_many_tokens(m) if m >= _FEW else ())]
    usable = (setting for setting in likely if fits(m, shape, setting, dtype))
    return tuple(dict.fromkeys((hopper_setting(m, shape), *usable)))


def tune(
    shape: FFNShape,
    ms: Sequence[int],
    dtype: DType = bf16,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[Tuned]:
    """Search for each number of tokens in turn, on the current CUDA device, and store what is best.

    Raises:
        NoDeviceError: there is no GPU of the Hopper generation.
        DTypeError: another dtype than bf16 and fp16.
        ResultError: the default setting is wrong.
        OSError: the cache cannot be written.
    """
    torch, device = open_device("cuda")
    if dtype not in (bf16, fp16):
        raise DTypeError(f"the Hopper executor multiplies bf16 and fp16, not {dtype}; tune for one of these")
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    gpu = torch.cuda.get_device_name(device)
    for m in ms:
        found = _search(m, shape, dtype, sms, progress)
        tuned.store(gpu, m, shape, found.best, found.best_us, dtype)
        yield found


def _search(m: int, shape: FFNShape, dtype: DType, sms: int, progress: Progress) -> Tuned:
    default = hopper_setting(m, shape)
    hopper_executor(m, shape, default, OPTIONS, dtype, sms)  # says at once if this GPU will not do
    settings = candidates(m, shape, sms, dtype)
    total = len(settings)
    for left in compile_all([(m, shape, setting) for setting in settings], dtype):
        progress(f"{m} tokens: compiling", total - left, total)
    problem = FFNProblem(m, shape, dtype)
    right: dict[HopperSetting, HopperExecutor] = {}
    for done, setting in enumerate(settings, 1):
        executor = _checked(problem, m, shape, setting, dtype, sms, needed=setting == default)
        if executor is not None:
            right[setting] = executor
        progress(f"{m} tokens: checking", done, total)
    progress(f"{m} tokens: timing {len(right)} settings", 0, 2)
    first = _times(problem, right, _ROUNDS)
    progress(f"{m} tokens: timing the fastest again", 1, 2)
    finalists = {default, *sorted(first, key=first.__getitem__)[:_FINALISTS]}
    last = _times(problem, {setting: right[setting] for setting in finalists}, _FINAL_ROUNDS)
    best = min(last, key=last.__getitem__)
    progress(f"{m} tokens: done", 2, 2)
    return Tuned(m, len(right), total - len(right), default, last[default], best, last[best])


def _checked(
    problem: FFNProblem, m: int, shape: FFNShape, setting: HopperSetting, dtype: DType, sms: int, needed: bool
) -> HopperExecutor | None:
    """An executor that has given the right result; None if it cannot, unless it is needed."""
    from triton.runtime.errors import TritonError

    try:
        executor = hopper_executor(m, shape, setting, OPTIONS, dtype, sms)
        problem.check(executor)
    except (InterlaceError, TritonError):
        if needed:
            raise
        return None
    return executor


def _times(
    problem: FFNProblem, executors: Mapping[HopperSetting, HopperExecutor], rounds: int
) -> dict[HopperSetting, float]:
    """Median microseconds per run of each."""
    settings = {str(i): setting for i, setting in enumerate(executors)}
    functions = {name: problem.every(problem.run(executors[setting])) for name, setting in settings.items()}
    times = median_us(functions, rounds, calls=problem.runs)
    return {setting: times[name].median_us for name, setting in settings.items()}


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
    """Parts per tile that give each SM half an item to two items, or come closest to that."""
    possible = [parts for parts in _PARTS if parts <= chunks]
    busy = [parts for parts in possible if sms <= 2 * tiles * parts <= 4 * sms]
    return busy or [possible[0] if 2 * tiles > sms else possible[-1]]


def _for_many_tokens(m: int) -> Iterator[HopperSetting]:
    """Tokens as rows: shapes of tiles, and which of them run close together."""
    splits = ((1, 1), (1, 2), (2, 2)) if m <= _SOME else ((1, 1),)
    tiles = ((128, 64, 128), (128, 128, 64), (128, 128, 128), (128, 256, 64), (256, 128, 64))
    for (rows, n, k), (up, down) in product(tiles, splits):
        plain = HopperSetting(rows, n, k, False, 2, up, down)
        panels = -(-m // rows)
        yield plain
        yield from (replace(plain, group=group) for group in (4, 8, 16) if group <= panels)
