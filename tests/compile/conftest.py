"""While CUDA C++ moves to ``csrc``: check that tests compile texts to the recorded machine code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from interlace.kernels.cuda import compiler

HASHES = json.loads(Path(__file__).with_name("source_hashes.json").read_text())


def short_hash(text: str | bytes) -> str:
    return sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()[:16]


@pytest.fixture(autouse=True)
def compiled_as_before(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Look for hashes of PTX and cubin on record, where this NVRTC made those."""
    wrong, make_binary = [], compiler.Binary
    recorded = {tuple(made) for made in HASHES["compiled"].values()}

    def binary(name: str, function: str, cubin: bytes, ptx: str, *rest: Any) -> compiler.Binary:
        made = short_hash(ptx), short_hash(cubin)
        if compiler._versions()["nvrtc"] == HASHES["nvrtc"] and made not in recorded:
            wrong.append((name, made))
        return make_binary(name, function, cubin, ptx, *rest)

    monkeypatch.setattr(compiler, "Binary", binary)
    yield
    assert not wrong, wrong
