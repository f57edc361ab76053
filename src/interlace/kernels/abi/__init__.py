"""The tables and structs through which host and device speak, written down once.

Everything that writes or reads them is made from here: the NumPy writer (``megakernel/table``), Triton's constants
(``primitives/columns``), the structs of CUDA C++ (``TABLES``, ``SYNC``) and their bytes. Columns may be reordered or
added here and nowhere else; none is known by its number.
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

#: Columns of a tile's coordinates, 0 where the grid has fewer.
AXES = ("i", "j", "l")


def _make_int_fields(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, "int") for name in names)


_COORDINATES = ("op", *AXES, "k_lo", "k_hi")
_SEMAPHORES = ("wait_lo", "wait_mid", "wait_hi", "post")
_PARTS = ("part", "parts", "slot", "split")

#: An item: op, tile, k-range; its waits are rows ``wait_lo:wait_hi``, of which those before ``wait_mid`` stand at its
#: start; the semaphore it posts, -1 for none; which part of how many, its first workspace slot, the number of its
#: split tile; its number in the plan's sequence; which of a launch's texts computes it, 0 where the op tells. Rows are
#: aligned for loads of 128 bits, as are those of waits.
ITEM = Struct("ItemRow", _make_int_fields(*_COORDINATES, *_SEMAPHORES, *_PARTS, "number", "code"), align=16)

#: A wait: for ``count`` semaphores ``first, first + stride, ...``, each until ``threshold`` posts have been made in
#: this run, before anything from ``k`` on is read.
WAIT = Struct("WaitRow", _make_int_fields("first", "count", "stride", "threshold", "k"), align=16)

#: What the first failed wait leaves, ``failed`` last. A gate behind op ``o`` has no item and no semaphore: it records
#: -1 - o and -1, a worker that finds no item in a queue of ready ones its place in the queue and -2.
RECORD = Struct("Record", _make_int_fields("failed", "item", "semaphore", "expected", "seen"))

#: When an item began to wait, started and ended, on the global clock; ``place`` is worker << 32 | SM.
TRACE = Struct("TraceRow", tuple((name, "long long") for name in ("arrived_ns", "start_ns", "end_ns", "place")))

#: What a compiled plan keeps in memory, of which every launch gets the addresses.
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

#: The state and a launch of a thread block per item: the watchdog and the bound of random delays, the launch's first
#: row of ``items``, how many programs begin per run. ``semaphores`` is null if the launch order enforces everything,
#: ``trace`` if there is none.
SYNC = Struct(
    "Sync",
    (
        *STATE,
        ("timeout_ns", "unsigned long long"),
        ("jitter_ns", "unsigned long long"),
        *_make_int_fields("first", "programs"),
    ),
)

#: A tensor map, as the driver encodes it.
TENSOR_MAP = Struct("TensorMap", (("words", ("unsigned long long", 16)),), align=64)

#: The tables in CUDA C++, with ``load_row`` and ``unpack`` of items and waits.
TABLES = generate_structs((ITEM, WAIT, RECORD, TRACE)) + generate_row_load(ITEM) + generate_row_load(WAIT)
