"""Padded prompts: decoders leave pads out as models of ``transformers`` do, and refuse those that no mask names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interlace.core.errors import PromptError  # noqa: E402
from interlace.nn import Decoder  # noqa: E402
from interlace.nn.decoder.padding import Padding  # noqa: E402

from .llama import SHAPE, ToyForCausalLM, stored_names  # noqa: E402
from .model_files import config, gguf_bytes, gguf_metadata, gguf_tensors, write_folder  # noqa: E402

PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3]]
LEFT = torch.tensor([[60] * 4 + PROMPTS[0], PROMPTS[1]])
MASK = torch.tensor([[0] * 4 + [1] * 3, [1] * 7])
RIGHT, RIGHT_MASK = torch.tensor([PROMPTS[0] + [99] * 4, PROMPTS[1]]), torch.tensor([[1] * 3 + [0] * 4, [1] * 7])


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


def decoder_of(model: ToyForCausalLM, *padding: Any) -> Decoder:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=32)
    decoder.padding = Padding(*padding)
    return decoder


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_rows_of_padded_batches_are_those_of_the_model(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from .test_transformers import make_model

    model = make_model(kind)
    ids = LEFT.where(MASK == 1, 0)
    with torch.inference_mode():
        right = model.generate(ids, attention_mask=MASK, max_new_tokens=6, do_sample=False)[:, 7:].tolist()
    decoder = Decoder.from_model(model, batch=2, max_seq_len=32)
    assert decoder.padding == Padding(0, None, ())
    batch = transformers.BatchEncoding({"input_ids": ids, "attention_mask": MASK})
    assert decoder.generate(batch, 6) == right
    assert decoder.generate(ids, 6, attention_mask=MASK) == right
    texts: list[list[int]] = [[], []]
    for piece in decoder.stream(batch, 6):
        texts[piece.sequence].append(piece.token)
    assert texts == right


@pytest.mark.parametrize(
    "given",
    [
        (LEFT, MASK),
        (LEFT, MASK.bool()),
        (LEFT, MASK.float()),
        (LEFT.numpy(), MASK.numpy().astype(bool)),
        (LEFT.tolist(), MASK.tolist()),
        ([*LEFT], [*MASK]),
        (RIGHT, RIGHT_MASK),
        ({"input_ids": LEFT, "attention_mask": MASK, "token_type_ids": MASK}, None),
        ({"input_ids": RIGHT.tolist(), "attention_mask": RIGHT_MASK.tolist()}, None),
        ({"input_ids": LEFT}, MASK),
        ([{"input_ids": LEFT[:1], "attention_mask": MASK[:1]}, {"input_ids": PROMPTS[1]}], None),
        ([PROMPTS[0], PROMPTS[1]], [[1, 1, 1], [1] * 7]),
        (torch.nested.as_nested_tensor([torch.tensor(p) for p in PROMPTS], layout=torch.jagged), None),
    ],
    ids=range(13),
)
def test_pads_are_left_out_wherever_they_are(model: ToyForCausalLM, given: tuple[Any, Any]) -> None:
    decoder = decoder_of(model)
    ids, mask = given
    assert decoder.generate(ids, 5, attention_mask=mask) == decoder.generate(PROMPTS, 5)


def test_one_prompt_is_taken_with_its_mask_wherever_prompts_are(model: ToyForCausalLM) -> None:
    decoder = decoder_of(model)
    right = decoder.generate(PROMPTS[0], 4)
    assert decoder.generate(LEFT[0], 4, attention_mask=MASK[0]) == right
    assert decoder.generate({"input_ids": LEFT[0].tolist(), "attention_mask": MASK[0].tolist()}, 4) == right
    slot = decoder.add({"input_ids": LEFT[:1], "attention_mask": MASK[:1]})
    whole = decoder.logits[slot].clone()
    decoder.abort(slot)
    slot = decoder.add(PROMPTS[0][:1])
    decoder.prefill(LEFT[0, :6], slot, attention_mask=[0, 0, 0, 0, 0, 1])
    decoder.prefill(torch.tensor([7]), slot)
    torch.testing.assert_close(decoder.logits[slot], whole)
    assert decoder.lengths[slot] == 3
    assert decoder.add(torch.tensor([60, 60, 5]), attention_mask=[1, 1, 1]) == 1 - slot


def test_a_mask_of_ones_says_that_all_are_tokens(model: ToyForCausalLM) -> None:
    decoder = decoder_of(model, 60)
    assert decoder.generate(LEFT, 3, attention_mask=torch.ones_like(LEFT)) == decoder.generate(
        [[60] * 4 + PROMPTS[0], PROMPTS[1]], 3, attention_mask=[[1] * 7] * 2
    )


@pytest.mark.parametrize(
    ("padding", "ids", "message"),
    [
        ((60,), LEFT, "prompt 0 begins with 4 of the id 60, as padding does; pass the tokenizer's attention_mask too"),
        ((50,), LEFT.flip(1), "prompt 0 ends with 4 of the id 60"),
        ((), LEFT, "prompt 0 begins with 4 of the id 60"),
        ((), LEFT.numpy(), "prompt 0 begins with 4"),
        ((), [*LEFT], "prompt 0 begins with 4"),
        ((60,), LEFT.tolist(), "prompt 0 begins with 4"),
        ((60,), [[60, 5], [1, 2]], "prompt 0 begins with 1 of the id 60"),
        ((None, None, (60,)), [[5, 60, 60], [1, 2, 3]], "prompt 0 ends with 2 of the id 60"),
        ((), LEFT[0], "a prompt begins with 4"),
        ((60,), {"input_ids": LEFT.tolist()}, "prompt 0 begins with 4"),
        ((60,), torch.tensor([[60, 5], [60, 6]]), "prompt 0 begins with 1 of the id 60"),
        ((60,), torch.tensor([5, 60]), "a prompt ends with 1 of the id 60"),
        ((60,), torch.tensor([[60, 60], [5, 6]]), "prompt 0 begins with 2 of the id 60"),
        ((60, 60), torch.tensor([[60, 5], [6, 7]]), "prompt 0 begins with 1 of the id 60"),
        ((60, 60), torch.tensor([[60, 60, 5], [60, 6, 7]]), "prompt 0 begins with 2 of the id 60"),
        ((None, None, (2, 60)), torch.tensor([[5, 6], [5, 60]]), "prompt 1 ends with 1 of the id 60"),
        ((99,), torch.tensor([[99, 5], [6, 7]]), "prompt 0 begins with 1 of the id 99, as padding does"),
    ],
    ids=range(17),
)
def test_what_looks_padded_is_refused_without_a_mask(
    model: ToyForCausalLM, padding: tuple[Any, ...], ids: Any, message: str
) -> None:
    decoder = decoder_of(model, *padding)
    for take in (decoder.generate, decoder.stream):
        with pytest.raises(PromptError, match=message):
            take(ids, 3)
    single = isinstance(ids, torch.Tensor) and ids.ndim == 1
    if single:
        with pytest.raises(PromptError, match=message):
            decoder.add(ids)
    assert decoder.active_slots == ()


@pytest.mark.parametrize(
    ("padding", "ids"),
    [
        ((60, 60), torch.tensor([[60, 5], [60, 6]])),  # each begins with what begins texts
        ((60, None, (60,)), torch.tensor([[5, 60], [6, 60]])),  # each has ended
        ((60,), [60, 60, 5]),
        ((60,), [[60, 60, 5], [1, 2]]),
        ((60, 60), [[60, 5], [1, 2]]),
        ((), torch.tensor([[5, 5, 5], [6, 7, 8]])),
        ((), torch.tensor([7])),
        ((60,), torch.tensor([[5, 5, 6], [5, 5, 7]])),
    ],
    ids=range(8),
)
def test_what_does_not_look_padded_is_taken(model: ToyForCausalLM, padding: tuple[Any, ...], ids: Any) -> None:
    decoder = decoder_of(model, *padding)
    rows = ids.tolist() if isinstance(ids, torch.Tensor) else ids
    assert decoder.generate(ids, 2) == decoder_of(model).generate(rows, 2)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (LEFT, MASK[:, :3], "prompt 0: attention_mask has 3 positions for 7 ids; give it in the shape of the ids"),
        (LEFT, MASK[:1], "attention_mask is of 1 prompts, the ids of 2"),
        (LEFT, MASK * 0, "prompt 0: attention_mask has no token"),
        (LEFT, MASK * 2, r"prompt 0: attention_mask\[4\] is 2; it is 1 for a token, 0 for a pad"),
        (LEFT, MASK.to("meta"), "attention_mask is a tensor that is on the device meta"),
        (LEFT, MASK.cfloat(), "attention_mask is a tensor of torch.complex64; give ones and zeros"),
        (LEFT, "ab", "attention_mask is of 2 prompts|attention_mask is of 'ab' prompts"),
        (LEFT, 1, "attention_mask is of 1 prompts"),
        ([5, 6], [[1, 1]], "attention_mask has 1 positions for 2 ids"),
        ([5, 6], [1, None], r"attention_mask\[1\] is None"),
        ([5, 61], [1, 1], r"ids\[1\] is 61; the vocabulary"),
        ({"input_ids": LEFT, "attention_mask": MASK}, MASK, "an attention_mask of its own, and another is given"),
        ({"input_ids": LEFT, "position_ids": MASK}, MASK, "has position_ids, which a decoder would drop; leave it out"),
        ({"inputs_embeds": LEFT}, None, r"a mapping of \['inputs_embeds'\]; give one with input_ids"),
        ([{"input_ids": LEFT, "attention_mask": MASK}], None, "prompt 0: input_ids have 2 prompts; give one"),
    ],
    ids=range(15),
)
def test_masks_that_mean_nothing_are_refused(model: ToyForCausalLM, ids: Any, mask: Any, message: str) -> None:
    decoder = decoder_of(model)
    with pytest.raises(PromptError, match=message):
        decoder.generate(ids, 3, attention_mask=mask)
    assert decoder.active_slots == ()


def test_a_past_of_padded_prompts_is_refused(model: ToyForCausalLM) -> None:
    decoder = decoder_of(model)
    slot = decoder.add(LEFT[0], attention_mask=torch.ones(7))
    past = [(k[:1, :, :7].clone(), v[:1, :, :7].clone()) for k, v in zip(decoder.cache.k, decoder.cache.v, strict=True)]
    decoder.abort(slot)
    with pytest.raises(PromptError, match="attention_mask leaves out pads, of which a past has keys and values too"):
        decoder.add(LEFT[0], past, attention_mask=MASK[0])
    decoder.abort(decoder.add(LEFT[0], past, attention_mask=torch.ones(7)))


def test_a_batch_is_no_prompt_of_one_sequence(model: ToyForCausalLM) -> None:
    with pytest.raises(PromptError, match="input_ids have 2 prompts; give one"):
        decoder_of(model).add({"input_ids": LEFT, "attention_mask": MASK})


def test_pads_are_those_that_the_model_declares(model: ToyForCausalLM, tmp_path: Path) -> None:
    def make_padding(**configs: Any) -> Padding:
        return Padding.from_model(SimpleNamespace(**configs), (2,))

    plain = SimpleNamespace(pad_token_id=7, bos_token_id=1)
    assert make_padding(config=plain) == Padding(7, 1, (2,))
    assert make_padding(config=plain, generation_config=SimpleNamespace(pad_token_id=8)) == Padding(8, 1, (2,))
    assert make_padding(config=SimpleNamespace(pad_token_id=-1.5)) == Padding(None, None, (2,))
    small = dict(stored_names(ToyForCausalLM(dtype=torch.float32)))
    shape = replace(SHAPE)
    folder = write_folder(tmp_path / "folder", small, config(shape, pad_token_id=5, bos_token_id=4))
    assert Decoder.from_pretrained(folder, max_seq_len=8, device="cpu").padding == Padding(5, 4, (2,))
    (folder / "generation_config.json").write_text(json.dumps({"pad_token_id": 6, "eos_token_id": 3}))
    assert Decoder.from_pretrained(folder, max_seq_len=8, device="cpu").padding == Padding(6, 4, (3,))
    file = tmp_path / "model.gguf"
    ids = {"tokenizer.ggml.padding_token_id": 9, "tokenizer.ggml.bos_token_id": 8, "tokenizer.ggml.eos_token_id": 3}
    file.write_bytes(gguf_bytes({**gguf_metadata(shape), **ids}, gguf_tensors(small, shape)))
    assert Decoder.from_pretrained(file, max_seq_len=8, device="cpu").padding == Padding(9, 8, (3,))


# ---------------------------------------------------------------- tensors that hold no ids


IDS = torch.tensor([1, 2, 3])
ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: IDS.to("meta"), "is on the device meta, without data"),
    "sparse": (lambda: IDS.to_sparse(), "has layout torch.sparse_coo; give a dense one, by to_dense"),
    "quantised": (lambda: torch.quantize_per_tensor(IDS.float(), 1.0, 0, torch.quint8), "is quantised"),
    "gradient": (lambda: IDS.double().requires_grad_(), "of torch.float64; give ids of tokens, as torch.int64"),
    "complex": (lambda: IDS.cfloat().conj(), "of torch.complex64"),
    "negated": (lambda: IDS.cfloat().conj().imag, "of torch.float32"),
    "bool": (lambda: IDS.bool(), "of torch.bool"),
    "expanded": (lambda: IDS[:1].expand(10**13), "has 10000000000000 ids; give at most"),
    "array of floats": (lambda: np.array([1.0]), "an array of float64; give ids of tokens, as int64"),
    "array of records": (lambda: np.zeros(2, [("a", int)]), "an array of"),
    "broadcast array": (lambda: np.broadcast_to(np.array(1), 10**13), "has 10000000000000 ids"),
    "masked array": (lambda: np.ma.masked_array([1, 2], [1, 0]), r"ids\[0\] is None"),
    "list of meta": (lambda: [torch.tensor(1), torch.tensor(1, device="meta")], r"ids\[1\] is a Tensor"),
    "list of bools": (lambda: [torch.tensor(True)], r"ids\[0\] is a Tensor"),
    "long int": (lambda: [10**5000], "an int of 16,610 bits"),
}
ODD["empty"] = (lambda: IDS[:0].float(), "has no ids")


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of what it will drop
@pytest.mark.parametrize("name", ODD)
def test_tensors_that_hold_no_ids_are_refused(model: ToyForCausalLM, name: str) -> None:
    decoder, (draw, message) = decoder_of(model), ODD[name]
    for take in (decoder.add, lambda ids: decoder.generate(ids, 2)):
        with pytest.raises(PromptError, match=message):
            take(draw())
    assert decoder.active_slots == ()
    decoder.add([1])
    with pytest.raises(PromptError, match=message):
        decoder.prefill(draw(), 0)
    assert decoder.lengths == (1, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ODD if "list" not in name and name not in ("long int", "empty")])
def test_no_step_takes_tensors_that_hold_no_ids(model: ToyForCausalLM, name: str) -> None:
    decoder = decoder_of(model)
    decoder.add([1])
    with pytest.raises(PromptError):
        decoder.step(ODD[name][0]())
    assert decoder.lengths == (1, 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda t: t.to("meta"), "keys of layer 0 of past are a tensor that is on the device meta"),
        (lambda t: t.to_sparse(), "keys of layer 0 of past are a tensor that has layout torch.sparse_coo"),
        (lambda t: torch.nested.as_nested_tensor([t[0]]), "keys of layer 0 of past are a tensor that is nested"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_past_of_tensors_without_values_is_refused(
    model: ToyForCausalLM, tensors: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    from interlace.core.errors import GraphError

    decoder = decoder_of(model)
    decoder.add([1, 2, 3])
    past = [tuple(tensors(t[:1, :, :2]) for t in pair) for pair in zip(decoder.cache.k, decoder.cache.v, strict=True)]
    with pytest.raises(GraphError, match=message):
        decoder.add([1, 2, 3], past)
    assert decoder.active_slots == (0,)
