"""A decoder on the CPU: what it computes, its slots, texts of several prompts, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from interlace.core.errors import (  # noqa: E402
    ArgumentError,
    DecodeError,
    DTypeError,
    GraphError,
    LengthError,
    PageError,
    PromptError,
    SamplingError,
    ShapeError,
    SlotError,
    UnsupportedModelError,
)
from interlace.kernels.sample import compute_gumbel_noise, find_cutoff  # noqa: E402
from interlace.models.weights import list_weights  # noqa: E402
from interlace.nn import Decoder, SlotSampling  # noqa: E402
from interlace.nn.decoder.generation import generate_tokens  # noqa: E402
from interlace.nn.decoder.mirror import MirroredTensors  # noqa: E402
from interlace.nn.decoder.sampling import SamplingState, sample_tokens  # noqa: E402
from interlace.nn.decoder.weights import build_rope_table  # noqa: E402

from ..sampling import WAYS, sampling_inputs  # noqa: E402
from .llama import MLP, SHAPE, ToyForCausalLM, greedy, oracle, relative_error, step_slot  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [53, 58, 9]]


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


@pytest.fixture
def decoder(model: ToyForCausalLM) -> Decoder:
    return Decoder.from_model(model, batch=3, max_seq_len=16)


# ---------------------------------------------------------------- what it computes


@pytest.mark.parametrize(
    ("shape", "scaling"),
    [
        (SHAPE, 1.0),
        (replace(SHAPE, tied=True, kv_heads=1), 1.3),
        (replace(SHAPE, qkv_bias=True, kv_heads=4), 1.0),
        (replace(SHAPE, qk_norm=True, head_dim=8), 1.0),
    ],
    ids=["plain", "tied", "bias", "norms"],
)
def test_prompts_and_steps_are_right_for_every_shape_of_the_family(shape, scaling: float) -> None:
    model = ToyForCausalLM(shape, scaling)
    decoder = Decoder.from_model(model, batch=2, max_seq_len=12)
    assert decoder.shape == shape
    ids = [5, 60, 0, 17, 17, 33]
    right = oracle(model, shape, ids)
    slot = decoder.add(ids[:3])
    assert relative_error(decoder.logits[slot], right[2]) < 1e-6  # the table of RoPE is in fp32
    for at in (3, 4):
        logits, following = decoder.step([ids[at], 0])
        assert relative_error(logits[slot], right[at]) < 1e-6
        assert following[slot] == right[at].argmax()
    assert relative_error(decoder.prefill(ids[5:], slot), right[5]) < 1e-6
    assert decoder.lengths == (6, 0)


def test_a_prompt_in_pieces_is_the_prompt(model: ToyForCausalLM, decoder: Decoder) -> None:
    ids = PROMPTS[0]
    slot = decoder.add(ids[:2])
    decoder.prefill(ids[2:7], slot)
    assert relative_error(decoder.prefill(ids[7:], slot), oracle(model, SHAPE, ids)[-1]) < 1e-6


def test_keys_and_values_of_another_prefill_need_not_be_read_again(model: ToyForCausalLM, decoder: Decoder) -> None:
    ids = PROMPTS[0]
    right = oracle(model, SHAPE, ids)[-1]
    decoder.add(ids)
    kept = [(k[:1, :, :6].clone(), v[:1, :, :6].clone()) for k, v in zip(decoder.cache.k, decoder.cache.v, strict=True)]
    layered = SimpleNamespace(layers=[SimpleNamespace(keys=keys, values=values) for keys, values in kept])
    for past in (kept, layered):
        slot = decoder.add(ids, past)
        assert decoder.lengths[slot] == len(ids)
        assert relative_error(decoder.logits[slot], right) < 1e-6
    decoder.abort(slot)
    assert decoder.add(ids[:4], kept) == slot  # more than the prompt: the last id is read all the same
    assert relative_error(decoder.logits[slot], oracle(model, SHAPE, ids[:4])[-1]) < 1e-6
    decoder.abort(slot)
    bad = {
        "past is a int": 3,
        "a layer without keys": [(None, None)] * 2,
        "a layer without keys and": [7, 8],
        "past has 1 layers, the model 2": kept[:1],
        r"keys of layer 1 of past have shape \(1, 2, 5, 16\)": [kept[0], (kept[1][0][:, :, 1:], kept[1][1])],
        "values of layer 0 of past are torch.float32": [(kept[0][0], kept[0][1].float()), kept[1]],
    }
    for message, past in bad.items():
        with pytest.raises(GraphError, match=message):
            decoder.add(ids, past)
    assert decoder.active_slots == (0, 1)


class Layer:
    """Layer of a ``transformers`` cache; the positions it was given may differ from those that it holds."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, given: int) -> None:
        self.keys, self.values, self._given = keys, values, given

    def get_seq_length(self) -> torch.Tensor:
        return torch.tensor(self._given)


def test_a_past_counts_as_far_as_it_is_filled(model: ToyForCausalLM, decoder: Decoder) -> None:
    ids = PROMPTS[0]
    right = oracle(model, SHAPE, ids)[-1]
    decoder.add(ids)
    layers = []
    for k, v in zip(decoder.cache.k, decoder.cache.v, strict=True):
        keys, values = k[:1].clone(), v[:1].clone()
        keys[:, :, 3:] = values[:, :, 3:] = 5.0
        layers.append(Layer(keys, values, 3))  # memory for more, as a static cache has it
    slot = decoder.add(ids, SimpleNamespace(layers=layers))
    assert relative_error(decoder.logits[slot], right) < 1e-6
    decoder.abort(slot)
    for layer in layers:  # the last ones alone, as a sliding window keeps them
        layer._given = 20
    with pytest.raises(GraphError, match="layer 0 of past holds 16 of the 20 positions"):
        decoder.add(ids, SimpleNamespace(layers=layers))
    assert decoder.active_slots == (0,)


def test_weights_are_the_models_own_and_only_what_is_not_contiguous_is_copied(model: ToyForCausalLM) -> None:
    other = ToyForCausalLM()
    other._require_grads_hooks = [print]  # transformers keeps a list there, which is no hook of a module
    up = other.model.layers[0].mlp.up_proj
    up.weight = nn.Parameter(up.weight.detach().t().contiguous().t())
    decoder = Decoder.from_model(other, max_seq_len=4)
    theirs = {p.data_ptr() for p in other.parameters()}
    copied = {name for name, weight in decoder._weights.items() if weight.data_ptr() not in theirs}
    assert copied == {"layers.0.up"}
    with torch.no_grad():
        other.model.norm.weight.mul_(2.0)
    decoder.add([1])
    assert relative_error(decoder.logits[0], 2 * oracle(model, SHAPE, [1])[-1]) < 1e-6


def test_the_cache_holds_keys_and_values_where_a_server_expects_them(decoder: Decoder) -> None:
    decoder.add([1])
    slot = decoder.add([2, 3, 4])
    assert [k.shape for k in decoder.cache.k] == [v.shape for v in decoder.cache.v] == [(3, 2, 16, 16)] * 2
    assert decoder.lengths == (1, 3, 0)
    for tensor in (*decoder.cache.k, *decoder.cache.v):
        assert (tensor[slot, :, :3] != 0).all()
        assert (tensor[slot, :, 3:] == 0).all()
    assert decoder.cache.position_bytes == 2 * 2 * 2 * 16 * 8


def test_it_says_what_runs_it_and_what_a_step_reads(model: ToyForCausalLM, decoder: Decoder) -> None:
    decoder.add([1, 2, 3])
    runs = decoder.explain()
    table = model.model.embed_tokens.weight.nbytes
    assert runs.weight_bytes == sum(p.nbytes for p in model.parameters()) - table
    assert runs.cache_bytes == 3 * decoder.cache.position_bytes
    assert runs.executor is None
    assert str(runs).startswith("PyTorch's own ops: ")
    assert "type 'cpu'" in runs.why


# ---------------------------------------------------------------- slots


def test_sequences_of_several_lengths_decode_as_if_alone(model: ToyForCausalLM, decoder: Decoder) -> None:
    slots = [decoder.add(prompt) for prompt in PROMPTS]
    for _ in range(4):
        decoder.step()
    for slot, prompt in zip(slots, PROMPTS, strict=True):
        alone = Decoder.from_model(model, max_seq_len=16)
        alone.add(prompt)
        for _ in range(4):
            alone.step()
        torch.testing.assert_close(decoder.logits[slot], alone.logits[0], rtol=1e-9, atol=1e-9)


def test_sequences_join_and_leave_between_steps(model: ToyForCausalLM, decoder: Decoder) -> None:
    first, second = decoder.add(PROMPTS[0]), decoder.add(PROMPTS[1])
    decoder.step()
    decoder.abort(first)
    assert decoder.active_slots == (second,)
    decoder.step()
    third = decoder.add(PROMPTS[2])
    assert third == first
    written = []
    for _ in range(3):
        written.append(int(decoder.next[third]))
        decoder.step()
    assert written == greedy(model, SHAPE, PROMPTS[2], 3)
    assert decoder.lengths == (6, 6, 0)


def test_what_a_sequence_left_behind_reaches_nobody(model: ToyForCausalLM, decoder: Decoder) -> None:
    slot = decoder.add([9] * 16)
    decoder.abort(slot)
    assert decoder.add(PROMPTS[1]) == slot
    decoder.step([PROMPTS[0][0], 0, 0])
    right = oracle(model, SHAPE, [PROMPTS[1][0], PROMPTS[0][0]])[-1]
    assert relative_error(decoder.logits[slot], right) < 1e-6


@pytest.mark.parametrize("pages", [None, 6])
def test_a_sequence_that_is_not_a_number_is_so_alone(pages: int | None) -> None:
    model = ToyForCausalLM()
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = float("nan")
    decoder = Decoder.from_model(model, batch=2, max_seq_len=128, num_blocks=pages)
    right = Decoder.from_model(model, max_seq_len=128).generate(PROMPTS[2], 5)
    assert decoder.generate([[5] * 70, PROMPTS[2]], 5)[1] == right
    decoder.generate([[5] * 40] * 2, 3)
    assert decoder.generate([PROMPTS[2], [7] * 30], 5)[0] == right


def test_out_of_slots_or_capacity_is_an_error_and_nothing_is_lost(model: ToyForCausalLM, decoder: Decoder) -> None:
    for prompt in PROMPTS:
        decoder.add(prompt)
    with pytest.raises(SlotError, match="all 3 slots hold sequences"):
        decoder.add([1])
    decoder.prefill([1] * 8, 0)
    before = decoder.logits.clone()
    with pytest.raises(LengthError, match=r"slot 0, 16 positions and 1 more: .* max_seq_len of 16"):
        decoder.step()
    with pytest.raises(LengthError, match="slot 0, 16 positions and 2 more"):
        decoder.prefill([1, 2], 0)
    assert (decoder.lengths, decoder.active_slots) == ((16, 1, 3), (0, 1, 2))
    assert torch.equal(decoder.logits, before)
    decoder.abort(0)
    with pytest.raises(LengthError, match="a prompt of 17 tokens: that is more than the max_seq_len of 16"):
        decoder.add([1] * 17)
    assert decoder.active_slots == (1, 2)
    decoder.step()
    ids = [*PROMPTS[1], *greedy(model, SHAPE, PROMPTS[1], 1)]
    assert relative_error(decoder.logits[1], oracle(model, SHAPE, ids)[-1]) < 1e-6


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda d: d.add([]), PromptError, "a prompt has no ids"),
        (lambda d: d.add([1, 61]), PromptError, r"ids\[1\] is 61; the vocabulary has ids 0 to 60"),
        (lambda d: d.add([-1]), PromptError, r"ids\[0\] is -1"),
        (lambda d: d.add([1.5]), PromptError, "1.5"),
        (lambda d: d.add("text"), PromptError, "give ids of tokens, as a list of ints"),
        (lambda d: d.add(torch.tensor(3)), PromptError, "give ids"),
        (lambda d: d.add(torch.tensor([[1]])), PromptError, "an id of a token"),
        (lambda d: d.step(), SlotError, "slot 0 holds no sequence"),
        (lambda d: d.abort(0), SlotError, "slot 0 holds no sequence; add one with"),
        (lambda d: d.abort(3), SlotError, "there is no slot 3; slots are 0 to 2"),
        (lambda d: d.prefill([1], 2), SlotError, "slot 2 holds no sequence"),
        (lambda d: d.abort("a"), ArgumentError, "slot is 'a'"),
        (lambda d: d.abort(10**5000), SlotError, "there is no slot an int of 16,610 bits"),
        (lambda d: d.generate([1], 0), ArgumentError, "max_new_tokens is 0"),
        (lambda d: d.generate([[1], []], 2), PromptError, "prompt 1: a prompt has no ids"),
        (lambda d: d.generate([[1], [61]], 2), PromptError, r"prompt 1: ids\[0\] is 61"),
        (lambda d: d.generate([], 2), PromptError, "a prompt has no ids"),
        (lambda d: d.generate("text", 2), PromptError, "give ids of tokens"),
        (lambda d: d.generate([1] * 10, 8), LengthError, "takes 17 positions of a max_seq_len of 16"),
        (lambda d: d.generate([1], 2, temperature=-1), SamplingError, "temperature is -1"),
        (lambda d: d.generate([1], 2, temperature=float("nan")), SamplingError, "temperature is nan"),
        (lambda d: d.generate([1], 2, temperature=1e-37), SamplingError, "temperature is 1e-37"),
        (lambda d: d.generate([1], 2, top_k=0), SamplingError, "top_k is 0"),
        (lambda d: d.generate([1], 2, top_p=0.0), SamplingError, "top_p is 0.0"),
        (lambda d: d.generate([1], 2, top_p=1.5), SamplingError, "top_p is 1.5"),
        (lambda d: d.generate([1], 2, seed=-1), SamplingError, "seed is -1"),
        (lambda d: d.generate([1], 2, seed=10**5000), SamplingError, "seed is an int of 16,610 bits"),
        (lambda d: d.generate([1], 2, temperature=10**5000), SamplingError, "temperature is an int of 16,610 bits"),
        (lambda d: d.generate([1], 10**5000), LengthError, "with an int of 16,610 bits new ones"),
        (
            lambda d: d.generate([1], 2, stop_token_ids=torch.tensor(7)),
            ArgumentError,
            r"stop_token_ids is 7; give the ids .* \[7\]",
        ),
        (
            lambda d: d.generate([1], 2, stop_token_ids=7),
            ArgumentError,
            r"stop_token_ids is 7; give the ids that end a text, as \[7\]",
        ),
    ],
)
def test_what_means_nothing_is_refused_before_anything_runs(
    decoder: Decoder, act: Callable[[Decoder], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        act(decoder)
    assert decoder.active_slots == ()


def test_tokens_of_a_step_are_checked_where_sequences_are(decoder: Decoder) -> None:
    decoder.add([1])
    with pytest.raises(PromptError, match=r"is 61; the vocabulary"):
        decoder.step([61, 0, 0])
    for few, told in (([1, 0], "2"), (5, "5"), ("abc", "'abc'")):
        with pytest.raises(PromptError, match=f"{told} tokens were given; give 3, one for each slot"):
            decoder.step(few)
    assert decoder.lengths == (1, 0, 0)
    decoder.step(torch.tensor([1, -5, 99]))
    assert decoder.lengths == (2, 0, 0)


# ---------------------------------------------------------------- pages


def make_paged(model: ToyForCausalLM, pages: int = 4, batch: int = 3) -> Decoder:
    return Decoder.from_model(model, batch=batch, max_seq_len=128, num_blocks=pages)


def test_sequences_in_pages_decode_as_in_memory_of_their_own(model: ToyForCausalLM) -> None:
    """One of them goes on to a second page, while another leaves and its page serves a third."""
    prompts = [[n % 61 for n in range(62)], [7], [53, 58, 9]]
    both = Decoder.from_model(model, batch=3, max_seq_len=128), make_paged(model)
    for decoder in both:
        decoder.add(prompts[0])
        decoder.abort(decoder.add(prompts[1]))
        decoder.add(prompts[2])
        decoder.step()
        decoder.prefill([5, 6], 1)
        for _ in range(3):
            decoder.step()
    plain, ours = both
    assert ours.lengths == plain.lengths == (66, 9, 0)
    torch.testing.assert_close(ours.logits[:2], plain.logits[:2], rtol=1e-9, atol=1e-9)
    assert ours.cache.k[0].shape == (4, 2, 64, 16)
    assert ours._pages.table.tolist() == [[0, 3], [2, -1], [-1, -1]], "page 1 was released last"
    for layer in range(2):
        keys, values = ours.cache.read(layer, 0, 66)
        torch.testing.assert_close(keys[0], plain.cache.k[layer][0, :, :66])
        torch.testing.assert_close(values[0], plain.cache.v[layer][0, :, :66])
    past = [ours.cache.read(layer, 0, 60) for layer in range(2)]
    slot = ours.add(prompts[0], past)
    assert relative_error(ours.logits[slot], oracle(model, SHAPE, prompts[0])[-1]) < 1e-5


def test_no_number_of_a_slot_is_copied_from_the_host(model: ToyForCausalLM) -> None:
    """On a GPU such a copy waits for the device, where a tensor is filled without."""
    copied = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            if op is torch.ops.aten.copy_.default and not arguments[0].ndim:
                copied.append(arguments)
            return op(*arguments, **(options or {}))

    decoder = make_paged(model)
    with Seen():
        slot = decoder.add([5] * 64, sampling=SlotSampling(temperature=0.7, top_k=3, top_p=0.9, seed=1))
        for _ in range(2):
            decoder.step()
        assert decoder._pages.table[slot].tolist() == [0, 1]
        decoder.abort(slot)
    assert copied == []


def test_out_of_pages_is_an_error_and_nothing_is_lost(model: ToyForCausalLM) -> None:
    decoder = make_paged(model)
    first, second = (decoder.add([1] * count) for count in (64, 128))
    with pytest.raises(PageError, match=r"slots \[2\] need 2 more pages of 64 positions, and 1 of the 4 are free"):
        decoder.add([1] * 65)
    assert decoder.active_slots == (first, second)
    third = decoder.add([2] * 64)
    before, table = decoder.logits.clone(), decoder._pages.table.clone()
    decoder.abort(second)
    decoder.add([3] * 65)
    with pytest.raises(PageError, match=r"slots \[0, 2\] need 2 more pages of 64 positions, and 0 of the 4 are free"):
        decoder.step()
    with pytest.raises(PageError, match=r"slots \[0\] need 1 more pages"):
        decoder.prefill([1], first)
    assert decoder.lengths == (64, 65, 64)
    assert torch.equal(decoder.logits[[first, third]], before[[first, third]])
    assert decoder._pages.table[[first, third]].tolist() == table[[first, third]].tolist()
    decoder.abort(second)
    decoder.step()
    alone = Decoder.from_model(model, max_seq_len=128)
    alone.add([2] * 64)
    alone.step()
    torch.testing.assert_close(decoder.logits[third], alone.logits[0], rtol=1e-9, atol=1e-9)


def test_a_prompt_that_cannot_be_read_leaves_its_pages(model: ToyForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    decoder = make_paged(model)
    monkeypatch.setattr("interlace.nn.decoder.step.prefill", fails)
    with pytest.raises(torch.OutOfMemoryError):
        decoder.add([1] * 65)
    assert (decoder.active_slots, decoder._pages.num_free) == ((), 4)
    decoder._slots.upload()
    assert decoder._pages.table.tolist() == [[-1, -1]] * 3


def test_texts_wait_for_pages_and_one_that_never_fits_is_refused(model: ToyForCausalLM) -> None:
    prompts = [[n % 61 for n in range(count)] for count in (60, 3, 62, 64)]
    decoder = make_paged(model, pages=3)
    assert decoder.generate(prompts, 6) == Decoder.from_model(model, batch=3, max_seq_len=128).generate(prompts, 6)
    assert (decoder.active_slots, decoder._pages.num_free) == ((), 3)
    with pytest.raises(LengthError, match="prompt 1 has 60 tokens, and with 6 new ones it takes 2 pages of 1; shorten"):
        make_paged(model, pages=1).generate([[1], prompts[0]], 6)
    with pytest.raises(ArgumentError, match="num_blocks is 0; give a positive number"):
        make_paged(model, pages=0)


# ---------------------------------------------------------------- texts


def test_a_text_is_what_the_oracle_writes(model: ToyForCausalLM, decoder: Decoder) -> None:
    assert decoder.generate(PROMPTS[0], 6) == greedy(model, SHAPE, PROMPTS[0], 6)
    assert decoder.active_slots == ()


def test_more_prompts_than_slots_are_written_as_each_alone(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=16)
    prompts = [*PROMPTS, [1, 2], [60]]
    alone = [Decoder.from_model(model, max_seq_len=16).generate(prompt, 5) for prompt in prompts]
    assert decoder.generate(prompts, 5) == alone
    assert decoder.generate([torch.tensor(p) for p in prompts], 5) == alone
    assert decoder.generate(np.array(prompts[0]), 5) == alone[0]


def test_a_stop_token_ends_its_sequence_alone_and_is_not_given(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=16)
    whole = decoder.generate(PROMPTS[:2], 6)
    end = whole[0][2]
    cut = [ids[: ids.index(end)] if end in ids else ids for ids in whole]
    assert decoder.generate(PROMPTS[:2], 6, stop_token_ids=(end,)) == cut
    model.config.eos_token_id = end
    try:
        assert Decoder.from_model(model, max_seq_len=16).stop_token_ids == (end,)
    finally:
        model.config.eos_token_id = None


def test_a_step_ahead_of_what_is_read_changes_no_text(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=10)
    prompts = [[3, 1, 4, 1, 5], [7], [53, 58, 9], [1]]
    for sampling in (SlotSampling(), SlotSampling(temperature=2.0)):
        whole = [[*generate_tokens(decoder, prompts, 6, frozenset(), sampling, ahead)] for ahead in (False, True)]
        assert whole[0] == whole[1]
        assert len(whole[0]) == 24
        ends = frozenset({whole[0][4].token, whole[0][9].token})
        cut = [[*generate_tokens(decoder, prompts, 6, ends, sampling, ahead)] for ahead in (False, True)]
        for number in range(4):
            alike = [[piece.token for piece in found if piece.sequence == number] for found in cut]
            assert alike[0] == alike[1]
        assert len(cut[0]) < 24
    assert decoder.active_slots == ()


def test_tokens_stream_in_turn_and_a_closed_stream_frees_its_slots(decoder: Decoder) -> None:
    whole = decoder.generate(PROMPTS[:2], 3)
    stream = decoder.stream(PROMPTS[:2], 3)
    assert decoder.active_slots == ()
    pieces = [next(stream), next(stream)]
    assert [tuple(piece) for piece in pieces] == [(0, whole[0][0]), (1, whole[1][0])]
    assert decoder.active_slots == (0, 1)
    assert decoder.lengths[:2] == tuple(map(len, PROMPTS[:2])), "on a CPU a token does not wait for the next step"
    with pytest.raises(SlotError, match=r"other sequences hold slots \[0, 1\]"):
        decoder.generate([1], 1)
    assert [piece.token for piece in stream if piece.sequence == 0] == whole[0][1:]
    stream = decoder.stream(PROMPTS, 3)
    next(stream)
    stream.close()
    assert decoder.active_slots == ()


def test_draws_repeat_with_their_seed_whatever_else_is_in_the_batch(model: ToyForCausalLM) -> None:
    several, one = (Decoder.from_model(model, batch=batch, max_seq_len=16) for batch in (3, 1))
    drawn = several.generate(PROMPTS, 8, temperature=2.0, seed=5)
    assert drawn == one.generate(PROMPTS, 8, temperature=2.0, seed=5)
    assert drawn != one.generate(PROMPTS, 8, temperature=2.0, seed=6)
    assert len({tuple(ids) for ids in several.generate([PROMPTS[0]] * 3, 8, temperature=2.0)}) == 3


def test_a_server_has_each_sequence_drawn_in_its_own_way(model: ToyForCausalLM, decoder: Decoder) -> None:
    """Sequences without sampling parameters stay greedy, and a slot forgets its parameters."""
    hot = SlotSampling(temperature=3.0, seed=4, sequence=7)
    slots = [decoder.add(PROMPTS[0]), decoder.add(PROMPTS[1], sampling=hot)]
    together = [[], []]
    for _ in range(5):
        for slot in slots:
            together[slot].append(int(decoder.next[slot]))
        decoder.step()
    assert together[0] == greedy(model, SHAPE, PROMPTS[0], 5)
    alone = Decoder.from_model(model, max_seq_len=16)
    alone.add(PROMPTS[1], sampling=hot)
    assert together[1] == step_slot(alone, 0, 5)
    assert together[1] != greedy(model, SHAPE, PROMPTS[1], 5)
    for slot in slots:
        decoder.abort(slot)
    assert step_slot(decoder, decoder.add(PROMPTS[0]), 1) == greedy(model, SHAPE, PROMPTS[0], 1)
    with pytest.raises(ArgumentError, match="sampling"):
        decoder.add(PROMPTS[1], sampling=0.7)


def test_what_pytorch_does_by_default_changes_no_text(model: ToyForCausalLM) -> None:
    def texts() -> list[list[int]]:
        decoder = Decoder.from_model(model, batch=2, max_seq_len=16)
        return decoder.generate(PROMPTS, 5), decoder.generate(PROMPTS, 5, temperature=1.5, seed=1)

    right, before = texts(), torch.get_default_dtype()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert texts() == right
    for dtype in (torch.float16, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            assert texts() == right
        finally:
            torch.set_default_dtype(before)


def test_draws_in_pytorch_are_those_of_the_op() -> None:
    columns, given = 300, sampling_inputs(300)
    x = torch.from_numpy(given["x"])
    mirror = MirroredTensors(SamplingState.list_fields(len(x)), x.device)
    ways = SamplingState(mirror)
    for slot, (temperature, top_k, top_p) in enumerate(WAYS):
        seed, sequence = given["key"][slot].tolist()
        ways.set(slot, SlotSampling(temperature, top_k or None, top_p, seed, sequence))
    mirror.upload()
    for n in range(20):
        position = torch.from_numpy(given["position"] + n)
        found = sample_tokens(x, position, ways.tensors).tolist()
        for slot, (temperature, top_k, top_p) in enumerate(WAYS):
            row, at = given["x"][slot].astype(np.float32), position[slot : slot + 1].numpy()
            scores = (
                row
                if temperature == 0
                else row / temperature + compute_gumbel_noise(np.arange(columns), at, given["key"][slot])
            )
            assert found[slot] == np.where(row >= find_cutoff(row, temperature, top_k, top_p), scores, -np.inf).argmax()


# ---------------------------------------------------------------- what is refused


class Adapter(nn.Linear):
    pass


LibraryMLP = type("LibraryMLP", (MLP,), {"__module__": "transformers.models.llama"})


class OtherMLP(LibraryMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _hook(module: nn.Module, arguments: object, result: object) -> None:
    pass


WINDOW = {"model_type": "mistral", "sliding_window": 8}


def _set(path: str, value: object) -> Callable[[ToyForCausalLM], None]:
    def change(model: ToyForCausalLM) -> None:
        *parents, name = path.split(".")
        setattr(model.get_submodule(".".join(parents)) if parents[:1] != ["config"] else model.config, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("config.model_type", "gemma2"), "of type 'gemma2'; a decoder takes those of type llama, mistral, qwen2"),
        (_set("config.hidden_act", "gelu"), "hidden_act is 'gelu'"),
        (_set("model.layers.1.self_attn.v_proj", Adapter(32, 32)), r"1\.self_attn\.v_proj is a .*\.Adapter, no plain"),
        (_set("model.layers.0.mlp.lora", nn.Linear(1, 1)), r"layers\.0\.mlp \(MLP\) has lora; .* merge adapters"),
        (
            _set("model.layers.0.mlp.up_proj.lora", nn.Linear(1, 1)),
            r"mlp\.up_proj holds lora in addition to its weight",
        ),
        (_set("model.layers.0.mlp.up_proj", nn.Linear(32, 48)), r"mlp\.up_proj has a bias"),
        (_set("model.layers.0.self_attn.o_proj", nn.Linear(64, 32)), r"self_attn\.o_proj has a bias"),
        (_set("lm_head", nn.Linear(32, 61)), "lm_head has a bias"),
        (_set("model.norm", nn.LayerNorm(32)), r"model\.norm is a LayerNorm; a decoder has RMSNorm alone"),
        (_set("model.norm.variance_epsilon", 1e-3), r"norm adds 0.001 to the mean square, the config says 1e-06"),
        (_set("model.embed_tokens", nn.Embedding(61, 32, max_norm=1.0)), "embed_tokens has max_norm"),
        (_set("model.rotary_emb.rope_type", "dynamic"), "RoPE is of type 'dynamic', whose frequencies change"),
        (_set("model.rotary_emb.inv_freq", torch.ones(4)), "inv_freq has 4 frequencies; heads of width 16 turn by 8"),
        (
            lambda m: m.config.__dict__.update(WINDOW),
            "a sliding window of 8 positions, .* use a max_seq_len of 8 or less",
        ),
        (_set("config.layer_types", ["chunked_attention"]), "layers of the model's config have chunked_attention"),
        (lambda m: m.model.layers[0].register_forward_hook(_hook), r"model\.layers\.0 has forward hooks \(_hook\)"),
        (_set("model.layers.0.self_attn.forward", print), r"self_attn has a forward of its own"),
        (_set("model.layers.0.mlp.__class__", OtherMLP), r"layers\.0\.mlp is a .*\.OtherMLP, whose forward is"),
        (_set("model.layers.1.mlp.act_fn", nn.GELU()), r"layers\.1\.mlp\.act_fn is a GELU; a decoder has SiLU alone"),
        (lambda m: m.model.layers[0].mlp.act_fn.register_forward_hook(_hook), r"mlp\.act_fn has forward hooks"),
        (lambda m: m.model.rotary_emb.register_forward_hook(_hook), r"model\.rotary_emb has forward hooks"),
        (_set("model.rotary_emb.forward", print), r"rotary_emb has a forward of its own"),
        (_set("generation_config", SimpleNamespace(eos_token_id=1.0)), r"eos_token_id is 1\.0; it is an id, or a list"),
        (_set("model.layers.1.self_attn.scaling", 0.5), r"self_attn scales scores by 0.5; a decoder does so by 0.25"),
        (_set("model.layers.1.self_attn.is_causal", False), r"1\.self_attn is not causal"),
        (lambda m: delattr(m.model, "norm"), r"model \(Base\) lacks norm"),
    ],
)
def test_a_model_with_anything_that_would_be_dropped_is_refused_by_name(
    change: Callable[[ToyForCausalLM], None], message: str
) -> None:
    model = ToyForCausalLM()
    change(model)
    with pytest.raises(UnsupportedModelError, match=message):
        Decoder.from_model(model, max_seq_len=16)


def test_a_window_that_leaves_nothing_out_is_taken(model: ToyForCausalLM) -> None:
    other = ToyForCausalLM()
    other.config.__dict__.update(WINDOW)
    assert Decoder.from_model(other).max_seq_len == 8
    decoder = Decoder.from_model(other, max_seq_len=8)
    assert decoder.generate(PROMPTS[1], 5) == greedy(model, SHAPE, PROMPTS[1], 5)
    with pytest.raises(
        LengthError, match=r"shorten either \(its sliding window of 8 positions admits no larger max_seq_len"
    ):
        decoder.generate(PROMPTS[1], 20)
    with pytest.raises(LengthError, match="build the decoder with a larger max_seq_len, 8 at most"):
        Decoder.from_model(other, max_seq_len=4).add([1] * 5)
    with pytest.raises(UnsupportedModelError, match="a sliding window of 7 positions"):
        Decoder.from_weights(decoder.shape, decoder._weights, decoder._rope, window=7)
    other.config.model_type = "llama"  # whose attention ignores the field
    assert Decoder.from_model(other).max_seq_len == 128


def test_what_is_no_model_is_refused() -> None:
    for thing in (nn.Linear(1, 1), SimpleNamespace(config=SimpleNamespace(model_type="llama")), None):
        with pytest.raises(UnsupportedModelError):
            Decoder.from_model(thing)


@pytest.mark.parametrize(
    "much", [{"max_seq_len": 10**14}, {"batch": 10**12}, {"num_blocks": 10**12}, {"batch": 10**5000}]
)
def test_what_fits_no_memory_is_refused_before_any_is_taken(model: ToyForCausalLM, much: dict[str, int]) -> None:
    with pytest.raises(DecodeError, match=r"take .* GB, and cpu has .* GB free; use a smaller model"):
        Decoder.from_model(model, **{"max_seq_len": 16, **much})


def test_weights_that_do_not_fit_are_refused(model: ToyForCausalLM, decoder: Decoder) -> None:
    weights, rope = decoder._weights, build_rope_table(torch.ones(8), 4)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == list_weights(SHAPE)

    def expect_refusal(error: type[Exception], message: str, **changed: torch.Tensor | None) -> None:
        given = {**weights, **{name.replace("__", "."): value for name, value in changed.items()}}
        with pytest.raises(error, match=message):
            Decoder.from_weights(SHAPE, {n: v for n, v in given.items() if v is not None}, rope)

    expect_refusal(GraphError, r"lacks layers\.1\.up", layers__1__up=None)
    expect_refusal(GraphError, "has extra", extra=weights["norm"])
    expect_refusal(ShapeError, r"'norm' has shape \(3,\)", norm=torch.ones(3))
    expect_refusal(DTypeError, "'norm' is torch.float32, embed is torch.float64", norm=torch.ones(32))
    expect_refusal(
        GraphError, "'norm' is on meta, embed is on cpu", norm=torch.ones(32, device="meta", dtype=torch.float64)
    )
    with pytest.raises(DTypeError, match=r"the weights are torch\.int8; cast or dequantise them"):
        Decoder.from_weights(SHAPE, {name: weight.to(torch.int8) for name, weight in weights.items()}, rope)
    with pytest.raises(ShapeError, match=r"rope has shape \(4, 8\); give \(capacity, 16\)"):
        Decoder.from_weights(SHAPE, weights, rope[:, :8])
    for bad in ({"batch": 0}, {"max_seq_len": 0}, {"max_seq_len": "x"}):
        with pytest.raises(ArgumentError):
            Decoder.from_model(model, **bad)
    with pytest.raises(GraphError, match="no data"):
        Decoder.from_model(ToyForCausalLM().to("meta"))
