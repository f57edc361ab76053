"""Errors for arguments in the wrong form: one line that names what to write instead."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import (
    ConcurrentRunError,
    DeviceError,
    DTypeError,
    GraphError,
    InterlaceError,
    NoDeviceError,
    ShapeError,
)
from interlace.executors.gpu import open_device
from interlace.kernels.bodies import Array


def plan() -> il.Plan:
    return il.build(il.workloads.two_copies(4, 4, il.fp32, tile=(2, 2)), il.Schedule(1))


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(
            ("timeout_s", value, f"RunOptions.timeout_s is {value!r}; give seconds as a number from 1e-09 to 9e+09")
            for value in (-1, 0, 0.0, 1e-10, 1e10, 10**400, float("nan"), float("inf"), "2", None, True, 2j)
        ),
        *(
            ("jitter_s", value, f"RunOptions.jitter_s is {value!r}; give seconds as a number from 0 to 2")
            for value in (-1e-9, 2.5, float("nan"), float("inf"), "0", None, False)
        ),
        ("device", 0, "RunOptions.device is 0; name a torch device in a text, such as 'cuda:0'"),
        ("device", None, "RunOptions.device is None; name a torch device"),
        ("trace", "yes", "RunOptions.trace is 'yes'; it is True or False"),
        ("dependent_launch", 1, "RunOptions.dependent_launch is 1; it is True or False"),
    ],
)
def test_an_option_of_another_type_or_out_of_range_is_named(option: str, value: Any, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        il.RunOptions(**{option: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "option",
    [
        "timeout_s",
        "jitter_s",
        "queue_capacity",
        "device",
        "trace",
        "short_inputs",
        "ll_tensors",
        "cluster",
        "termination",
    ],
)
def test_an_option_that_python_does_not_print_is_named(option: str) -> None:
    with pytest.raises(DeviceError, match=rf"^RunOptions\.{option} is an int of 16,610 bits; "):
        il.RunOptions(**{option: -(10**5000)})


def test_the_limits_of_options_are_whole_nanoseconds_that_devices_hold() -> None:
    for timeout in (1e-9, 1, 2.0, np.float32(3.0), np.int64(4), 9e9):
        assert 1 <= int(il.RunOptions(timeout_s=timeout).timeout_s * 1e9) < 1 << 63
    assert int(il.RunOptions(jitter_s=2).jitter_s * 1e9) < 1 << 31


@pytest.mark.parametrize("options", ["cpu", il.RunOptions, {"device": "cpu"}, 0, ""])
def test_options_that_are_none_are_answered_with_an_object(options: Any) -> None:
    with pytest.raises(DeviceError, match=r"^options is .*; pass an object, such as interlace\.RunOptions\(device="):
        il.SerialExecutor(plan(), options)
    with pytest.raises(DeviceError, match=r"^options is .*; pass an object"):
        il.MegakernelExecutor(plan(), options)


@pytest.mark.parametrize("wrong", [{"seed": "x"}, {"seed": 0.5}, {"first_run": None}, {"first_run": "1"}])
def test_a_seed_that_is_no_int_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeviceError, match=r"^(seed|first_run) is .*; give an int"):
        il.ReferenceExecutor(plan(), **wrong)


def test_a_missing_gpu_is_said_without_words_of_a_device_that_nobody_asked_for() -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(NoDeviceError) as caught:
        open_device("cuda")
    assert str(caught.value).startswith("this needs a CUDA GPU, and torch sees no CUDA GPU here")
    assert "interlace run" in str(caught.value)
    assert "'cuda'" not in str(caught.value)


# ---------------------------------------------------------------- the reference executor


class Foreign:
    """Looks like an array, as a tensor of another library does."""

    shape = (4, 4)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (Foreign(), GraphError, "tensor 'x' is a Foreign; the reference executor takes NumPy arrays"),
        ([[1.0] * 32] * 32, GraphError, "tensor 'x' is a list; "),
        (np.ndarray, GraphError, "tensor 'x' is the class ndarray; "),
        (None, GraphError, "tensor 'x' is None; "),
        (np.full((4, 4), None), DTypeError, "tensor 'x' holds object; pass real numbers"),
        (np.full((4, 4), "1"), DTypeError, "tensor 'x' holds <U1; pass real numbers"),
        (np.ones((4, 4), np.complex64), DTypeError, "tensor 'x' holds complex64; pass real numbers"),
        (np.ones((4, 5)), ShapeError, "tensor 'x' has shape (4, 5)"),
        (np.ones(()), ShapeError, "tensor 'x' has shape ()"),
    ],
)
def test_an_input_that_is_no_array_of_numbers_is_named(value: Any, error: type[InterlaceError], message: str) -> None:
    with pytest.raises(error) as caught:
        il.ReferenceExecutor(plan()).run({"x": value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_every_real_dtype_is_taken(dtype: type[np.generic]) -> None:
    x = np.ones((4, 4), dtype)
    np.testing.assert_array_equal(il.ReferenceExecutor(plan()).run({"x": x})["z"], 1.0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([np.ones((4, 4))], r"come by name, as \{'x': x, \.\.\.\}, not as \[array.*\]; pass a dict"),
        ({}, r"needs inputs \['x'\]"),
        ({"x": np.ones((4, 4)), "q": np.ones(1)}, "has no tensor 'q'"),
        ({"x": np.ones((4, 4)), "z": np.ones((4, 4))}, r"\['z'\] are no inputs of graph .* so pass \['x'\] alone"),
        ({"x": np.ones((4, 4)), "y": np.ones((4, 4))}, r"\['y'\] are no inputs"),
    ],
)
def test_names_that_are_no_inputs_are_refused(tensors: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        il.ReferenceExecutor(plan()).run(tensors)


def test_inputs_that_share_memory_give_the_right_result() -> None:
    """The reference executor copies, so it needs no memory apart."""
    a, b, c = (il.Tensor(name, (4,), il.fp32) for name in "abc")
    (i,) = il.axes(1)
    kernel = il.Kernel("sum", il.Reference(lambda acc, regions, params: {"c": regions["a"] + regions["b"]}))
    own = (i.block(2),)
    op = kernel.make_op("sum", (2,), {"a": (a, own), "b": (b, own)}, {"c": (c, own)})
    run = il.ReferenceExecutor(il.build(il.Graph("sum", (a, b, c), (op,), ("a", "b"), ("c",)), il.Schedule(2)))
    values = np.arange(8.0)
    out = run.run({"a": values[:4], "b": values[2:6]})["c"]
    np.testing.assert_array_equal(out, [2.0, 4.0, 6.0, 8.0])
    np.testing.assert_array_equal(values, np.arange(8.0))


REFERENCES: Mapping[str, tuple[Any, type[InterlaceError], str]] = {
    "another key": (lambda x: {"out": x}, GraphError, "returns regions of ['out']; return a dict with"),
    "a key too many": (lambda x: {"y": x, "z": x}, GraphError, "returns regions of ['y', 'z']; "),
    "nothing": (lambda x: {}, GraphError, "returns regions of []; "),
    "no dict": (lambda x: x, GraphError, "returns a ndarray; "),
    "None": (lambda x: None, GraphError, "returns None; "),
    "another shape": (lambda x: {"y": x[:1]}, ShapeError, "returns 'y' of shape (1,), but writes y[0:2]; return (2,)"),
}


@pytest.mark.parametrize("what", REFERENCES)
def test_a_reference_that_returns_something_else_is_named(what: str) -> None:
    answer, error, message = REFERENCES[what]

    def finish(acc: Array | None, regions: Mapping[str, Array], params: Mapping[str, Any]) -> Any:
        return answer(regions["x"])

    x, y = (il.Tensor(name, (4,), il.fp32) for name in "xy")
    own = (il.axes(1)[0].block(2),)
    op = il.Kernel("twin", il.Reference(finish)).make_op("twin", (2,), {"x": (x, own)}, {"y": (y, own)})
    run = il.ReferenceExecutor(il.build(il.Graph("twin", (x, y), (op,), ("x",), ("y",)), il.Schedule(1)))
    with pytest.raises(error) as caught:
        run.run({"x": np.ones(4)})
    assert str(caught.value).startswith(f"op 'twin', tile (0): the reference of kernel 'twin' {message}")


def test_errors_cross_processes_with_their_attributes() -> None:
    hang = il.errors.HangError("late", item=1, semaphore=2, expected=3, seen=0, producer="up (0, 1)")
    chunk = il.errors.ChunkError("lost", chunk=4, part="upload", delivered_chunks=3)
    request = il.errors.RequestError("n is 0", param="n")
    for error in (hang, chunk, request, il.errors.PlanError("no")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_two_threads_in_one_reference_executor_are_refused() -> None:
    """One of them would take the other's tensors; before, both results were wrong without a word."""
    graph = il.workloads.two_copies(64, 64, tile=(32, 64))
    executor = il.ReferenceExecutor(il.build(graph, il.Schedule(2)))
    inputs = {"x": np.ones((64, 64), np.float32)}
    began, goes_on = Event(), Event()
    schedule = executor._run_workers

    def wait_inside() -> None:
        began.set()
        assert goes_on.wait(60)
        schedule()

    executor._run_workers = wait_inside  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(executor.run, inputs)
        assert began.wait(60)
        with pytest.raises(ConcurrentRunError, match="make an executor for each thread"):
            executor.run(inputs)
        goes_on.set()
        assert all((value == 1).all() for value in first.result().values())
    assert all((value == 1).all() for value in executor.run(inputs).values())
    again = pickle.loads(pickle.dumps(il.ReferenceExecutor(il.build(graph, il.Schedule(2)))))
    assert all((value == 1).all() for value in again.run(inputs).values())
