"""``interlace generate``: the text, the record, and what it says of files and options that make no sense."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import interlace as il  # noqa: E402
from interlace.models.pretrained import load_model  # noqa: E402
from interlace.models.tokenizer import open_tokenizer  # noqa: E402
from interlace.nn import Decoder  # noqa: E402

from .commands import fail, invoke  # noqa: E402
from .llama import SHAPE, ToyForCausalLM, stored_names  # noqa: E402
from .model_files import TOKENS, VOCABULARY, config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder  # noqa: E402

SMALL = replace(SHAPE, vocabulary=len(TOKENS))
ENDS = [0, 1]  # a file's <|end|> always ends texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "tokenizer.ggml.eos_token_id": 5}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    return path


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with longer texts."""
    path = tmp_path_factory.mktemp("free") / "free.gguf"
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "tokenizer.ggml.eos_token_id": ENDS[1]}
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    return path


@pytest.fixture(scope="module")
def llm(free: Path) -> il.LLM:
    return il.LLM(free, max_num_seqs=1, device="cpu")


def generate(model: Path, *options: object) -> dict[str, Any]:
    """Return the record of a run with a short prompt."""
    given = {"--prompt": "hello w", "--max-new-tokens": "24", **dict(zip(options[::2], options[1::2], strict=True))}
    result = invoke(
        "generate", "--model", model, "--device", "cpu", "--json", "-", *(w for p in given.items() for w in p)
    )
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def sample(llm: il.LLM, **params: Any) -> list[int]:
    """Return the tokens that follow the same prompt, without the one that ends the text."""
    defaults = {"temperature": 0.0, "seed": 0, "max_tokens": 24}
    [result] = llm.generate("hello w", il.SamplingParams(**{**defaults, **params}))
    return [id for id in result.outputs[0].token_ids if id not in llm.engine.decoder.stop_token_ids]


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


def test_the_token_that_ends_the_text_is_not_written(free: Path, tmp_path: Path) -> None:
    whole = generate(free)
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "tokenizer.ggml.eos_token_id": whole["ids"][4]}
    (path := tmp_path / "ends.gguf").write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    ended = generate(path)
    assert ended["ids"] == whole["ids"][: whole["ids"].index(whole["ids"][4])]
    assert ended["text"] == open_tokenizer(path, load_model(path).gguf).decode(ended["ids"])


OPTIONS = {
    "temperature": (["--temperature", "2", "--seed", "3"], {"temperature": 2.0, "seed": 3}),
    "top-k": (["--temperature", "3", "--top-k", "2"], {"temperature": 3.0, "top_k": 2}),
    "all": (["--temperature", "3", "--top-k", "0"], {"temperature": 3.0}),
    "top-p": (["--temperature", "3", "--top-p", "0.3"], {"temperature": 3.0, "top_p": 0.3}),
    "min-p": (["--temperature", "3", "--min-p", "0.4"], {"temperature": 3.0, "min_p": 0.4}),
    "repetition": (["--repetition-penalty", "9"], {"repetition_penalty": 9.0}),
    "presence": (["--presence-penalty", "2"], {"presence_penalty": 2.0}),
    "frequency": (["--frequency-penalty", "2"], {"frequency_penalty": 2.0}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_sampling_options_are_those_of_llm(free: Path, llm: il.LLM, name: str) -> None:
    options, params = OPTIONS[name]
    right = sample(llm, **params)
    assert generate(free, *options)["ids"] == right
    others = [
        sample(llm, **{**params, key: getattr(il.SamplingParams(temperature=0.0, seed=0), key)}) for key in params
    ]
    assert right not in others or name == "all", "each option changes the text"


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(free: Path) -> None:
    text = generate(free)["text"]
    stop = text[3:5]
    assert generate(free, "--stop", stop)["text"] == text.partition(stop)[0]


def test_sampling_options_that_are_left_out_come_from_the_generation_config(
    free: Path, llm: il.LLM, tmp_path: Path
) -> None:
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    folder = write_folder(tmp_path / "folder", stored, {**config(SMALL), "eos_token_id": ENDS})
    (folder / "tokenizer.json").write_text(open_tokenizer(free, load_model(free).gguf).to_json())
    assert generate(folder)["ids"] == sample(llm), "greedy without a config"
    settings = {"temperature": 2.0, "repetition_penalty": 9.0, "num_beams": 4, "eos_token_id": ENDS}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert generate(folder)["ids"] == sample(llm, temperature=2.0, repetition_penalty=9.0)
    assert generate(folder, "--temperature", "0")["ids"] == sample(llm, repetition_penalty=9.0)
    notes = invoke("generate", "--model", folder, "--prompt", "hello", "--device", "cpu").stderr
    assert "has num_beams 4, which a decoder does not follow" in notes
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    told = fail(2, "generate", "--model", folder, "--prompt", "hello", "--device", "cpu")
    assert "temperature is 'hot'; give a number from 0" in told


def test_one_prompt_builds_no_launches_of_batches_or_chunks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoders: list[Decoder] = []
    build = Decoder.from_pretrained
    monkeypatch.setattr(Decoder, "from_pretrained", lambda *a, **k: decoders.append(build(*a, **k)) or decoders[-1])
    monkeypatch.setattr(Decoder, "build_batches", None)
    ids = generate(model, "--max-new-tokens", "2")["prompt_ids"]
    [decoder] = decoders
    limits = decoder._prompts.limits
    assert (decoder.batch, decoder.num_blocks) == (1, 0)
    assert (limits.alone, limits.can_build) == (len(ids), False), "the prompt is read at once"


def test_neither_engine_nor_decoder_imports_pytorchs_compiler() -> None:
    """It takes longer to import than everything else; modules that a model is built of need it."""
    code = "import sys; import interlace.engine; assert not {'torch._dynamo', 'sympy'} & sys.modules.keys()"
    code += "; from interlace.nn import FFN, ConvNet; assert 'torch._dynamo' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_prompts_of_many_lengths_share_the_plan_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    metadata = {**gguf_metadata(SMALL), **VOCABULARY, "llama.context_length": 2500}
    (path := tmp_path / "long.gguf").write_bytes(gguf_bytes(metadata, gguf_tensors(stored, SMALL)))
    capacities: list[int] = []
    build = Decoder.from_pretrained

    def load(*arguments: Any, max_seq_len: int, **options: Any) -> Decoder:
        capacities.append(max_seq_len)
        return build(*arguments, max_seq_len=max_seq_len, **options)

    monkeypatch.setattr(Decoder, "from_pretrained", load)
    for length in (1, 1022, 1023, 2498):
        generate(path, "--prompt", "a" * length, "--max-new-tokens", "2")
    assert capacities == [1024, 1024, 2048, 2500], "no more than the model has positions"


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
    arguments = ["generate", "--model", path, "--prompt", "hello w", "--device", "cpu", "--max-new-tokens"]
    message = fail(2, *arguments, "8")
    assert "more than the 8 positions of the model's sliding window" in message
    assert "shorten the prompt or give fewer with --max-new-tokens" in message
    result = invoke(*arguments, "7")
    assert result.exit_code == 0
    assert "note: 2 tokens read in " in result.stderr
    assert ", 7 written, " in result.stderr, "the last token needs no position"


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
        (["--top-k", "-2"], "top_k is -2"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--min-p", "-0.1"], "min_p is -0.1"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--presence-penalty", "3"], "presence_penalty is 3.0"),
        (["--frequency-penalty", "inf"], "frequency_penalty is inf"),
        (["--stop", ""], "stop is ['']; give a string"),
        (["--seed", "9" * 30], f"seed is {'9' * 30}"),
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
