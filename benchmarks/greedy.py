"""Greedy texts of a trained model: a decoder's against those of ``transformers``, with float32 to judge between them.

    python benchmarks/greedy.py SmolLM2-135M-Instruct.Q4_1.gguf
    python benchmarks/greedy.py SmolLM2-135M-Instruct.Q4_1.gguf --prompts 4 --tokens 8      (on a CPU, in a minute)

Takes a GGUF file or a folder of a model of the type llama, and needs the package ``transformers``. The model is built
twice in ``transformers`` of the same tensors, in bf16 (on a CPU in float32, as a decoder has it there) and in float32,
the oracle. The decoder writes its texts; given the same prefix, token by token, each of the two says what it would have
written. Then ``transformers`` writes its own texts, left-padded.

Counted are the tokens that differ, and how far apart the oracle has its first two there, in steps of bf16 at the size
of the larger. Sums in bf16 resolve less than a step: what they do resolve is the widest gap at which ``transformers``
itself leaves its oracle. The decoder passes, as every result in bf16 does, at 1.5 times that of PyTorch: no token
differs where the gap is wider, or a step at least, and the decoder leaves the oracle at most 1.5 times as often, give
or take what chance does to so many. Ends with 1 if that does not hold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from script import make_parser
from torch.nn.utils.rnn import pad_sequence

from interlace.models.pretrained import PretrainedModel, load_model
from interlace.models.tokenizer import open_tokenizer
from interlace.models.weight_names import FOLDER_NAMES
from interlace.nn import Decoder

THINGS = (
    *("the sea", "a city", "my dog", "winter", "the moon", "a good book", "coffee", "the internet", "gravity", "bread"),
)
FORMS = (
    *("Once upon a time, {} was", "The best thing about {} is", "A short poem about {}:", "def describe():  # {}"),
    *("Question: what is {}? Answer:", "In 1969, {} and", "{}", "Dear Sir, I write to you about {}"),
    *("The history of {} began", "<|im_start|>user\nTell me about {}.<|im_end|>\n<|im_start|>assistant\n"),
)
AT_ONCE = 20  # sequences, of which all logits are looked at
STEP_BITS = 8  # of a significand of bf16, the leading one too
MORE = 1.5  # times the error of PyTorch in bf16 that is right
CHANCE = 3.0  # standard deviations of a count


def their_name(name: str) -> str:
    """Return the name in ``transformers`` of a weight of a decode step."""
    ends, layers, parts = FOLDER_NAMES
    if name in ends:
        return f"{ends[name]}.weight"
    _, layer, part = name.split(".")
    return f"{layers}.{layer}.{parts[part]}.weight"


def theirs(trained: PretrainedModel, weights: dict[str, torch.Tensor], dtype: torch.dtype, device: str) -> Any:
    """The model as ``transformers`` has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    s = trained.shape
    config = LlamaConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.hidden,
        intermediate_size=s.ffn,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        rms_norm_eps=s.eps,
        tie_word_embeddings=s.tied,
        max_position_embeddings=trained.max_positions,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    model.load_state_dict({their_name(n): w.to(device, dtype) for n, w in weights.items()}, strict=not s.tied)
    model.tie_weights()
    rotary = model.model.rotary_emb  # in float32 whatever the dtype, as from_pretrained leaves it
    rotary.inv_freq = torch.from_numpy(trained.inv_freq).to(device)
    rotary.original_inv_freq, rotary.attention_scaling = rotary.inv_freq, trained.scaling
    return model.eval()


@torch.inference_mode()
def force_texts(model: Any, prompts: list[list[int]], texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the likeliest id after each prefix (texts, tokens), and the two best logits (texts, tokens, 2)."""
    device, ids_found, best_found = model.lm_head.weight.device, [], []
    for begin in range(0, len(prompts), AT_ONCE):
        some = [p + t[:-1] for p, t in zip(prompts[begin:], texts[begin : begin + AT_ONCE], strict=False)]
        ids = pad_sequence([torch.tensor(each) for each in some], batch_first=True).to(device)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # causal: nothing sees what is behind
        for row, ids_of, text in zip(hidden, some, texts[begin:], strict=False):
            logits = model.lm_head(row[len(ids_of) - len(text) : len(ids_of)]).float()
            ids_found.append(logits.argmax(dim=-1).cpu())
            best_found.append(logits.topk(2).values.cpu())
    return torch.stack(ids_found), torch.stack(best_found)


@torch.inference_mode()
def generate_texts(model: Any, prompts: list[list[int]], tokens: int) -> torch.Tensor:
    """Greedy texts of ``transformers``, (prompts, tokens)."""
    longest, device = max(map(len, prompts)), model.lm_head.weight.device
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    texts = model.generate(
        input_ids=ids, attention_mask=seen, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    return texts[:, longest:].cpu()  # type: ignore[no-any-return]


def report(name: str, differ: torch.Tensor, gap: torch.Tensor) -> float:
    """Print how many tokens differ; the widest gap where they do, in steps of bf16."""
    widest = gap[differ].max().item() if differ.any() else 0.0
    beyond = f"{int((differ & (gap >= 1)).sum())} of them where the gap is a step or more, {widest:.2f} at most"
    print(f"{name}: {int(differ.sum())} of {differ.numel()} tokens differ, {beyond}")
    return widest


def compare(trained: PretrainedModel, prompts: list[list[int]], tokens: int, device: str) -> bool:
    """Print what differs; whether all that does is close."""
    began = time.perf_counter()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    weights = {name: torch.from_numpy(trained.read(name)) for name in trained.names}
    oracle = theirs(trained, weights, torch.float32, device)
    plain = oracle if dtype is torch.float32 else theirs(trained, weights, dtype, device)
    print(f"{trained.path.name}, {dtype}, {len(prompts)} prompts, {tokens} tokens each")
    batch = -(-len(prompts) // 2)  # so that some wait for a slot
    decoder = Decoder.from_model(plain, batch=batch, max_seq_len=max(map(len, prompts)) + tokens)
    print(f"{decoder.explain()}; ready after {time.perf_counter() - began:.0f} s")
    texts = decoder.generate(prompts, tokens, stop_token_ids=())
    mine = torch.tensor(texts)
    print(f"texts after {time.perf_counter() - began:.0f} s")
    right, best = force_texts(oracle, prompts, texts)
    first, second = best.unbind(dim=-1)
    gap = (first - second) / torch.ldexp(torch.ones_like(first), first.frexp().exponent - STEP_BITS)
    same_prefix, _ = force_texts(plain, prompts, texts)
    print(f"the oracle's first two are closer than a step of bf16 at {int((gap < 1).sum())} of {gap.numel()} tokens")
    ours_left, theirs_left = mine != right, same_prefix != right
    report("decoder and float32, same prefix", ours_left, gap)
    resolved = report("transformers and float32, same prefix", theirs_left, gap)
    widest = report("decoder and transformers, same prefix", mine != same_prefix, gap)
    parted = (generate_texts(plain, prompts, tokens) != mine).int()
    parting = (parted.cumsum(dim=1) == 1) & (parted == 1)
    print(f"{int((parted.sum(dim=1) == 0).sum())} of {len(prompts)} texts are those of transformers' generate")
    widest = max(widest, report("where other texts of it first part from the decoder's", parting, gap))
    print(f"done after {time.perf_counter() - began:.0f} s")
    often = int(theirs_left.sum())
    return widest < max(1.0, MORE * resolved) and int(ours_left.sum()) <= MORE * often + CHANCE * often**0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=100, choices=range(1, 101), metavar="1..100")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args(arguments)
    trained = load_model(given.model)
    tokenizer = open_tokenizer(trained.path, trained.gguf)
    prompts = [tokenizer.encode(form.format(thing)) for thing in THINGS for form in FORMS][: given.prompts]
    good = compare(trained, prompts, given.tokens, "cuda" if torch.cuda.is_available() else "cpu")
    what = "the decoder's texts are those of transformers but where bf16 does not tell two tokens apart"
    print("PASS" if good else "FAIL", what)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
