"""Columns of the device's tables as Triton's constants, made from ``abi``; ``..._COLUMNS`` is from row to row.

A kernel's cache key has the values of the constants that it uses, so another table makes another kernel.
"""

from __future__ import annotations

import triton.language as tl

from interlace.kernels.abi import ITEM, RECORD, TRACE, WAIT

ITEM_COLUMNS = tl.constexpr(ITEM.columns)
ITEM_OP = tl.constexpr(ITEM.column("op"))
ITEM_I = tl.constexpr(ITEM.column("i"))
ITEM_J = tl.constexpr(ITEM.column("j"))
ITEM_L = tl.constexpr(ITEM.column("l"))
ITEM_K_LO = tl.constexpr(ITEM.column("k_lo"))
ITEM_K_HI = tl.constexpr(ITEM.column("k_hi"))
ITEM_WAIT_LO = tl.constexpr(ITEM.column("wait_lo"))
ITEM_WAIT_MID = tl.constexpr(ITEM.column("wait_mid"))
ITEM_WAIT_HI = tl.constexpr(ITEM.column("wait_hi"))
ITEM_POST = tl.constexpr(ITEM.column("post"))
ITEM_PART = tl.constexpr(ITEM.column("part"))
ITEM_PARTS = tl.constexpr(ITEM.column("parts"))
ITEM_SLOT = tl.constexpr(ITEM.column("slot"))
ITEM_SPLIT = tl.constexpr(ITEM.column("split"))
ITEM_NUMBER = tl.constexpr(ITEM.column("number"))

WAIT_COLUMNS = tl.constexpr(WAIT.columns)
WAIT_FIRST = tl.constexpr(WAIT.column("first"))
WAIT_COUNT = tl.constexpr(WAIT.column("count"))
WAIT_STRIDE = tl.constexpr(WAIT.column("stride"))
WAIT_THRESHOLD = tl.constexpr(WAIT.column("threshold"))
WAIT_K = tl.constexpr(WAIT.column("k"))

RECORD_FAILED = tl.constexpr(RECORD.column("failed"))
RECORD_ITEM = tl.constexpr(RECORD.column("item"))
RECORD_SEMAPHORE = tl.constexpr(RECORD.column("semaphore"))
RECORD_EXPECTED = tl.constexpr(RECORD.column("expected"))
RECORD_SEEN = tl.constexpr(RECORD.column("seen"))

TRACE_COLUMNS = tl.constexpr(TRACE.columns)
TRACE_ARRIVED_NS = tl.constexpr(TRACE.column("arrived_ns"))
TRACE_START_NS = tl.constexpr(TRACE.column("start_ns"))
TRACE_END_NS = tl.constexpr(TRACE.column("end_ns"))
TRACE_PLACE = tl.constexpr(TRACE.column("place"))
