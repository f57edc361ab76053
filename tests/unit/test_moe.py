"""A mixture of experts: the row of each pair of token and expert, how many tiles there may be, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlace as il
from interlace.core.errors import DTypeError, PlanFormatError, RoutingError, ShapeError
from interlace.kernels.assign import MAX_TOKENS, assign
from interlace.kernels.experts import expert_matmul
from interlace.kernels.experts.cuda import MEGAKERNEL_BODY
from interlace.kernels.gather import gather
from interlace.kernels.read_plan import read_plan
from interlace.kernels.routing import BLOCK, check_experts, compute_max_tiles, fill, place, route
from interlace.workloads import MoE, moe
from interlace.workloads.moe import Routing

from ..draws import EXAMPLES

TILE = il.MatmulTile(16, 16, 16)


def run_routing(logits: np.ndarray, chosen: int, rows: int) -> dict[str, np.ndarray]:
    """Run the three ops of routing; return their results."""
    (tokens, experts), tiles = logits.shape, compute_max_tiles(len(logits), chosen, logits.shape[1], rows)
    shapes = {
        "logits": (tokens, experts),
        **dict.fromkeys(("experts", "weights", "place"), (tokens, chosen)),
        "counts": (-(-tokens // BLOCK), experts),
        "token": (tiles * rows,),
        "owner": (tiles,),
    }
    t = {n: il.Tensor(n, s, il.fp32 if n in ("logits", "weights") else il.int32) for n, s in shapes.items()}
    ops = (
        route("route", t["logits"], t["experts"], t["weights"], t["counts"]),
        place("place", t["experts"], t["counts"], t["place"], rows),
        fill("fill", t["place"], t["counts"], t["token"], t["owner"]),
    )
    part = il.Graph("routing", (*t.values(),), ops, ("logits",), tuple(t)[1:])
    found = il.ReferenceExecutor(il.build(part, il.Schedule(3)), seed=0).run({"logits": logits})
    if tokens <= MAX_TOKENS:  # by one op: the same
        made = tuple(t[name] for name in ("weights", "place", "token", "owner"))
        one = il.Graph(
            "one",
            (t["logits"], *made),
            (assign("assign", t["logits"], *made),),
            ("logits",),
            tuple(tensor.name for tensor in made),
        )
        for name, value in il.ReferenceExecutor(il.build(one, il.Schedule(1))).run({"logits": logits}).items():
            np.testing.assert_array_equal(value, found[name])
    return found


def test_pairs_of_an_expert_stand_together_from_a_tile_on() -> None:
    """Tokens in blocks of 32, so that the second block goes on where the first ended."""
    logits = np.full((34, 3), -9.0, np.float32)
    logits[:, 0] = 2.0
    logits[::2, 1], logits[1::2, 2] = 1.0, 1.0  # even tokens to 0 and 1, odd ones to 0 and 2
    found = run_routing(logits, 2, 16)
    assert found["experts"][:2].tolist() == [[0, 1], [0, 2]]
    assert found["counts"].tolist() == [[32, 16, 16], [2, 1, 1]]
    assert found["place"][:3].tolist() == [[0, 48], [1, 80], [2, 49]]  # 3 tiles of expert 0, 2 of each other
    assert found["place"][32:].tolist() == [[32, 64], [33, 96]]
    assert found["owner"].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert found["token"][:34].tolist() == [*range(34)]
    assert found["token"][34:66].tolist() == [-1] * 14 + [*range(0, 34, 2)] + [-1]
    share = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found["weights"][7], share, rtol=1e-12)


@given(
    tokens=st.integers(1, 70),
    experts=st.integers(1, 9),
    more=st.integers(0, 8),
    rows=st.sampled_from((16, 32)),
    seed=st.integers(0, 99),
    skew=st.sampled_from((0.0, 4.0)),
)
@EXAMPLES
def test_every_pair_has_a_row_of_its_own_in_a_tile_of_its_expert(
    tokens: int, experts: int, more: int, rows: int, seed: int, skew: float
) -> None:
    chosen = 1 + more % experts
    random = np.random.default_rng(seed)
    logits = random.standard_normal((tokens, experts)) - skew * np.arange(experts)
    found = {name: value.astype(np.int64) for name, value in run_routing(logits, chosen, rows).items()}
    place, token, owner = found["place"], found["token"], found["owner"]
    assert len(np.unique(place)) == tokens * chosen == (token >= 0).sum()
    assert (token[place] == np.arange(tokens)[:, None]).all()
    assert (owner[place // rows] == found["experts"]).all()
    held = (token.reshape(-1, rows) >= 0).any(axis=1)
    assert ((owner >= 0) == held).all()


@pytest.mark.parametrize(("tokens", "chosen", "experts", "rows"), [(1, 2, 8, 16), (5, 2, 3, 4), (4096, 2, 8, 128)])
def test_there_are_as_many_tiles_as_the_worst_routing_needs(tokens: int, chosen: int, experts: int, rows: int) -> None:
    tiles = compute_max_tiles(tokens, chosen, experts, rows)
    assert tiles == {(1, 8): 2, (5, 3): 4, (4096, 8): 71}[tokens, experts]
    pairs, owners = tokens * chosen, min(experts, tokens * chosen)
    worst = [1] * (owners - 1) + [pairs - owners + 1]  # one pair each, and all else to one
    assert sum(-(-n // rows) for n in worst) <= tiles


def test_experts_out_of_range_are_told_on_the_host_and_left_out_on_the_device() -> None:
    table = np.array([[0, 1], [5, 2], [2, -1]])
    with pytest.raises(RoutingError, match=r"token 1 goes to expert 5, and there are 3, from 0; 2 of 6 entries"):
        check_experts(table, 3)
    check_experts(np.array([[0, 2]]), 3)
    given, counts = il.Tensor("experts", (3, 2), il.int32), il.Tensor("counts", (1, 3), il.int32)
    placed = il.Tensor("place", (3, 2), il.int32)
    graph = il.Graph(
        "place",
        (given, counts, placed),
        (place("place", given, counts, placed, 16),),
        ("experts", "counts"),
        ("place",),
    )
    out = il.ReferenceExecutor(il.build(graph, il.Schedule(1))).run({"experts": table, "counts": np.array([[1, 1, 2]])})
    assert out["place"].tolist() == [[0, 16], [-1, 32], [33, -1]]


@pytest.mark.parametrize("tokens", [1, 16, 48, 64, 4097])
@pytest.mark.parametrize("ffn", [64, 14336])
def test_tiles_of_any_height_leave_the_one_launch_a_ring(tokens: int, ffn: int) -> None:
    graph = MoE(hidden=64, ffn=ffn, experts=3, chosen=2, tokens=tokens).build_graph(il.H200)
    il.MegakernelExecutor.check_tiles(graph, il.H200)


def test_access_maps_cover_any_routing_and_write_tiles_of_their_own() -> None:
    graph = moe(100, 32, 48, 4, 2, tile=TILE)
    up = graph.op("up")
    assert up.grid == (compute_max_tiles(100, 2, 4, 16), 3) == (16, 3)
    assert [str(access) for access in up.reads] == [
        "x: rows[16*t0 : 16*t0 + 16, :]",
        "owner: owner[t0 : t0 + 1]",
        "weight: up[:, 16*t1 : 16*t1 + 16, :]",
        "gate: gate[:, 16*t1 : 16*t1 + 16, :]",
    ]
    proof = il.verify(il.build(graph, il.Schedule(8, policy=il.RowSync())))
    assert proof.longest_chain == 7


def test_a_skewed_routing_gives_the_first_expert_the_most() -> None:
    def compute_first_share(routing: Routing) -> float:
        problem = MoE(16, 16, 8, 1, 20000, routing)
        return float((problem.make_inputs(0)["logits"].argmax(axis=1) == 0).mean())

    assert 0.12 < compute_first_share(Routing.BALANCED) < 0.13
    assert 0.42 < compute_first_share(Routing.SKEWED) < 0.44  # 1 / (1 + 2^-1.2 + ... + 8^-1.2) = 0.429


def test_plans_are_read_again_and_others_than_the_kernels_make_are_refused() -> None:
    plan = il.build(moe(70, 32, 48, 3, 2, tile=TILE), il.Schedule(4))
    assert read_plan(plan.to_json()).to_json() == plan.to_json()
    data = json.loads(plan.to_json())
    data["graph"]["ops"][2]["params"]["ROWS"] = 8
    with pytest.raises(PlanFormatError, match=r"'fill' has param ROWS 8, but .* makes an op with 16"):
        read_plan(json.dumps(data))


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ShapeError, match="each token goes to 4 of 3 experts"):
        moe(8, 16, 16, 3, 4)
    with pytest.raises(ShapeError, match="each token goes to 4 of 3 experts; use at most as many"):
        MoE(16, 16, 3, 4)

    def tensor(name: str, *shape: int, dtype: il.DType = il.int32) -> il.Tensor:
        return il.Tensor(name, shape, dtype)

    logits, experts, counts = tensor("logits", 40, 3, dtype=il.fp32), tensor("e", 40, 2), tensor("c", 2, 3)
    with pytest.raises(DTypeError, match="logits"):
        route("route", tensor("logits", 40, 3), experts, tensor("w", 40, 2, dtype=il.fp32), counts)
    with pytest.raises(ShapeError, match="weights"):
        route("route", logits, experts, tensor("w", 40, 3, dtype=il.fp32), counts)
    with pytest.raises(ShapeError, match=r"counts .* must have shape \(2, 3\)"):
        place("place", experts, tensor("c", 1, 3), tensor("p", 40, 2), 16)
    with pytest.raises(ShapeError, match=r"may fill 7 tiles of 16 rows, and owner .* has 5; give it as many"):
        fill("fill", tensor("p", 40, 2), counts, tensor("t", 80), tensor("o", 5))
    x, weight = tensor("x", 40, 16, dtype=il.bf16), tensor("w", 3, 8, 16, dtype=il.bf16)
    out = tensor("out", 80, 8, dtype=il.bf16)
    with pytest.raises(ShapeError, match="must have 80 rows, 16 for each tile"):
        expert_matmul("up", x, tensor("o", 5), weight, out, tile=TILE)
    with pytest.raises(ShapeError, match="swaps or prefetches, which experts do not"):
        expert_matmul("up", x, tensor("o", 5), weight, out, tile=il.MatmulTile(16, 16, 16, swap_ab=True))
    with pytest.raises(DTypeError, match="floating-point"):
        expert_matmul(
            "up",
            *(tensor(n, *s) for n, s in (("x", (80, 16)), ("o", (5,)), ("w", (3, 8, 16)), ("y", (80, 8)))),
            tile=TILE,
        )
    with pytest.raises(ShapeError, match="powers of two"):
        il.SerialExecutor(
            il.build(moe(8, 16, 16, 3, 2, tile=il.MatmulTile(16, 24, 16)), il.Schedule(1)), il.RunOptions("meta")
        )


def test_what_the_one_launch_of_experts_does_not_take_is_refused() -> None:
    def check_tile(hidden: int, tile: il.MatmulTile, dtype: il.DType = il.bf16) -> None:
        rows = 2 * tile.m
        shapes = {"x": (rows, hidden), "weight": (3, 128, hidden), "out": (rows, 128)}
        t = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
        t["owner"] = il.Tensor("owner", (2,), il.int32)
        op = expert_matmul("up", t["x"], t["owner"], t["weight"], t["out"], tile=tile)
        MEGAKERNEL_BODY.check(op, t)
        MEGAKERNEL_BODY.tiling.build_tile(op, 1, 1)

    check_tile(72, il.MatmulTile(32, 64, 64))
    with pytest.raises(DTypeError, match="the megakernel multiplies bf16 and fp16"):
        check_tile(72, il.MatmulTile(32, 64, 64), il.fp32)
    with pytest.raises(ShapeError, match="bulk loads need rows of a multiple of 8 elements"):
        check_tile(76, il.MatmulTile(32, 64, 64))
    check_tile(72, il.MatmulTile(64, 64, 64))
    with pytest.raises(ShapeError, match="multiply 64 rows each at a time, and the tile has 32"):
        check_tile(72, il.MatmulTile(16, 32, 64))
    with pytest.raises(ShapeError, match="a stage is a multiple of 64 deep"):
        check_tile(72, il.MatmulTile(16, 64, 32))
    x, logits = il.Tensor("x", (8, 16), il.bf16), il.Tensor("logits", (65, 3), il.fp32)
    with pytest.raises(ShapeError, match=r"token .* a vector"):
        gather("gather", x, il.Tensor("token", (4, 4), il.int32), x)
    place, token, owner = (il.Tensor(n, s, il.int32) for n, s in (("p", (65, 2)), ("t", (160,)), ("o", (10,))))
    with pytest.raises(ShapeError, match="has 65 tokens, and one tile takes 64; use route, place and fill"):
        assign("assign", logits, il.Tensor("w", (65, 2), il.fp32), place, token, owner)
    with pytest.raises(ShapeError, match="one has tiles of 16, one of 32"):
        moe(8, 16, 16, 3, 2, tile=TILE, down=il.MatmulTile(32, 16, 16))
