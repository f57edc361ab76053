"""Columns of the device's tables as Triton constants, generated from ``abi``; ``..._COLUMNS`` is the row stride.

A kernel's cache key contains the values of the constants that it uses, so a changed table recompiles the kernel.
"""

from __future__ import annotations

import triton.language as tl

from interlace.kernels.abi import ITEM, RECORD, TRACE, WAIT

ITEM_COLUMNS = tl.constexpr(ITEM.columns)
ITEM_OP = tl.constexpr(ITEM.get_column("op"))
ITEM_I = tl.constexpr(ITEM.get_column("i"))
ITEM_J = tl.constexpr(ITEM.get_column("j"))
ITEM_L = tl.constexpr(ITEM.get_column("l"))
ITEM_K_LO = tl.constexpr(ITEM.get_column("k_lo"))
ITEM_K_HI = tl.constexpr(ITEM.get_column("k_hi"))
ITEM_WAIT_LO = tl.constexpr(ITEM.get_column("wait_lo"))
ITEM_WAIT_MID = tl.constexpr(ITEM.get_column("wait_mid"))
ITEM_WAIT_HI = tl.constexpr(ITEM.get_column("wait_hi"))
ITEM_POST = tl.constexpr(ITEM.get_column("post"))
ITEM_PART = tl.constexpr(ITEM.get_column("part"))
ITEM_PARTS = tl.constexpr(ITEM.get_column("parts"))
ITEM_SLOT = tl.constexpr(ITEM.get_column("slot"))
ITEM_SPLIT = tl.constexpr(ITEM.get_column("split"))
ITEM_NUMBER = tl.constexpr(ITEM.get_column("number"))

WAIT_COLUMNS = tl.constexpr(WAIT.columns)
WAIT_FIRST = tl.constexpr(WAIT.get_column("first"))
WAIT_COUNT = tl.constexpr(WAIT.get_column("count"))
WAIT_STRIDE = tl.constexpr(WAIT.get_column("stride"))
WAIT_THRESHOLD = tl.constexpr(WAIT.get_column("threshold"))
WAIT_K = tl.constexpr(WAIT.get_column("k"))

RECORD_FAILED = tl.constexpr(RECORD.get_column("failed"))
RECORD_ITEM = tl.constexpr(RECORD.get_column("item"))
RECORD_SEMAPHORE = tl.constexpr(RECORD.get_column("semaphore"))
RECORD_EXPECTED = tl.constexpr(RECORD.get_column("expected"))
RECORD_SEEN = tl.constexpr(RECORD.get_column("seen"))

TRACE_COLUMNS = tl.constexpr(TRACE.columns)
TRACE_ARRIVED_NS = tl.constexpr(TRACE.get_column("arrived_ns"))
TRACE_START_NS = tl.constexpr(TRACE.get_column("start_ns"))
TRACE_END_NS = tl.constexpr(TRACE.get_column("end_ns"))
TRACE_PLACE = tl.constexpr(TRACE.get_column("place"))
