"""A sequence of a decoder as the cache of a model of ``transformers``, for which a stand-in reads."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from interlace.core.errors import (  # noqa: E402
    DecodeError,
    DTypeError,
    GraphError,
    LengthError,
    PageError,
    ShapeError,
    SlotError,
)
from interlace.models.forward_torch import compute_logits, run_layers  # noqa: E402
from interlace.nn import Decoder  # noqa: E402
from interlace.nn.decoder.slot_cache import SlotCache  # noqa: E402

from .llama import ToyForCausalLM, step_slot  # noqa: E402

IDS = [(7 * i * i + 3 * i) % 60 + 1 for i in range(80)]  # none pads
CAPACITY = 96
KINDS = pytest.mark.parametrize("pages", [None, 5], ids=["plain", "paged"])


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


def decoder_of(model: ToyForCausalLM, pages: int | None = None, capacity: int = CAPACITY) -> Decoder:
    return Decoder.from_model(model, batch=3, max_seq_len=capacity, num_blocks=pages)


def read(decoder: Decoder, past: SlotCache, ids: list[int], fail_at: int | None = None) -> torch.Tensor:
    """Use a cache as a model does in a forward; return the logits (ids, vocabulary)."""
    at = past.get_query_offset(0) + torch.arange(len(ids))
    assert past.get_seq_length() == at[0]
    sizes = past.get_mask_sizes(len(ids), 0)
    assert past.get_mask_sizes(at, 0) == sizes  # as earlier releases ask
    seen = torch.arange(sizes[0]) <= at[:, None]
    rope = decoder._rope[at.clamp_max(decoder.max_seq_len - 1), None]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if layer == fail_at:
            raise ArithmeticError
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
        keys, values = past.update(k, v, layer, {"cache_position": at})
        out = functional.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)
        return out[0].transpose(0, 1)

    x = run_layers(torch, decoder.shape, decoder._weights, torch.tensor(ids), rope, attend)
    return compute_logits(torch, decoder.shape, decoder._weights, x)


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


@KINDS
def test_a_prompt_in_chunks_is_read_into_the_slot_while_others_go_on(model: ToyForCausalLM, pages: int | None) -> None:
    ours, alone = decoder_of(model, pages), decoder_of(model)
    other, same = ours.add(IDS[:5]), alone.add(IDS[:5])
    past = ours.kv_cache()
    assert (past.slot, ours.active_slots, ours.lengths) == (1, (0, 1), (5, 0, 0))
    seen = 0
    for count in (1, 62, 5, 11):
        logits = read(ours, past, IDS[seen : seen + count])
        seen += count
        assert past.get_seq_length() == ours.lengths[1] == seen
        ours.step()
        alone.step()
    assert past.is_sliding == [False, False]
    slot = alone.add(IDS[:seen])
    close(logits[-1], alone.logits[slot])
    alone.prefill(IDS[seen:], slot)
    assert ours.add(IDS, past) == 1
    assert ours.lengths == (9, len(IDS), 0)
    close(ours.logits[1], alone.logits[slot])
    for layer in range(ours.shape.layers):
        for found, right in zip(ours.cache.read(layer, 1, 80), alone.cache.read(layer, slot, 80), strict=True):
            close(found, right)
    assert step_slot(ours, 1, 8) == step_slot(alone, slot, 8)
    close(ours.logits[other], alone.logits[same])


def test_a_forward_that_fails_leaves_the_sequence_as_it_was(model: ToyForCausalLM) -> None:
    ours = decoder_of(model, 5)
    ours.add([1])
    past = ours.kv_cache()
    read(ours, past, IDS[:60])
    with pytest.raises(ArithmeticError):
        read(ours, past, IDS[3:33], fail_at=1)
    assert past.length == ours.lengths[1] == 60
    ours.step()
    close(read(ours, past, IDS[60:70])[-1], read(ours, ours.kv_cache(), IDS[:70])[-1])


def test_a_paused_sequence_is_read_on_and_takes_up_its_steps(model: ToyForCausalLM) -> None:
    ours, alone = decoder_of(model), decoder_of(model)
    right = alone.add(IDS[:20])
    ours.add([4])
    slot = ours.add(IDS[:10])
    past = ours.kv_cache(slot)
    with pytest.raises(SlotError, match=r"a model reads the sequence in slot 1; add\(ids, past_key_values=past\)"):
        ours.kv_cache(slot)
    before = ours.cache.k[0][slot, :, :10].clone()
    ours.step()
    assert ours.lengths == (2, 10, 0)
    assert torch.equal(ours.cache.k[0][slot, :, :10], before)
    read(ours, past, IDS[10:19])
    assert ours.add(IDS[:20], past) == slot
    close(ours.logits[slot], alone.logits[right])
    assert step_slot(ours, slot, 5) == step_slot(alone, right, 5)


@KINDS
def test_a_sequence_that_fills_the_capacity_is_left_alone_by_steps(model: ToyForCausalLM, pages: int | None) -> None:
    ours, alone = decoder_of(model, pages, capacity=64), decoder_of(model, capacity=64)
    ours.add([1])
    past = ours.kv_cache()
    read(ours, past, IDS[:64])
    ours.step()
    with pytest.raises(LengthError, match="slot 1, 64 positions and 1 more"):
        read(ours, past, [1])
    slot = ours.add(IDS[:64], past)
    close(ours.logits[slot], alone.logits[alone.add(IDS[:64])])


def test_positions_are_taken_back_and_so_are_pages(model: ToyForCausalLM) -> None:
    ours = decoder_of(model, 5)
    past = ours.kv_cache()
    read(ours, past, IDS[:70])
    past.activate_past_recording()
    for count, left in ((0, 70), (-3, 67), (90, 67), (65, 65), (-2, 63)):
        past.crop(count)
        assert past.length == ours.lengths[0] == left
    ours._slots.upload()
    assert ours.cache.table.tolist() == [[0, -1], [-1, -1], [-1, -1]]
    with pytest.raises(LengthError, match="past has 63 positions, of which 64"):
        past.crop(-64)
    close(read(ours, past, IDS[63:70])[-1], read(ours, ours.kv_cache(), IDS[:70])[-1])
    past.reset()
    assert past.length == 0
    ours.abort(1)
    assert (ours._pages.num_free, ours.active_slots) == (5, (0,))


def test_what_a_slot_cannot_hold_is_refused_before_anything_is_written(model: ToyForCausalLM) -> None:
    ours = decoder_of(model, 2)
    past = ours.kv_cache()
    read(ours, past, IDS[:60])
    ours.add(IDS[:3])
    before = [tensor.clone() for tensor in (*ours.cache.k, *ours.cache.v, ours.cache.table)]
    k, v = torch.zeros(2, 1, 2, 5, 16, dtype=torch.float64)
    grad, long, two = v.clone().requires_grad_(), k.repeat(1, 1, 8, 1), k.repeat(2, 1, 1, 1)
    cases = [
        (PageError, r"slots \[0\] need 1 more pages", k, v, 0),
        (LengthError, "slot 0, 60 positions and 40 more", long, long, 0),
        (ShapeError, r"keys of layer 0 have shape \(2, 2, 5, 16\); a past is of one sequence", two, two, 0),
        (ShapeError, r"values of layer 0 have shape \(1, 2, 4, 16\)", k, v[:, :, 1:], 0),
        (ShapeError, "has a layer 2, the decoder's has layers 0 to 1", k, v, 2),
        (DTypeError, "keys of layer 0 are torch.float32, the decoder's torch.float64", k.float(), v, 0),
        (GraphError, "values of layer 0 want gradients", k, grad, 0),
        (GraphError, "layer 1 of a model comes with 5 positions, and layer 0 is due", k, v, 1),
    ]
    for kind, message, keys, values, layer in cases:
        with pytest.raises(kind, match=message):
            past.update(keys, values, layer)
    for call in (past.reorder_cache, past.batch_repeat_interleave, past.batch_select_indices):
        with pytest.raises(DecodeError, match="a past of a decoder is of one sequence, and beams"):
            call(torch.tensor([0]))
    assert ours.lengths == (60, 3, 0)
    for now, then in zip((*ours.cache.k, *ours.cache.v, ours.cache.table), before, strict=True):
        assert torch.equal(now, then)
    past.update(k[:, :, :2], v[:, :, :2], 0)
    with pytest.raises(GraphError, match="layer 1 of a model comes with 5 positions, and layer 1 with 2 is due"):
        past.update(k, v, 1)


def test_a_past_is_of_one_sequence_of_one_decoder_until_that_joins_or_leaves(model: ToyForCausalLM) -> None:
    ours = decoder_of(model)
    past = ours.kv_cache()
    read(ours, past, IDS[:6])
    with pytest.raises(SlotError, match="a model reads the sequence in slot 0"):
        ours.step()
    with pytest.raises(SlotError, match="a model reads the sequence in slot 0"):
        ours.prefill([1], 0)
    with pytest.raises(SlotError, match=r"other sequences hold slots \[0\]"):
        ours.generate([1], 1)
    with pytest.raises(SlotError, match="past is of another decoder"):
        decoder_of(model).add(IDS[:6], past)
    with pytest.raises(ShapeError, match="past has 6 positions, and 5 ids are given"):
        ours.add(IDS[:5], past)
    with pytest.raises(LengthError):
        ours.add(IDS[:5] * 20, past)
    assert (past.length, ours.active_slots) == (6, (0,))
    ours.add(IDS[:8], past)
    gone = [past, ours.kv_cache()]
    ours.abort(gone[1].slot)
    assert ours.kv_cache().slot == gone[1].slot
    for each in gone:
        for call in (each.get_seq_length, each.reset, lambda each=each: ours.add(IDS[:8], each)):
            with pytest.raises(SlotError, match=f"has joined, or left slot {each.slot}; begin another by past"):
                call()


def test_a_decoder_made_in_inference_mode_is_read_into_outside_of_it(model: ToyForCausalLM) -> None:
    with torch.inference_mode():
        ours = decoder_of(model, 5)
    past = ours.kv_cache()
    with torch.no_grad():
        read(ours, past, IDS[:66])
        logits = read(ours, past, IDS[66:70])
    slot = ours.add(IDS[:70], past)
    close(ours.logits[slot], logits[-1])


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_sequences_are_those_of_a_list(
    model: ToyForCausalLM, pages: int | None, seed: int
) -> None:
    """Ids by slot are all that a sequence is; what is refused changes nothing."""
    draw, ours, alone = random.Random(seed), decoder_of(model, pages), decoder_of(model)
    ids: dict[int, list[int]] = {}
    pasts: dict[int, SlotCache] = {}

    def some(*counts: int) -> list[int]:
        return [draw.randrange(1, 61) for _ in range(draw.choice(counts))]

    def act(name: str) -> None:
        reading, stepped = [*pasts], [slot for slot in ids if slot not in pasts]
        if name == "join":
            new = some(1, 63, 64, 70)
            ids[ours.add(new)] = new
        elif name == "past":
            past = ours.kv_cache()
            pasts[past.slot], ids[past.slot] = past, []
        elif name == "step":
            tokens = some(ours.batch)
            ours.step(tokens)
            for slot in stepped:
                ids[slot] = [*ids[slot], tokens[slot]]
        elif name == "leave" and ids:
            slot = draw.choice([*ids])
            ours.abort(slot)
            del ids[slot]
            pasts.pop(slot, None)
        elif name == "pause" and stepped:
            slot = draw.choice(stepped)
            pasts[slot] = ours.kv_cache(slot)
        elif reading:
            slot = draw.choice(reading)
            past, more = pasts[slot], some(1, 3, 64)
            if name == "read":
                read(ours, past, more)
                ids[slot] = ids[slot] + more
            elif name == "fail":
                with pytest.raises(ArithmeticError):
                    read(ours, past, more, fail_at=1)
            elif name == "crop":
                left = max(len(ids[slot]) - len(more), 0)
                past.crop(left - len(ids[slot]))
                ids[slot] = ids[slot][:left]
            elif name == "join past":
                assert ours.add(ids[slot] + more, past) == slot
                ids[slot] = ids[slot] + more
                del pasts[slot]

    names = ["join", "past", "step", "step", "leave", "pause", "read", "read", "fail", "crop", "join past"]
    for _ in range(60):
        with suppress(SlotError, LengthError, PageError):
            act(draw.choice(names))
        assert ours.lengths == tuple(len(ids.get(slot, ())) for slot in range(ours.batch))
        if ours._pages is not None:
            owned = ours._pages._owned
            assert sorted(sum(owned, [*ours._pages._free])) == list(range(ours.num_blocks))
            assert all(len(owned[slot]) >= ours.count_pages(len(ids.get(slot, ()))) for slot in range(ours.batch))
            assert not any(owned[slot] for slot in range(ours.batch) if slot not in ids)
    for slot in [slot for slot in ids if not ids[slot]]:
        ours.abort(slot)
        del ids[slot], pasts[slot]
    for slot, past in pasts.items():
        ours.add(ids[slot], past)
    for slot, tokens in ids.items():
        right = alone.add(tokens)
        for layer in range(ours.shape.layers):
            pairs = (decoder.cache.read(layer, at, len(tokens)) for decoder, at in ((ours, slot), (alone, right)))
            for found, expected in zip(*pairs, strict=True):
                close(found, expected)
        alone.abort(right)
