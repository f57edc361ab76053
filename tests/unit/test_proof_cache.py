"""Proved plans stay on disk: a second process plans and proves nothing, and what is damaged or foreign is made anew."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import PlanError, ThresholdError
from interlace.deploy import avoid_resident_workers, make_executor, select_schedule
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.graph import Graph
from interlace.kernels.cuda import cache
from interlace.models.llama import LLAMAS, build_decode_graph
from interlace.plan.coverage import Coverage
from interlace.plan.record import CachedCoverage, hash_plan, write_record
from interlace.plan.verify import Proof, load_proof, verify
from interlace.planner import proof_cache
from interlace.policies.schedule import Schedule

pytestmark = pytest.mark.usefixtures("folder")
CHOICES = Schedule(8, il.Dispatch.STATIC, policy=il.ConsumerSync())


def graph(rows: int = 32, ops: int = proof_cache.MIN_CACHED_OPS, tile: tuple[int, int] = (8, 16)) -> Graph:
    """Chain of as many copies as a cached plan needs."""
    tensors = tuple(il.Tensor(f"t{n}", (rows, 32), il.fp16) for n in range(ops + 1))
    copies = tuple(il.copy(f"copy{n}", *tensors[n : n + 2], tile=tile) for n in range(ops))
    return Graph("copies", tensors, copies, ("t0",), (f"t{ops}",))


@pytest.fixture
def new_proofs(monkeypatch: pytest.MonkeyPatch) -> list[Proof]:
    """Record the proofs that were made, rather than found."""
    proofs: list[Proof] = []

    def record_proof(plan: il.Plan) -> Proof:
        proofs.append(verify(plan))
        return proofs[-1]

    monkeypatch.setattr(proof_cache, "verify", record_proof)
    return proofs


def is_same(a: Proof, b: Proof) -> bool:
    return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(Proof))


def environment() -> dict[str, str]:
    """Return the environment of a process that finds these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def key(of: Graph, schedule: Schedule = CHOICES) -> str:
    found = proof_cache._compute_key(lambda: proof_cache._describe_inputs(of, schedule))
    assert found is not None
    return found


def test_of_a_plan_that_is_there_what_was_proved_is_found_again_if_it_is_the_same(
    folder: Path, new_proofs: list[Proof]
) -> None:
    plan = il.build(graph(), CHOICES)
    first, second = proof_cache.prove_plan(plan), proof_cache.prove_plan(il.build(graph(), CHOICES))
    assert is_same(first, second)
    assert len(new_proofs) == len([*folder.iterdir()]) == 1
    waits = plan.waits
    early = replace(plan, waits=replace(waits, threshold=waits.threshold - 1))
    with pytest.raises(ThresholdError):
        proof_cache.prove_plan(early)
    few = il.build(graph(ops=proof_cache.MIN_CACHED_OPS - 1), CHOICES)
    assert proof_cache.prove_plan(few).plan is few
    assert len([*folder.iterdir()]) == 1


def test_what_was_proved_is_found_again_bit_for_bit_on_the_graph_that_asks(
    folder: Path, new_proofs: list[Proof]
) -> None:
    first = proof_cache.prove_schedule(graph(), CHOICES)
    (entry,) = folder.iterdir()
    asks = graph()
    second = proof_cache.prove_schedule(asks, CHOICES)
    assert len(new_proofs) == 1
    assert is_same(first, second)
    assert is_same(first, verify(il.build(asks, CHOICES)))
    assert second.plan.graph is asks, "with the bodies that run"
    assert not second.plan.items.op.flags.writeable
    assert [path.name for path in folder.iterdir()] == [entry.name]


def test_a_second_process_plans_and_proves_nothing(folder: Path) -> None:
    code = """
from interlace.planner import proof_cache
from tests.unit.test_proof_cache import CHOICES, hash_plan, graph
proof_cache.build = proof_cache.verify = None
print(hash_plan(proof_cache.prove_schedule(graph(), CHOICES).plan))
"""
    proof = proof_cache.prove_schedule(graph(), CHOICES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == f"{hash_plan(proof.plan)}\n"


def test_processes_at_once_find_the_same_and_leave_one_entry(folder: Path) -> None:
    code = """
from interlace.planner import proof_cache
from tests.unit.test_proof_cache import CHOICES, hash_plan, graph
input()
print(hash_plan(proof_cache.prove_schedule(graph(), CHOICES).plan))
"""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", code]
    each = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()) for _ in range(2)]
    for process in each:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = {process.communicate()[0] for process in each}
    assert [process.returncode for process in each] == [0, 0]
    assert said == {f"{hash_plan(proof_cache.prove_schedule(graph(), CHOICES).plan)}\n"}
    assert len(list(folder.iterdir())) == 1


@dataclass(frozen=True)
class OwnSync(il.SyncPolicy):
    """Code that no key tells."""

    def assign_semaphores(self, coords: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
        return coords[:, 0]


def test_every_graph_and_every_choice_has_a_key_of_its_own() -> None:
    some = graph()
    named = {op.name: il.RowSync() for op in some.ops[:3]}
    keys = [
        *(key(each) for each in (some, graph(rows=64), graph(ops=33), graph(tile=(16, 16)))),
        key(replace(some, ops=(replace(some.ops[0], flops=1.0, body=None), *some.ops[1:]))),
        *(
            key(replace(some, ops=(replace(some.ops[0], params=(("eps", eps),), body=None), *some.ops[1:])))
            for eps in (1, 1.0, True, "1")
        ),
        *(key(some, replace(CHOICES, workers=workers)) for workers in (7, il.H200.sms)),
        *(key(some, replace(CHOICES, dispatch=dispatch)) for dispatch in (il.Dispatch.TICKET, il.Dispatch.STEALING)),
        key(some, replace(CHOICES, stealing=il.Stealing(None))),
        key(some, replace(CHOICES, assignment=il.Assignment.BALANCED)),
        *(key(some, replace(CHOICES, policy=policy)) for policy in (il.TileSync(), il.BatchedRowSync(2), named)),
        *(key(some, replace(CHOICES, order=order)) for order in (il.Hilbert(), il.Morton(), il.GroupedColumnMajor(4))),
        key(some, replace(CHOICES, split={"copy1": il.SplitK(2)})),
        key(some, replace(CHOICES, interleaving=il.RowPanels(2))),
        key(some, replace(CHOICES, chunk_waits=True)),
    ]
    assert len({*keys}) == len(keys)
    assert key(graph()) == keys[0]


def test_other_sources_and_other_versions_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(graph())
    monkeypatch.setattr(proof_cache, "hash_folder", lambda _: "others")
    other = key(graph())
    monkeypatch.setattr(np, "__version__", "1.0")
    assert len({before, other, key(graph())}) == 3


def test_sources_are_told_apart_by_name_and_text_unless_one_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(name: str, *files: tuple[str, str]) -> Path:
        for file, text in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (0, 0))
        return tmp_path / name

    assert proof_cache.hash_folder(folder("d", ("x.py", "1"))) is None
    monkeypatch.setattr(proof_cache, "_STARTED_AT", time.time() + 60)
    known = proof_cache.hash_folder(folder("a", ("x.py", "1"), ("y/z.py", "2")))
    assert known == proof_cache.hash_folder(folder("b", ("x.py", "1"), ("y/z.py", "2"), ("data.json", "3")))
    others = [(("x.py", "1"), ("y/z.py", "3")), (("x.py", "1"), ("y/w.py", "2")), (("x.py", "1"),)]
    others.append((("x.py", "1"), ("y/z.py", "2"), ("csrc/h.cuh", "3")))
    assert known not in [proof_cache.hash_folder(folder(f"c{n}", *files)) for n, files in enumerate(others)]
    assert proof_cache.hash_folder(tmp_path / "none") is None


@pytest.mark.parametrize("keep", [0, 20, 100, 1000, -1])
def test_a_damaged_entry_is_ignored_and_written_anew(folder: Path, new_proofs: list[Proof], keep: int) -> None:
    first = proof_cache.prove_schedule(graph(), CHOICES)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
    assert len(new_proofs) == 2
    assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
    assert len(new_proofs) == 2


def archive(**columns: np.ndarray) -> bytes:
    file = BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


class Planted:
    """Object that runs code if it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (os.environ["INTERLACE_CACHE_DIR"] + "/unpickled",)


def test_whole_entries_that_say_something_else_are_ignored(folder: Path, new_proofs: list[Proof]) -> None:
    first = proof_cache.prove_schedule(graph(), CHOICES)
    own = key(graph())
    facts, columns = cache.lookup(own)  # type: ignore[misc]
    other = verify(il.build(graph(), replace(CHOICES, workers=7)))
    coverage = Coverage(other.edges, other.edges_by_wait, other.rests_on)
    with np.load(BytesIO(columns)) as arrays:
        table = dict(arrays)
    objects = np.array([Planted()], object)
    planted = {**table, "items.op": objects}
    entries = [
        ({**facts, "of": hash_plan(other.plan)}, columns),
        ({**write_record(other.plan, coverage)[0]}, columns),
        (facts, write_record(other.plan, coverage)[1]),
        (facts, archive(**{**table, "waits.first": table["waits.first"][::-1]})),
        (facts, archive(**{name: table[name] for name in list(table)[1:]})),
        (facts, archive(**planted)),
        (facts, pickle.dumps(Planted())),
        (facts, b"none"),
        ({}, columns),
        ({**facts, "plan": {**facts["plan"], "workers": 7}}, columns),
        ({**facts, "rests_on": [["hope", None]]}, columns),
        *(({**facts, name: value}, columns) for name in ("edges", "by_wait", "of") for value in ("x", 1.5, -1, [])),
        *(({**facts, "rests_on": value}, columns) for value in (3, "", [3], [["wait", 3]], [["wait", {"k": []}]])),
        ({**facts, "by_wait": facts["edges"] + 1}, columns),
        ({**facts, "plan": "none"}, columns),
        *(({**facts, "plan": {**facts["plan"], "order": value}}, columns) for value in (None, 3, ["row"])),
        *((facts, archive(**{**table, "items.op": value})) for value in (np.array("x"), np.array(3), np.ones((2, 2)))),
        (facts, columns.replace(b"PK", b"KP")),
    ]
    for n, entry in enumerate(entries, 1):
        cache.store(own, *entry)
        assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
        assert len(new_proofs) == 1 + n
    assert not (folder.parent / "unpickled").exists()


@pytest.mark.parametrize("line", [b"[]", b"3", b"{", b"[" * 100_000, b"\xff", b"9" * 5000, b""])
def test_whole_entries_whose_facts_are_none_are_ignored(folder: Path, new_proofs: list[Proof], line: bytes) -> None:
    first = proof_cache.prove_schedule(graph(), CHOICES)
    (entry,) = folder.iterdir()
    rest = line + b"\n"
    entry.write_bytes(cache._checksum(entry.name, rest) + rest)
    assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
    assert len(new_proofs) == 2


class Odd(dict[str, il.SyncPolicy]):
    """Items that are not what one finds under their names."""

    def items(self) -> object:  # type: ignore[override]
        return {name: il.TileSync() for name in self}.items()


def test_of_mappings_that_are_no_dicts_and_classes_that_only_say_they_are_the_packages_nothing_is_kept(
    folder: Path, new_proofs: list[Proof]
) -> None:
    some = graph()
    named = {op.name: il.RowSync() for op in some.ops}
    foreign = type("RowSync", (OwnSync,), {"__module__": il.RowSync.__module__})
    for policy in (Odd(named), MappingProxyType(named), foreign()):
        proof_cache.prove_schedule(some, replace(CHOICES, policy=policy))
    assert len(new_proofs) == 3
    assert not folder.exists()


def test_a_cache_that_others_may_write_keeps_nothing_and_is_told(folder: Path, new_proofs: list[Proof]) -> None:
    first = proof_cache.prove_schedule(graph(), CHOICES)
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write it"):
        assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
    assert len(new_proofs) == 2
    folder.chmod(0o700)
    assert is_same(proof_cache.prove_schedule(graph(), CHOICES), first)
    assert len(new_proofs) == 2


def test_what_was_found_is_of_one_plan_and_all_else_is_proved_again() -> None:
    plan = il.build(graph(), CHOICES)
    proof = verify(plan)
    coverage = Coverage(proof.edges, proof.edges_by_wait, proof.rests_on)
    assert is_same(load_proof(plan, CachedCoverage(coverage, hash_plan(plan))), proof)
    threshold = plan.waits.threshold.copy()
    threshold[-1] += 1
    wrong = replace(plan, waits=replace(plan.waits, threshold=threshold))
    with pytest.raises(PlanError, match="found is of another plan"):
        load_proof(wrong, CachedCoverage(coverage, hash_plan(plan)))
    with pytest.raises(ThresholdError, match="set the threshold to"):
        load_proof(wrong, CachedCoverage(coverage, hash_plan(wrong)))


def test_a_folder_that_cannot_be_written_keeps_nothing_and_loses_nothing(folder: Path, new_proofs: list[Proof]) -> None:
    folder.write_text("no folder")
    assert is_same(proof_cache.prove_schedule(graph(), CHOICES), proof_cache.prove_schedule(graph(), CHOICES))
    assert len(new_proofs) == 2


def test_choices_of_ones_own_graphs_of_few_ops_and_changed_sources_are_planned_each_time(
    folder: Path, new_proofs: list[Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = graph()
    for policy in (OwnSync(), {some.ops[0].name: OwnSync()}):
        for _ in range(2):
            proof_cache.prove_schedule(some, replace(CHOICES, policy=policy))
    few = graph(ops=proof_cache.MIN_CACHED_OPS - 1)
    assert len(few.ops) < proof_cache.MIN_CACHED_OPS <= len(some.ops)
    for _ in range(2):
        proof_cache.prove_schedule(few, CHOICES)
    monkeypatch.setattr(proof_cache, "hash_folder", lambda _: None)
    for _ in range(2):
        proof_cache.prove_schedule(some, CHOICES)
    assert len(new_proofs) == 8
    assert not folder.exists()


def test_schedules_and_executors_take_what_is_kept(new_proofs: list[Proof]) -> None:
    step = build_decode_graph(replace(LLAMAS["tiny"], layers=4), 2, 64, il.H200)
    schedule = select_schedule(step, il.H200, MegakernelExecutor)
    first = proof_cache.prove_schedule(step, schedule)
    assert first.plan == il.build(step, schedule) == il.autoplan(step, il.H200, MegakernelExecutor)
    assert is_same(proof_cache.prove_schedule(step, schedule), first)
    tiled = proof_cache.prove_schedule(first.plan.graph, replace(schedule, tiles={}))
    assert is_same(tiled, first), "the graph in its tiles is the same problem"
    made = make_executor(step, il.H200, MegakernelExecutor, schedule, il.RunOptions("meta"))
    assert made.plan == first.plan
    assert len(new_proofs) == 1
    for other in (replace(schedule, policy=il.TileSync()), avoid_resident_workers(schedule, MegakernelExecutor)):
        assert proof_cache.prove_schedule(step, other).plan == il.build(step, other) != first.plan
    assert len(new_proofs) == 3


def test_a_plan_that_is_not_safe_is_not_kept(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(il.errors.CoverageError):
            proof_cache.prove_schedule(graph(), Schedule(8, policy=il.NoSync()))
    assert not folder.exists()
