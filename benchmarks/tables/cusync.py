"""CuSync's four benchmarks next to its published times: blocks of benchmarks/notes/cusync.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tables import format_table
from tables.ffn import pick_fastest, tiled_ratios

PUBLISHED = Path(__file__).resolve().parents[1] / "rivals" / "cusync.json"
FAMILIES = {
    "mlp": "MLPs",
    "attention": "attention",
    "conv-pair": "pairs of convolutions",
    "conv-chain": "chains of four convolutions",
}
_LAUNCHES, _PLANNED, _MEGAKERNEL = "launches", "as planned", "megakernel"
_TRITON = "streams", "persistent"
_POLICIES, _STREAM_K = ("RowSync", "TileSync", "StridedSync"), "stream-K"


@cache
def read_published() -> dict[tuple[Any, ...], dict[str, float]]:
    """Return CuSync's published microseconds by family, model, rows, cached positions and GPU."""
    keys = "family", "model", "rows", "cached", "gpu"
    return {tuple(row[key] for key in keys): row["us"] for row in json.loads(PUBLISHED.read_text())["rows"]}


def split_columns(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ways of PyTorch and ours, by name."""
    own = {name: way for name, way in row["ways"].items() if "executor" in way}
    return {name: way for name, way in row["ways"].items() if name not in own}, own


def find_best(ways: Mapping[str, Any], executors: Iterable[str] = ()) -> float | None:
    """Return the microseconds of the fastest way, of those of some executors if any are named; None without one."""
    names = tuple(f"{name}, " for name in executors)
    some = {name: way for name, way in ways.items() if not names or name.startswith(names)}
    return some[pick_fastest(some)]["median_us"] if some else None


def compute_ratios(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the speedups of a row: tile synchronisation alone, the megakernel beyond it, and over PyTorch."""
    libraries, own = split_columns(row)
    launches, planned = (own[name]["median_us"] if name in own else None for name in (_LAUNCHES, _PLANNED))
    tiled, best = find_best(own, _TRITON), find_best(libraries)
    pairs = {"alone": (launches, tiled), "megakernel": (tiled, planned), "pytorch": (best, planned)}
    return {name: one / other if one and other else None for name, (one, other) in pairs.items()}


def compute_published(key: tuple[Any, ...], gpu: str) -> dict[str, float]:
    """Return published speedups over CuSync's own launches, by policy and of Stream-K; ``key`` has no GPU."""
    us = read_published().get((*key, gpu), {})
    return {name: us["launches"] / us[name] for name in (*_POLICIES, _STREAM_K) if name in us}


def compute_best_policy(key: tuple[Any, ...], gpu: str) -> float:
    """Return CuSync's published speedup with its best policy."""
    return max(ratio for name, ratio in compute_published(key, gpu).items() if name in _POLICIES)


def family_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of one family."""
    policies = list(dict.fromkeys(name for row in rows for name in split_columns(row)[1] if ", " in name))
    sizes = ["channels", "images"] if rows[0]["family"].startswith("conv") else ["model", "rows"]
    cached = any(row["cached"] for row in rows)
    heads = [*sizes, *(["cached"] if cached else []), "best of PyTorch", _LAUNCHES, *policies, _PLANNED]
    keys = [tuple(row[name] for name in ("family", "model", "rows", "cached")) for row in rows]
    theirs = {gpu: [compute_published(key, gpu) for key in keys] for gpu in ("V100", "A100")}
    theirs = {gpu: ratios for gpu, ratios in theirs.items() if any(ratios)}
    heads += ["over PyTorch", "tiles alone", "megakernel adds"]
    heads += [f"CuSync, {gpu}: {', '.join(dict.fromkeys(n for r in each for n in r))}" for gpu, each in theirs.items()]
    table = []
    for at, row in enumerate(rows):
        libraries, own = split_columns(row)
        us = [find_best(libraries), *(own[n]["median_us"] if n in own else None for n in (_LAUNCHES, *policies))]
        us.append(own[_PLANNED]["median_us"] if _PLANNED in own else None)
        ratios = compute_ratios(row)
        cells = [row["model"], row["rows"], *([row["cached"]] if cached else []), *(_format(value, 1) for value in us)]
        cells += [_format(ratios[name], 2) for name in ("pytorch", "alone", "megakernel")]
        table.append([*cells, *(", ".join(_format(v, 2) for v in each[at].values()) for each in theirs.values())])
    return format_table(" | ".join(heads).replace("()", ""), table)


def cusync_table(record: dict[str, Any]) -> str:
    """Return the tables of all families that the record has."""
    parts = [f"Medians in microseconds on an {record['gpu']} ({record['date']}); `{record['command']}` repeats them."]
    for family, title in FAMILIES.items():
        rows = [row for row in record["rows"] if row["family"] == family]
        if rows:
            parts += [f"Table: {title}.", family_table(rows)]
    return "\n\n".join(parts)


def cusync_summary(record: dict[str, Any]) -> str:
    """Return what tile synchronisation alone is worth, what the megakernel adds, and what CuSync published."""
    table = []
    for family, title in FAMILIES.items():
        rows = [row for row in record["rows"] if row["family"] == family]
        ratios = [compute_ratios(row) for row in rows]
        if ratios:
            cells = [_describe([each[name] for each in ratios]) for name in ("alone", "megakernel", "pytorch")]
            theirs = [_describe(_list_best(family, gpu)) for gpu in ("V100", "A100")]
            table.append([title, len(rows), *cells, *theirs])
    heads = "benchmark | cases | tile synchronisation alone | what the megakernel adds | as planned over PyTorch"
    return format_table(f"{heads} | CuSync over CUTLASS on a V100 | on an A100", table)


def _list_best(family: str, gpu: str) -> list[float | None]:
    """Return CuSync's published speedups with the best policy of each case."""
    keys = [key[:-1] for key in read_published() if key[0] == family and key[-1] == gpu]
    return [compute_best_policy(key, gpu) for key in keys]


def _describe(ratios: list[float | None]) -> str:
    """Format a geometric mean with the lowest and the highest ratio."""
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{geometric_mean(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else ""


def _format(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def published_table() -> str:
    """Return CuSync's published speedups over its own launches, by benchmark and GPU."""
    gpus = json.loads(PUBLISHED.read_text())["gpus"]
    table = []
    for family, title in FAMILIES.items():
        for gpu, name in gpus.items():
            keys = [key[:-1] for key in read_published() if key[0] == family and key[-1] == gpu]
            if not keys:
                continue
            each = [compute_published(key, gpu) for key in keys]
            by_policy = [[ratios.get(name) for ratios in each] for name in _POLICIES]
            stream_k = [ratios.get(_STREAM_K) for ratios in each]
            cells = map(_describe, (*by_policy, _list_best(family, gpu), stream_k))
            table.append([title, name, len(keys), *cells])
    heads = "benchmark | GPU | cases | RowSync | TileSync | StridedSync | best policy"
    return format_table(f"{heads} | stream-K", table)


def hopper_lines(plain: dict[str, Any], megakernel: dict[str, Any]) -> str:
    """Return what tile synchronisation alone and the megakernel are worth on CuSync's MLP of GPT-3."""
    rows = [row for row in plain["rows"] if row["preset"] == "gpt3-145b-tp8"]
    tiled, everything = tiled_ratios({"rows": rows}), geometric_mean(tiled_ratios(plain))
    gains = [f"{row['size']}" for row, ratio in zip(rows, tiled, strict=True) if ratio > 1.02]
    ahead = [row["ratio"] for row in megakernel["rows"] if row["preset"] == "gelu"]
    lines = (
        f"**Tile synchronisation alone** runs the same Triton bodies at {geometric_mean(tiled):.2f} times the speed of "
        f"launches op by op (geometric mean of {len(rows)} sizes, {min(tiled):.2f} to {max(tiled):.2f}). It gains more "
        f"than 2 % at {' and '.join(gains)} tokens, where the last wave of launches is badly filled. With the FFN of "
        f"llama3-8b, the mean is {everything:.2f} (`ffn-models-h200.json`).",
        f"**The megakernel** runs it at {geometric_mean(ahead):.2f} times the speed of the best of PyTorch, back to "
        f"back (geometric mean of {len(ahead)} sizes, {min(ahead):.2f} to {max(ahead):.2f}, `ffn-h200.json`).",
    )
    return "\n".join(f"- {line}" for line in lines)
