"""Serve a model of a named shape with random weights and no tokenizer: prompts are token ids to /v1/completions.

    python benchmarks/serve_model.py llama3.2-1b --port 8000 --max-num-seqs 64 --max-model-len 1280

The model's name in requests is that of the shape. On a GPU weights are in bf16 and are made there, elsewhere in fp32.
"""

from __future__ import annotations

from typing import Any

from script import make_parser

from interlace.workloads import LLAMAS


def build_engine(name: str, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int = 512) -> Any:
    """Return an engine on random weights."""
    import torch

    from interlace.engine import Engine
    from interlace.models.weights import list_weights
    from interlace.nn import Decoder
    from interlace.workloads.decode import build_rope_table

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape, random = LLAMAS[name], torch.Generator(device).manual_seed(0)
    weights = {}
    for each, extents in list_weights(shape).items():
        value = torch.randn(extents, generator=random, device=device, dtype=dtype)
        weights[each] = value * extents[-1] ** -0.5 if len(extents) == 2 else 1 + value / 8
    rope = torch.from_numpy(build_rope_table(max_model_len, shape.head_dim)).to(device)
    decoder = Decoder.from_weights(shape, weights, rope, batch=max_num_seqs)
    return Engine(decoder, model_name=name, max_num_batched_tokens=max_num_batched_tokens)


def main() -> None:
    from interlace.serve.server import listen, serve
    from interlace.serve.settings import ServerSettings

    parser = make_parser(__doc__)
    parser.add_argument("case", choices=sorted(LLAMAS))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=1280)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    a = parser.parse_args()
    with listen("127.0.0.1", a.port) as listening:
        engine = build_engine(a.case, a.max_num_seqs, a.max_model_len, a.max_num_batched_tokens)
        print(f"http://127.0.0.1:{listening.getsockname()[1]} serves {a.case}", flush=True)
        failure = serve(engine, ServerSettings(a.case), listening, lambda line: print(line, flush=True))
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main()
