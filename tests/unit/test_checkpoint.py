"""Weights from safetensors files that the tests write, and rounding to dtypes that NumPy lacks."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
import safetensors.numpy

from interlace.core.dtypes import bf16, fp16, fp32
from interlace.core.errors import DTypeError, GraphError, InterlaceError, ShapeError
from interlace.core.rounding import round_to
from interlace.kernels.matmul import Activation
from interlace.models.checkpoint import Checkpoint
from interlace.workloads import FFNShape
from interlace.workloads.ffn import read_ffn_shape

HIDDEN, FFN = 24, 40


def weights(dtype=fp32, gate=True):
    random = np.random.default_rng(0)
    shapes = {"up": (FFN, HIDDEN), "down": (HIDDEN, FFN)} | ({"gate": (FFN, HIDDEN)} if gate else {})
    return {name: round_to(random.standard_normal(shape), dtype) for name, shape in shapes.items()}


def save(path: Path, tensors: dict[str, np.ndarray], dtype) -> Path:
    """Through the safetensors package; bf16 by hand, because NumPy has no such type."""
    if dtype is not bf16:
        kind = np.float16 if dtype is fp16 else np.float32
        safetensors.numpy.save_file({name: value.astype(kind) for name, value in tensors.items()}, path)
        return path
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        words = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(words)],
        }
        data += words
    return raw(path, header, data)


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("dtype", [bf16, fp16, fp32], ids=str)
def test_every_weight_comes_back_exactly(tmp_path: Path, dtype) -> None:
    stored = weights(dtype)
    file = Checkpoint.open(save(tmp_path / "w.safetensors", stored, dtype))
    assert sorted(file.tensors) == ["down", "gate", "up"]
    for name, value in stored.items():
        assert file.describe_matrix(name) == (value.shape, dtype)
        read = file.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, value)


def test_bf16_files_written_by_torch_come_back_exactly(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import safetensors.torch

    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    safetensors.torch.save_file({"w": values.bfloat16()}, tmp_path / "w")
    read = Checkpoint.open(tmp_path / "w").read("w")
    np.testing.assert_array_equal(read, values.bfloat16().float().numpy())
    np.testing.assert_array_equal(read, round_to(values.numpy(), bf16))


def test_shape_and_activation_follow_from_the_weights(tmp_path: Path) -> None:
    file = Checkpoint.open(save(tmp_path / "w", weights(bf16), bf16))
    assert read_ffn_shape(file, "up", "down") == (FFNShape(HIDDEN, FFN, Activation.GELU_TANH, False), bf16)
    assert read_ffn_shape(file, "up", "down", "gate") == (FFNShape(HIDDEN, FFN, Activation.SILU, True), bf16)
    assert read_ffn_shape(file, "up", "down", activation=Activation.RELU)[0].activation is Activation.RELU


def test_only_the_requested_tensor_is_looked_at(tmp_path: Path) -> None:
    stored = weights(fp32)
    stored["down"] = np.full_like(stored["down"], np.nan)
    file = Checkpoint.open(save(tmp_path / "w", stored, fp32))
    np.testing.assert_array_equal(file.read("up"), stored["up"])
    with pytest.raises(GraphError, match=r"'down' .* holds infinities or NaNs"):
        file.read("down")


def test_a_missing_tensor_lists_what_there_is(tmp_path: Path) -> None:
    file = Checkpoint.open(save(tmp_path / "w", weights(), fp32))
    with pytest.raises(GraphError, match=r"has no tensor 'wup'; it has down, gate, up$"):
        file.read("wup")
    many = {f"t{i:02}": np.zeros((1, 1), np.float32) for i in range(20)}
    file = Checkpoint.open(save(tmp_path / "many", many, fp32))
    with pytest.raises(GraphError, match=r"t00, .*, t11 and 8 more$"):
        file.describe_matrix("x")


def test_only_matrices_of_known_dtypes_are_weights(tmp_path: Path) -> None:
    path = tmp_path / "w"
    safetensors.numpy.save_file(
        {
            "bias": np.zeros(3, np.float32),
            "cube": np.zeros((2, 2, 2), np.float32),
            "empty": np.zeros((0, 4), np.float32),
            "ids": np.zeros((2, 2), np.int64),
        },
        path,
    )
    file = Checkpoint.open(path)
    for name, shape in (("bias", r"\(3,\)"), ("cube", r"\(2, 2, 2\)"), ("empty", r"\(0, 4\)")):
        with pytest.raises(ShapeError, match=f"'{name}' .* has shape {shape}"):
            file.read(name)
    with pytest.raises(DTypeError, match=r"'ids' .* is I64; convert it to one of BF16, F16, F32"):
        file.read("ids")


def test_weights_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    stored = weights() | {"transposed": np.zeros((FFN, HIDDEN), np.float32)}
    file = Checkpoint.open(save(tmp_path / "w", stored, fp32))
    with pytest.raises(ShapeError, match=r"'transposed' has shape \(40, 24\), .* should be \(24, 40\)"):
        read_ffn_shape(file, "up", "transposed")
    with pytest.raises(ShapeError, match="'down' has shape"):
        read_ffn_shape(file, "up", "down", gate="down")
    mixed = tmp_path / "mixed"
    safetensors.numpy.save_file({"up": np.zeros((4, 2), np.float32), "down": np.zeros((2, 4), np.float16)}, mixed)
    with pytest.raises(DTypeError, match="'down' is fp16 and 'up' is fp32"):
        read_ffn_shape(Checkpoint.open(mixed), "up", "down")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 17]}, "lies at bytes 0:17 of 16"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [8, 4]}, "lies at bytes 8:4"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [-4, 12]}, "lacks a proper"),
        ({"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 16]}, "has 16 bytes"),
        ({"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 16]}, "has 16 bytes"),
        ({"dtype": "F32", "shape": [True, 4], "data_offsets": [0, 16]}, "lacks a proper"),
        ({"dtype": "F32", "shape": [2, 2]}, "lacks a proper"),
        ({"shape": [2, 2], "data_offsets": [0, 16]}, "lacks a proper"),
        ({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}, "lacks a proper"),
        ([], "is not an object"),
    ],
)
def test_an_entry_that_does_not_fit_the_file_is_refused(tmp_path: Path, entry: object, what: str) -> None:
    path = raw(tmp_path / "w", {"w": entry}, bytes(16))
    with pytest.raises(GraphError, match=f"is damaged or no safetensors file: .*'w' .*{what}"):
        Checkpoint.open(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        struct.pack("<Q", 0) + b"{}",
    ],
)
def test_a_file_too_short_for_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(GraphError, match="does not fit"):
        Checkpoint.open(path)


def test_headers_that_are_not_json_objects_are_refused(tmp_path: Path) -> None:
    for header in (b"\xff\xfe\xff", b"nonsense", b"[" * 5000):
        with pytest.raises(GraphError, match="its header is not JSON"):
            Checkpoint.open(raw(tmp_path / "w", header))
    with pytest.raises(GraphError, match="not a JSON object"):
        Checkpoint.open(raw(tmp_path / "w", [1, 2]))


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "none": {**entry, "shape": [0], "data_offsets": [4, 4]}, "b": entry}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(GraphError, match="tensors 'a' and 'b' lie in the same bytes"):
        Checkpoint.open(tmp_path / "w")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"cannot read checkpoint .*No such file"):
        Checkpoint.open(tmp_path / "absent")
    with pytest.raises(GraphError, match="cannot read checkpoint"):
        Checkpoint.open(tmp_path)


def test_no_damage_escapes_as_another_error(tmp_path: Path) -> None:
    good = save(tmp_path / "good", weights(bf16), bf16).read_bytes()
    path = tmp_path / "bad"
    random = Random(0)
    header = 8 + struct.unpack("<Q", good[:8])[0]
    for _ in range(400):
        data = bytearray(good)
        if random.random() < 0.3:
            del data[random.randrange(len(data)) :]
        for _ in range(random.randrange(3)):
            if data:
                data[random.randrange(min(header, len(data)))] = random.randrange(256)
        path.write_bytes(data)
        with suppress(InterlaceError):
            file = Checkpoint.open(path)
            for name in file.tensors:
                assert np.isfinite(file.read(name)).all()


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    bits[:1000] = (bits[:1000] & 0xFFFF0000) | 0x8000  # exact ties
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
    low = values.view(np.uint32) & np.uint32(0xFFFF0000)
    below, above = (b.view(np.float32).astype(np.float64) for b in (low, low + np.uint32(0x10000)))
    to_below, to_above = np.abs(values - below), np.abs(values - above)
    even = (low >> 16) & 1 == 0
    nearest = np.where((to_below < to_above) | ((to_below == to_above) & even), below, above)
    np.testing.assert_array_equal(round_to(values, bf16), nearest)


def test_rounding_keeps_what_it_must() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1.0, 1.00390625])
    assert [str(v) for v in round_to(special, bf16)] == [
        "0.0",
        "-0.0",
        "inf",
        "-inf",
        "nan",
        "inf",
        "1.0",
        "1.0",
    ]
    assert round_to(np.array([65504.0, 65520.0]), fp16).tolist() == [65504.0, np.inf]
    assert round_to(np.array([1 + 2.0**-30]), fp32).tolist() == [1.0]
    payloads = np.array([0x7FFFFFFF, 0x7F800001], np.uint32)  # the first would wrap to -0.0, the second signals
    assert np.isnan(round_to(payloads.view(np.float32), bf16)).all()
