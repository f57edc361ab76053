"""Tables and structs shared by host and device, defined once.

All code that writes or reads them is generated from these definitions: the NumPy writer (``megakernel/table``),
Triton's constants (``primitives/columns``), the CUDA C++ structs (``TABLES``, ``SYNC``) and their bytes. Reorder or
add columns in this module only. No code refers to a column by its number.
"""

from __future__ import annotations

from interlace.kernels.abi.struct import Struct, generate_row_load, generate_structs

__all__ = [
    "AXES",
    "ITEM",
    "RECORD",
    "STATE",
    "SYNC",
    "TABLES",
    "TENSOR_MAP",
    "TRACE",
    "WAIT",
    "Struct",
    "generate_structs",
]

#: Columns of a tile's coordinates; 0 for axes that the grid does not have.
AXES = ("i", "j", "l")


def _make_int_fields(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "int") for name in names)


_COORDINATES = ("op", *AXES, "k_lo", "k_hi")
_SEMAPHORES = ("wait_lo", "wait_mid", "wait_hi", "post")
_PARTS = ("part", "parts", "slot", "split")

#: An item: op, tile and k-range. Its waits are rows ``wait_lo:wait_hi`` of the wait table; those before ``wait_mid``
#: are waited for at its start. ``post`` is the semaphore that it posts, -1 for none. ``part`` of ``parts``, ``slot``
#: (its first workspace slot) and ``split`` (index of its split tile) describe split-K. ``number`` is its index in the
#: plan's sequence. ``code`` selects the CUDA source that computes it, 0 if the op determines it. Rows of items and
#: waits are aligned for 128-bit loads.
ITEM = Struct("ItemRow", _make_int_fields(*_COORDINATES, *_SEMAPHORES, *_PARTS, "number", "code"), align=16)

#: A wait for ``count`` semaphores ``first, first + stride, ...``: each must have received ``threshold`` posts in this
#: run before the item reads anything from ``k`` on.
WAIT = Struct("WaitRow", _make_int_fields("first", "count", "stride", "threshold", "k"), align=16)

#: The record of the first failed wait; ``failed`` is written last. A gate that follows op ``o`` has no item and no
#: semaphore and records -1 - o and -1. A worker that finds no item in a ready queue records its position in the queue
#: and -2.
RECORD = Struct("Record", _make_int_fields("failed", "item", "semaphore", "expected", "seen"))

#: Times at which an item began to wait, started and ended, on the global clock; ``place`` is worker << 32 | SM.
TRACE = Struct("TraceRow", tuple((name, "long long") for name in ("arrived_ns", "start_ns", "end_ns", "place")))

#: Device memory that a compiled plan keeps; every launch receives these addresses.
STATE: tuple[tuple[str, str], ...] = (
    ("items", f"const {ITEM.name}*"),
    ("waits", f"const {WAIT.name}*"),
    ("semaphores", "int*"),
    ("arrivals", "unsigned long long*"),
    ("workspace", "float*"),
    ("done", "int*"),
    ("fault", "int*"),
    ("record", f"{RECORD.name}*"),
    ("trace", f"{TRACE.name}*"),
    ("starts", "unsigned long long*"),
)

#: The state, plus the parameters of a launch with one thread block per item: the watchdog timeout, the upper bound of
#: random delays, the launch's first row of ``items``, and the number of programs that start per run. ``semaphores``
#: is null if the launch order enforces all dependencies, ``trace`` is null if there is no trace.
SYNC = Struct(
    "Sync",
    (
        *STATE,
        ("timeout_ns", "unsigned long long"),
        ("jitter_ns", "unsigned long long"),
        *_make_int_fields("first", "programs"),
    ),
)

#: A tensor map in the driver's encoding.
TENSOR_MAP = Struct("TensorMap", (("words", ("unsigned long long", 16)),), align=64)

#: The tables as CUDA C++, with ``load_row`` and ``unpack`` for items and waits.
TABLES = generate_structs((ITEM, WAIT, RECORD, TRACE)) + generate_row_load(ITEM) + generate_row_load(WAIT)
