"""Models of the ``transformers`` library itself, small and random: what decoders make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from interlace.core.errors import ShapeError, UnsupportedModelError  # noqa: E402
from interlace.nn import Decoder  # noqa: E402

from .llama import step_slot  # noqa: E402

IDS = [(7 * i * i + 3 * i) % 60 + 1 for i in range(80)]  # none pads
PROMPTS = [IDS[:70], IDS[3:4], IDS[5:27]]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILY: dict[str, dict[str, Any]] = {
    "Llama": {"rope_scaling": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 5e5, "tie_word_embeddings": True},
    "Mistral": {"sliding_window": None, "num_key_value_heads": 1},
    "Qwen2": {"num_key_value_heads": 4},
    "Qwen3": {"head_dim": 24},
}


def make_model(kind: str, **other: Any) -> Any:
    """A causal model of float64, in which greedy tokens have no ties."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(
        **{**sizes, **heads, **ids, "initializer_range": 0.3, **FAMILY[kind], **other}
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval().double()


def generate(model: Any, prompt: list[int], count: int, **other: Any) -> list[int]:
    """Return the tokens that the model itself generates after a prompt."""
    with torch.inference_mode():
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, **other)[0].tolist()
    return ids[len(prompt) :]


@pytest.mark.parametrize("kind", FAMILY)
def test_texts_of_several_prompts_are_those_of_the_model_alone(kind: str) -> None:
    model = make_model(kind)
    decoder = Decoder.from_model(model, batch=2, max_seq_len=96)
    assert decoder.generate(PROMPTS, max_new_tokens=12) == [generate(model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_a_folder_that_the_library_has_saved_is_the_model(kind: str, tmp_path: Path) -> None:
    model = make_model(kind).float()
    model.save_pretrained(tmp_path)
    decoder = Decoder.from_pretrained(tmp_path, batch=1, max_seq_len=96, device="cpu")
    whole = Decoder.from_model(model, batch=1, max_seq_len=96)
    for ours in (decoder, whole):
        ours.add(PROMPTS[0])
    torch.testing.assert_close(decoder.logits, whole.logits)
    with torch.inference_mode():
        right = model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    torch.testing.assert_close(decoder.logits[0], right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "pages"), [("Llama", None), ("Qwen3", 5)], ids=["plain", "paged"])
def test_a_model_reads_into_a_slot_and_generates_there_as_with_its_own_cache(kind: str, pages: int | None) -> None:
    model = make_model(kind)
    ours, prompt = Decoder.from_model(model, batch=3, max_seq_len=96, num_blocks=pages), PROMPTS[0]
    ids, text = torch.tensor([prompt]), generate(model, prompt, 12)
    with torch.inference_mode():
        right = model(ids, past_key_values=transformers.DynamicCache()).logits
        past = ours.kv_cache()
        for part in (slice(0, 66), slice(66, 67), slice(67, 70)):
            logits = model(ids[:, part], past_key_values=past).logits
            torch.testing.assert_close(logits, right[:, part], rtol=1e-9, atol=1e-9)
    slot = ours.add(prompt, past)
    assert step_slot(ours, slot, 12) == text
    past = ours.kv_cache()
    assert generate(model, prompt, 7, past_key_values=past) == text[:7]
    assert past.length == len(prompt) + 6
    slot = ours.add(prompt + text[:7], past)
    assert step_slot(ours, slot, 5) == text[7:]
    with torch.inference_mode(), pytest.raises(ShapeError, match="a past is of one sequence, without padding"):
        model(ids.repeat(2, 1), past_key_values=ours.kv_cache())


def test_a_window_shorter_than_the_capacity_is_refused_and_a_longer_one_is_not() -> None:
    model = make_model("Mistral", sliding_window=40)
    with pytest.raises(UnsupportedModelError, match="a sliding window of 40 positions"):
        Decoder.from_model(model, batch=1, max_seq_len=96)
    decoder = Decoder.from_model(model, batch=1, max_seq_len=40)
    assert decoder.generate(PROMPTS[2], max_new_tokens=12) == generate(model, PROMPTS[2], 12)
