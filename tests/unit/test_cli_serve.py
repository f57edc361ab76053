"""``interlace serve``: what it loads and prints, the defaults of a model, and what it refuses before it serves."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
pytest.importorskip("pydantic")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from interlace.core.errors import DecodeError
from interlace.engine import Engine
from interlace.serve import process, server
from interlace.serve.settings import ServerSettings

from ..fake_engine import FakeEngine
from .commands import fail, invoke


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Load a fake engine in place of a model, and collect the options of the engine and of the server."""
    found: dict[str, Any] = {"failure": None}

    def load(model: Path, **options: Any) -> FakeEngine:
        assert [*options.pop("progress")(["a", "b"])] == ["a", "b"]
        found.update(options=options)
        return FakeEngine(model_name=model.name)

    def serve(engine: FakeEngine, settings: ServerSettings, listening: Any, report: Any) -> BaseException | None:
        found.update(settings=settings, address=listening.getsockname())
        return found["failure"]

    monkeypatch.setattr(Engine, "from_pretrained", load)
    monkeypatch.setattr(process, "serve", serve)
    return found


def test_options_reach_engine_and_server_and_a_command_is_printed(calls: dict[str, Any], tmp_path: Path) -> None:
    options = ["--max-num-seqs", "5", "--max-model-len", "99", "--max-num-batched-tokens", "7", "--port", "0"]
    result = invoke("serve", tmp_path / "m", *options, "--api-key", "k", "--served-model-name", "it's", "--log-prompts")
    assert result.exit_code == 0, result.output
    assert calls["options"] == {"max_num_seqs": 5, "max_model_len": 99, "max_num_batched_tokens": 7}
    settings = calls["settings"]
    assert (settings.model_name, settings.api_key, settings.default_params) == ("it's", "k", {})
    settings.log_prompt("a prompt\x1b[2J")
    host, port = calls["address"]
    assert host == "127.0.0.1"
    first, command = result.stdout.splitlines()
    assert first == f"http://127.0.0.1:{port}/v1 serves it's (Ctrl-C ends it)"
    assert json.loads(shlex.split(command)[-1])["model"] == "it's"
    assert result.stderr.startswith(f"note: loading {tmp_path / 'm'}\n")


def test_the_models_generation_config_has_the_defaults(calls: dict[str, Any], tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True, "eos_token_id": 3, "max_length": 20}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert invoke("serve", tmp_path, "--port", "0").exit_code == 0
    assert calls["settings"].default_params == {"temperature": 0.6, "top_p": 0.9}
    assert calls["settings"].model_name == tmp_path.name
    assert calls["settings"].log_prompt is None
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    assert "temperature is 'hot'" in fail(2, "serve", tmp_path, "--port", "0")


def test_what_cannot_be_served_is_one_line(calls: dict[str, Any], tmp_path: Path) -> None:
    with server.listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        message = fail(2, "serve", tmp_path, "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}: " in message
    assert "options" not in calls, "nothing is loaded for a port that is taken"
    assert "cannot listen on nowhere.invalid" in fail(2, "serve", tmp_path, "--host", "nowhere.invalid")
    assert "cannot listen on a..b port 0: " in fail(2, "serve", tmp_path, "--host", "a..b", "--port", "0")
    for key in ("", "a\nb", "\udcff"):
        assert "--api-key is empty or not printable" in fail(2, "serve", tmp_path, "--port", "0", "--api-key", key)
    calls["failure"] = DecodeError("op 'up' never posted")
    assert "op 'up' never posted" in fail(1, "serve", tmp_path, "--port", "0")


def test_a_model_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert "cannot read 'absent'" in fail(2, "serve", "absent", "--port", "0")
    (tmp_path / "text.gguf").write_text("no model at all")
    assert "is no GGUF file" in fail(2, "serve", tmp_path / "text.gguf", "--port", "0")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "interlace.serve.server", None)
    monkeypatch.delattr(sys.modules["interlace.serve"], "server")
    assert "pip install -e '.[gpu,generate,serve]'" in fail(1, "serve", "m")
