"""Roles that count stages differently end the launch on a GPU, and the host is told which; each in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import interlace as il
from interlace.core.errors import LaunchEndedError

from ..unit.test_emulator_stages import FAULTS

_CONSUMERS = FAULTS["consumers one fewer"][0]


def run_fault(products: str, before: str, after: str) -> str:
    """Products whose text is changed, on the current GPU: what the launch ended with, to whoever asks next."""
    own = il.MatmulTile(64, 64, 64)
    shape = il.workloads.FFNShape(256, 192, il.Activation.RELU, gated=False)
    one, two = il.workloads.one_matmul(5, 64, 256, tile=own), il.workloads.ffn(5, shape, il.bf16, own, own)
    plan = il.build(two if products == "two" else one, il.Schedule(2))
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=0.05))
    text = run.composition.expanded_text
    assert text.count(before) == 1
    run.__dict__["composition"] = replace(run.composition, source=text.replace(before, after))
    graph = run.plan.graph
    tensors = {name: torch.ones_like(run.allocate_tensor(name)) for name in (*graph.inputs, *graph.outputs)}
    run.run(tensors)
    try:
        run.synchronize()
    except LaunchEndedError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def run_in_process(products: str, before: str, after: str) -> str:
    command = [sys.executable, "-m", __name__, products, before, after]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_who_counts_otherwise_is_named_with_the_item(name: str) -> None:
    before, old, new, role, more = FAULTS[name]
    count = f"{abs(more)} stage{'s' * (abs(more) > 1)} {'more' if more > 0 else 'fewer'}"
    found = run_in_process("two", before, before.replace(old, new))
    assert found.startswith("StageCountError: op 'up', tile (0, ")
    assert re.search(f": {role} took {count} of the ring than its loads ahead of waits", found)


def test_a_role_that_waits_for_a_stage_too_many_is_named_by_its_item() -> None:
    before, old, new, *_ = FAULTS["consumers one more"]
    found = run_in_process("one", before, before.replace(old, new))  # of which none is loaded
    assert found.startswith("LaunchEndedError: op 'matmul', tile (0, 0) (item 0) did not end before the watchdog fired")


def test_without_a_change_nothing_ends() -> None:
    assert run_in_process("two", _CONSUMERS, _CONSUMERS) == "nothing\n"


if __name__ == "__main__":
    print(run_fault(*sys.argv[1:]))
