"""``interlace generate``: the text, the record, and what it says of files and options that make no sense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from interlace.models.pretrained import load_model  # noqa: E402
from interlace.models.tokenizer import open_tokenizer  # noqa: E402
from interlace.nn import Decoder  # noqa: E402

from .commands import fail, invoke  # noqa: E402
from .llama import SHAPE, ToyForCausalLM, stored_names  # noqa: E402
from .model_files import TOKENS, VOCABULARY, config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder  # noqa: E402

SMALL = replace(SHAPE, vocabulary=len(TOKENS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "tokenizer.ggml.eos_token_id": 5}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    return path


def test_it_writes_what_the_decoder_makes_of_the_prompt(model: Path, tmp_path: Path) -> None:
    arguments = ["generate", "--model", model, "--prompt", "hello w", "--device", "cpu", "--max-new-tokens", "9"]
    result = invoke(*arguments, "--json", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    trained = load_model(model)
    of = open_tokenizer(model, trained.gguf)
    ids = of.encode("hello w")
    made = Decoder.from_pretrained(trained, max_seq_len=20, device="cpu").generate(ids, 9)
    assert result.stdout == of.decode(made) + "\n"
    assert result.stderr.startswith(f"note: {len(ids)} tokens read in ")
    assert f"{len(made)} written" in result.stderr
    assert "floor" not in result.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["ids"] == made
    assert record["prompt_ids"] == ids
    assert (record["runs"], record["floor_us"]) == ("torch", None)
    to_stdout = invoke(*arguments, "--json", "-")
    assert json.loads(to_stdout.stdout)["text"] == of.decode(made)
    assert invoke(*arguments, "--temperature", "3", "--seed", "1").stdout != result.stdout


def test_settings_that_a_file_leaves_out_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    vocabulary = {name: value for name, value in VOCABULARY.items() if name != "tokenizer.ggml.pre"}
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    path.write_bytes(gguf_bytes({**gguf_metadata(SMALL), **vocabulary}, gguf_tensors(stored, SMALL)))
    result = invoke("generate", "--model", path, "--prompt", "hello", "--device", "cpu", "--max-new-tokens", "2")
    assert result.exit_code == 0, result.output
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2, "a note of the setting, and one of the speed"
    assert "names no tokenizer.ggml.pre, so texts are split by 'default'" in notes[0]


def test_a_text_longer_than_the_sliding_window_is_refused_with_advice_that_holds(tmp_path: Path) -> None:
    path = tmp_path / "window.gguf"
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "llama.attention.sliding_window": 8}
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    arguments = ["generate", "--model", path, "--prompt", "hello", "--device", "cpu", "--max-new-tokens"]
    message = fail(2, *arguments, "9")
    assert "more than the 8 positions of the model's sliding window" in message
    assert "shorten the prompt or give fewer with --max-new-tokens" in message
    assert invoke(*arguments, "8").exit_code == 0


def test_a_chat_is_the_prompt_in_the_form_of_the_models_template(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    path = tmp_path / "chat.gguf"
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }} w{% endfor %}"
    begun = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, **begun, "tokenizer.chat_template": template}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))

    def ids(*options: str) -> list[int]:
        given = ("--prompt", "hello", "--device", "cpu", "--max-new-tokens", "2", "--json", "-")
        found: list[int] = json.loads(invoke("generate", "--model", path, *given, *options).stdout)["prompt_ids"]
        return found

    of = open_tokenizer(path, load_model(path).gguf)
    assert ids() == of.encode("hello")
    assert ids("--chat") == of.encode("hello w"), "with the token that begins texts once, which the template has"
    told = fail(2, "generate", "--device", "cpu", "--model", model, "--prompt", "hello", "--chat")
    assert "this model was not made for chats; leave out --chat" in told


def test_what_a_text_does_to_a_terminal_is_to_end_lines(model: Path) -> None:
    from interlace.cli.generate import _escape_text

    assert _escape_text("a\tb\n\x1b[2J\r\x07é") == "a\tb\n\\x1b[2J\\r\\x07é"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "absent"], "cannot read 'absent': No such file"),
        (["--model", "."], "config.json': No such file or directory; name a GGUF file, or a folder"),
        (["--model", "text"], "'text' is no GGUF file"),
        (["--model", "cut"], "'cut' is damaged"),
        (["--prompt", ""], "the prompt has no tokens"),
        (["--prompt", "red\udcff"], "the prompt is no UTF-8 at its character 3; write it as UTF-8"),
        (["--prompt", "a" * 200], "are more than the 128 positions that the model was made for"),
        (["--max-new-tokens", "500"], "500 new ones are more than the 128 positions"),
        (["--max-new-tokens", "0"], "Invalid value for '--max-new-tokens'"),
        (["--temperature", "-1"], "temperature is -1.0; give a number from 0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-k", "0"], "top_k is 0"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--seed", "9" * 30], "give a number from 0 to"),
        (["--device", "tpu"], "tpu"),
        (["--json", ""], "rror"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_writes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no model at all, but a text")
    (tmp_path / "cut").write_bytes(model.read_bytes()[:900])
    before = sorted(tmp_path.iterdir())
    given = {"--model": str(model), "--prompt": "hello", **dict(zip(options[::2], options[1::2], strict=True))}
    assert message in fail(2, "generate", "--device", "cpu", *(word for pair in given.items() for word in pair))
    assert sorted(tmp_path.iterdir()) == before


def test_a_record_takes_the_place_of_no_file_of_the_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32))), config(SMALL))
    weights = folder / "model-0.safetensors"
    before = weights.read_bytes()
    told = fail(2, "generate", "--model", folder, "--prompt", "hello", "--device", "cpu", "--json", weights)
    assert "is a file of the model's folder; give the record another name" in told
    assert weights.read_bytes() == before


def test_a_gpu_that_is_not_here_is_missing(model: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "CUDA GPU" in fail(1, "generate", "--model", model, "--prompt", "hello", "--device", "cuda")
