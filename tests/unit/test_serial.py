"""One executor launches op by op; serial, graph and dependent launch differ in its data alone."""

from __future__ import annotations

from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.executors.launch import AnyLaunch, TritonLaunch
from interlace.workloads import Dag

METHODS = (il.SerialExecutor, il.CudaGraphExecutor, il.PdlExecutor)


def bind(executor: type[DeviceExecutor]) -> tuple[Any, list[AnyLaunch]]:
    run = executor(il.build(Dag(2, 64, 64, 64).build_graph(il.H200), il.Schedule(4)), il.RunOptions("meta"))
    return run, run.build_launches()


@pytest.mark.parametrize("executor", METHODS[1:])
def test_launch_methods_add_no_code(executor: type[DeviceExecutor]) -> None:
    assert executor.__bases__ == (il.SerialExecutor,)
    added = vars(executor).values()
    assert not [value for value in added if isinstance(value, FunctionType | classmethod | property)]


def test_launch_methods_make_the_same_launches_but_for_dependence() -> None:
    launches = {executor.name: bind(executor)[1] for executor in METHODS}
    for name, made in launches.items():
        dependent = name == "pdl"
        for launch, serial in zip(made, launches["serial"], strict=True):
            assert isinstance(launch, TritonLaunch)
            assert isinstance(serial, TritonLaunch)
            assert (launch.kernel, launch.grid, launch.ops) == (serial.kernel, serial.grid, serial.ops)
            assert launch.options == {**serial.options, "launch_pdl": dependent}
            assert launch.arguments[-1] is dependent


@pytest.mark.parametrize("executor", METHODS)
def test_a_captured_run_is_replayed_until_its_launches_change(
    executor: type[DeviceExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    @contextmanager
    def capture(graph: Graph) -> Any:
        done.append("capture")
        yield

    launch: Any = SimpleNamespace(run=lambda: done.append("run"), load=lambda: done.append("load"))
    run, _ = bind(executor)
    capturing = False
    cuda = SimpleNamespace(
        CUDAGraph=Graph, synchronize=lambda device: None, is_current_stream_capturing=lambda: capturing
    )
    monkeypatch.setattr(run, "_torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr("interlace.megakernel.capture.capture_graph", capture)
    bound, other = [launch, launch], [launch]
    for launches in (bound, bound, other):
        run._enqueue(launches)
    capturing = True
    run._enqueue(bound)
    captures = ["load", "load", "capture", "run", "run", "replay", "replay", "load", "capture", "run", "replay"]
    assert done == ([*captures, "run", "run"] if executor is il.CudaGraphExecutor else ["run"] * 7)
