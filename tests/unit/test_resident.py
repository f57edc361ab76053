"""Launches that keep positions in shared memory, so that loads of no tile wait for its sequence's."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import interlace as il
from interlace.core.dtypes import int32
from interlace.core.errors import ParamError
from interlace.kernels.attend import attend
from interlace.megakernel.parts import lower_ops
from interlace.workloads.decode import LLAMAS, build_decode_graph

D, CAPACITY = 64, 128


def attentions(batch: int, *positions: str) -> il.Graph:
    """One of each tensor of positions, on the same rows and caches."""
    shapes = dict.fromkeys("qkv", (batch, D)) | dict.fromkeys(("k_cache", "v_cache"), (batch, 1, CAPACITY, D))
    made = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    made["rope"] = il.Tensor("rope", (CAPACITY, D), il.fp32)
    at = {name: il.Tensor(name, (batch,), int32) for name in positions}
    outs = [il.Tensor(f"out{n}", (batch, D), il.bf16) for n in range(len(positions))]
    ops = tuple(
        attend(f"attend{n}", **made, position=at[name], out=outs[n], eps=0.0) for n, name in enumerate(positions)
    )
    inputs = (*made, *at)
    return il.Graph("some", (*made.values(), *at.values(), *outs), ops, inputs, tuple(out.name for out in outs))


def list_resident_bytes(graph: il.Graph) -> list[int]:
    """Return, for each op, the bytes that its loader keeps."""
    found = [(part.tile.type.endswith("::Resident"), part.tile.resident_bytes) for part in lower_ops(graph)]
    assert all(resident == (nbytes > 0) for resident, nbytes in found)
    return [nbytes for _, nbytes in found]


def test_positions_of_all_layers_lie_in_shared_memory_once() -> None:
    graph = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=2), 64, 1088, il.H200)
    nbytes = dict(zip((op.name for op in graph.ops), list_resident_bytes(graph), strict=True))
    assert {name for name, n in nbytes.items() if n} == {f"layers.{n}.attend" for n in range(2)}
    run = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions(device="meta"))
    assert "constexpr int RESIDENT_BYTES = 256;" in run.composition.source
    assert run.binary.resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("batch", "positions", "expected"),
    [(3, ("a", "a"), [16, 16]), (3, ("a", "b"), [0, 0]), (256, ("a",), [1024]), (257, ("a",), [0])],
)
def test_only_one_tensor_that_all_attention_reads_and_that_is_small_is_kept(
    batch: int, positions: tuple[str, ...], expected: list[int]
) -> None:
    assert list_resident_bytes(attentions(batch, *positions)) == expected


@pytest.mark.parametrize("early", [(), ("position",)])
def test_what_is_kept_is_read_early_of_what_is_streamed(early: tuple[str, ...]) -> None:
    with pytest.raises(ParamError, match="resident_input='position'"):
        il.CudaLoads(pre_wait_inputs=early, resident_input="position")


@pytest.mark.parametrize("dtype", [il.bf16, il.fp32])
def test_a_number_is_kept_of_each_element_whatever_its_type(dtype: il.DType) -> None:
    text = il.CudaBody(
        "DEVICE void f(const Tile& tile, const Arguments& a, Stream& stream) {}",
        "f",
        loads=il.CudaLoads(
            pre_wait_inputs=("at",), resident_input="at", ring=il.RingStage("Loads", streamed_inputs=("x",))
        ),
    )
    (i,) = il.axes(1)
    x, at, y = (il.Tensor(name, (6,), dtype) for name in ("x", "at", "y"))
    kernel = il.Kernel("kept", il.Reference(lambda acc, regions, params: {"y": regions["x"]}), megakernel=text)
    op = kernel.make_op("op", (6,), {"x": (x, (i.block(1),)), "at": (at, (i.block(1),))}, {"y": (y, (i.block(1),))})
    assert list_resident_bytes(il.Graph("one", (x, at, y), (op,), ("x", "at"), ("y",))) == [32]
