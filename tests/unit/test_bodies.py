"""Bodies consist of small parts, and executors use what these declare."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import interlace as il
from interlace.kernels.bodies import MegakernelTile, ResidentVector
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.kernels.cuda_loads import CudaLoads, RingStage
from interlace.kernels.megakernel_body import (
    Clustering,
    LLArguments,
    LLSupport,
    Loads,
    MegakernelBody,
    MegakernelLoads,
    Tiling,
    Warpgroups,
)

ROOT = Path(__file__).parents[2]
PARTS = (Clustering, CudaLoads, LLArguments, LLSupport, Loads, MegakernelLoads, RingStage, Tiling, Warpgroups)
TEXT = "DEVICE void %s(const Tile& tile, const Arguments& a) {}"
#: Private members of Triton's compiled kernels, which have no public name.
FOREIGN = {"_init_handles"}


@pytest.mark.parametrize("part", [MegakernelBody, *PARTS], ids=lambda part: part.__name__)
def test_bodies_and_their_parts_have_at_most_eight_fields(part: type) -> None:
    assert 1 < len(fields(part)) <= 8


def test_a_cuda_body_needs_a_source_and_a_function() -> None:
    assert len(fields(CudaBody)) <= 9
    body = CudaBody(TEXT % "f", "f")
    assert (body.loads, body.warpgroups, body.ll) == (CudaLoads(), Warpgroups(), LLArguments())


def test_no_executor_reaches_into_private_members_of_another_object() -> None:
    found = []
    for room in ("executors", "megakernel", "kernels"):
        for path in sorted((ROOT / "src/interlace" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                    owner = ast.unparse(node.value)
                    if owner not in ("self", "cls", "super()") and node.attr not in FOREIGN:
                        found.append(f"{path.name}:{node.lineno}: {owner}.{node.attr}")
    assert found == []


def make_op(length: int, tiles: int) -> tuple[il.Op, dict[str, il.Tensor]]:
    (i,) = il.axes(1)
    tensors = {"x": il.Tensor("x", (length,), il.fp32), "y": il.Tensor("y", (tiles,), il.fp32)}
    kernel = il.Kernel("k", megakernel=CudaVariants(CudaBody(TEXT % "f", "f"), select_long))
    return kernel.make_op(
        "k", (tiles,), {"x": (tensors["x"], (il.ALL,))}, {"y": (tensors["y"], (i.block(1),))}
    ), tensors


def select_long(op: il.Op, tensors: dict[str, il.Tensor]) -> CudaBody | None:
    return CudaBody(TEXT % "g", "g", warpgroups=Warpgroups(max_count=3)) if tensors["x"].shape[0] > 8 else None


@pytest.mark.parametrize(("length", "function", "most"), [(8, "f", 2), (9, "g", 3)])
def test_variants_are_chosen_by_op(length: int, function: str, most: int) -> None:
    op, tensors = make_op(length, 1)
    assert op.body is not None
    body = op.body.megakernel.build_megakernel_body(op, tensors, frozenset())
    assert f"own::{function}>" in body.source
    assert body.max_warpgroups == most
    assert not op.body.is_proved


@pytest.mark.parametrize(("length", "tiles", "fits"), [(8, 8, True), (7, 8, False), (256, 8, True), (257, 8, False)])
def test_a_vector_is_resident_if_it_is_small_and_has_an_element_for_each_tile(
    length: int, tiles: int, fits: bool
) -> None:
    op, tensors = make_op(length, tiles)
    loads = MegakernelLoads(pre_wait_inputs=("x",), resident_input="x", prefetchable_inputs=("w",))
    assert loads.find_resident_vector(op, tensors) == (ResidentVector("x", length) if fits else None)
    assert loads.inputs_before_waits == ("w", "x")


def test_ll_arguments_are_those_that_an_op_has_and_can_use() -> None:
    op, tensors = make_op(4, 4)
    every = LLArguments(inputs=("x", "absent"), outputs=("y",))
    assert every.select((*every.inputs, *every.outputs), op, tensors) == ("x", "y")
    some = LLArguments(inputs=("x",), outputs=("y",), can_use=lambda op, tensors, name: tensors[name].shape[0] != 4)
    assert some.select(("x", "y"), op, tensors) == ()


def test_a_body_without_cooperative_tiles_finds_none() -> None:
    op, _ = make_op(4, 4)
    tile = MegakernelTile("T", (), 0, 0, 0, 0, 0)
    assert Tiling(lambda op, parts, warpgroups: tile).find_cooperative_tile(op, 2, 1) is None
    assert Tiling(lambda *_: tile, build_cooperative_tile=lambda *_: tile).find_cooperative_tile(op, 2, 1) == tile
