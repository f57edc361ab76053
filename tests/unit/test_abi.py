"""One table for host and device: ctypes, NumPy and C see the same layout, and nothing knows a column by its number."""

from __future__ import annotations

import ctypes
import pickle
from dataclasses import replace

import numpy as np
import pytest

from interlace.kernels.abi import ITEM, RECORD, SYNC, TENSOR_MAP, TRACE, WAIT, Struct
from interlace.kernels.abi.struct import generate_row_load

from ..emulator.build import MISSING
from ..permuted import run_permuted

#: Padding of every kind: before a pointer, before a struct, at the end.
OPERANDS = Struct("Operands", (("x", TENSOR_MAP), ("bias", "const float*"), ("m", "int")))
NESTED = Struct(
    "Nested",
    (
        ("count", "int"),
        ("values", "float*"),
        ("scale", "float"),
        ("mask", ("unsigned", 3)),
        ("ops", (OPERANDS, 2)),
        ("runs", "unsigned long long"),
    ),
)
STRUCTS = {struct.name: struct for struct in (ITEM, WAIT, RECORD, TRACE, SYNC, TENSOR_MAP, OPERANDS, NESTED)}


@pytest.mark.parametrize("struct", STRUCTS.values(), ids=STRUCTS)
def test_ctypes_and_numpy_see_the_same_struct(struct: Struct) -> None:
    assert struct.dtype.names == struct.names
    assert ctypes.sizeof(struct.ctype) == struct.dtype.itemsize == struct.size
    assert struct.size % struct.alignment == 0
    for name in struct.names:
        found = getattr(struct.ctype, name)
        field, offset = struct.dtype.fields[name][:2]  # type: ignore[index]
        assert (found.offset, found.size) == (offset, field.itemsize)


def test_structs_are_padded_as_c_pads_them() -> None:
    assert (OPERANDS.offsets, OPERANDS.size) == ({"x": 0, "bias": 128, "m": 136}, 192)
    expected = {"count": 0, "values": 8, "scale": 16, "mask": 20, "ops": 64, "runs": 448}
    assert (NESTED.offsets, NESTED.size, NESTED.alignment) == (expected, 512, 64)
    assert (ITEM.size, WAIT.size, RECORD.size, TRACE.size) == (64, 32, 20, 32)


def test_a_packed_struct_is_what_ctypes_reads_and_needs_every_field() -> None:
    class Held:
        def data_ptr(self) -> int:
            return 0x1234567890

    given = dict.fromkeys(SYNC.names) | {"timeout_ns": 2**40, "jitter_ns": 3, "first": -1, "programs": 7}
    packed = SYNC.pack(**{**given, "items": Held()})
    row = np.frombuffer(packed, SYNC.dtype)[0]
    expected = {name: value or 0 for name, value in given.items()} | {"items": 0x1234567890}
    assert {name: int(row[name]) for name in SYNC.names} == expected
    with pytest.raises(TypeError, match=r"struct Sync has fields items, .*check programs"):
        SYNC.pack(**{name: value for name, value in given.items() if name != "programs"})
    with pytest.raises(TypeError, match="check programmes"):
        SYNC.pack(**given, programmes=1)


def test_rows_are_loaded_in_quads_from_wherever_their_columns_are() -> None:
    assert "{quads[0].x, quads[0].y, quads[0].z, quads[0].w, quads[1].x}" in generate_row_load(WAIT)
    moved = replace(WAIT, fields=(*((f"spare{i}", "int") for i in range(6)), *WAIT.fields))
    assert "quads[1].z, quads[1].w, quads[2].x, quads[2].y, quads[2].z}" in generate_row_load(moved)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_kernels_of_loops_are_right_whatever_the_order_of_the_columns() -> None:
    run_permuted(
        "from tests.unit import test_emulator_library as tests\n"
        "tests.test_kernels_for_items_of_a_plan_are_right_and_post_when_all_is_written(False)\n"
        "tests.test_items_wait_for_the_posts_of_their_run_also_when_counters_wrap()\n"
    )


def test_a_struct_whose_ctypes_class_is_made_can_be_sent_to_another_process() -> None:
    nested = Struct("Nested", (("map", TENSOR_MAP), ("count", "int")))
    nested.pack(map=TENSOR_MAP.ctype(), count=3)
    assert pickle.loads(pickle.dumps(nested)) == nested
