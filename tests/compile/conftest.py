"""While CUDA C++ moves to ``csrc``: check that tests compile the recorded texts, to the recorded code."""

from __future__ import annotations

import json
import threading
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
    """Compare hashes of whole texts, and of PTX and cubin where this NVRTC made those on record."""
    text, wrong, make_key, make_binary = threading.local(), [], compiler.cache.key_of, compiler.Binary

    def key_of(**values: Any) -> str:
        text.whole = f"{short_hash(values.get('text', ''))} {values.get('architecture')}"
        return make_key(**values)

    def binary(name: str, function: str, cubin: bytes, ptx: str, *rest: Any) -> compiler.Binary:
        recorded = HASHES["compiled"].get(text.whole)
        made = [short_hash(ptx), short_hash(cubin)]
        if recorded is None or (compiler._versions()["nvrtc"] == HASHES["nvrtc"] and recorded != made):
            wrong.append((name, text.whole, made, recorded))
        return make_binary(name, function, cubin, ptx, *rest)

    monkeypatch.setattr(compiler.cache, "key_of", key_of)
    monkeypatch.setattr(compiler, "Binary", binary)
    yield
    assert not wrong, wrong
