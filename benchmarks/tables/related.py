"""Predictions next to published work: blocks of docs/related.md."""

from __future__ import annotations

from itertools import pairwise
from typing import Any


def chain_line(record: dict[str, Any]) -> str:
    """Return what a chain of BERT's attention reads by plan and size of the L2."""
    plans = {row["plan"]: row for row in record["chain"]}
    by_op = plans["op by op"]
    compulsory = by_op["compulsory_bytes"]
    least = {name: find_least_mib(row) for name, row in plans.items()}
    largest = max(map(int, by_op["read_bytes"]))
    return (
        f"Its chain of BERT (12 heads of 512 x 64) is predicted to read "
        f"{max(by_op['read_bytes'].values()) / 1e6:.1f} MB op by op with up to {find_last_mib(by_op)} MiB of cache. It "
        f"reads the compulsory {compulsory / 1e6:.1f} MB head by head from {least['head by head']} MiB on, and in one "
        f"launch from {least['one launch']}; an H200 has {largest}."
    )


def find_least_mib(row: dict[str, Any]) -> int:
    """Return the smallest cache in MiB from which a plan reads only its compulsory bytes, but for a thousandth."""
    more = [int(mib) for mib, nbytes in row["read_bytes"].items() if nbytes > 1.001 * row["compulsory_bytes"]]
    return min(int(mib) for mib in row["read_bytes"] if int(mib) > max(more, default=0))


def find_last_mib(row: dict[str, Any]) -> int:
    """Return the largest cache in MiB with which a plan reads more than its compulsory bytes."""
    return max(int(mib) for mib, nbytes in row["read_bytes"].items() if nbytes > row["compulsory_bytes"])


def widths_line(record: dict[str, Any]) -> str:
    """Return the largest step of predicted time over the columns of a matmul."""
    before, after = max(pairwise(record["widths"]), key=lambda pair: pair[1]["row_major_us"] / pair[0]["row_major_us"])
    return (
        f"A matmul of 1,024 tokens by 4,096 in 128 x 128 tiles is predicted to take {before['row_major_us']:.1f} us "
        f"with {before['columns']:,} columns ({before['waves']:.2f} waves) and {after['row_major_us']:.1f} with "
        f"{after['columns']:,} ({after['waves']:.2f}); {after['explained_us']:.1f} with the last wave split, and "
        f"{after['megakernel_us']:.1f} in the megakernel's tiles."
    )
