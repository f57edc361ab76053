"""Serve a model of a named shape with random weights and no tokenizer: prompts are token ids to /v1/completions.

    python benchmarks/serve_model.py llama3.2-1b --port 8000 --max-num-seqs 64 --max-model-len 1280

The model's name in requests is that of the shape. On a GPU weights are in bf16 and are made there, elsewhere in fp32.
"""

from __future__ import annotations

from typing import Any

from llm import draw_weights
from script import make_parser

from interlace.workloads import LLAMAS

_FEW_SEQS = 1, 16  # slots of further launches, as Engine.from_pretrained builds them


def build_engine(name: str, max_num_seqs: int, max_model_len: int, max_num_batched_tokens: int = 512) -> Any:
    """Return an engine on random weights, with blocks and launches as ``Engine.from_pretrained`` gives a model."""
    import torch

    from interlace.engine import Engine
    from interlace.nn import Decoder
    from interlace.workloads.decode import build_rope_table

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = LLAMAS[name]
    rope = torch.from_numpy(build_rope_table(max_model_len, shape.head_dim)).to(device)
    blocks = max_num_seqs * -(-max_model_len // 64)
    decoder = Decoder.from_weights(
        shape, draw_weights(torch, shape, device), rope, batch=max_num_seqs, num_blocks=blocks
    )
    decoder.build_batches(_FEW_SEQS)
    engine = Engine(decoder, model_name=name, max_num_batched_tokens=max_num_batched_tokens)
    engine.build_launches()
    return engine


def main() -> None:
    from interlace.serve.process import serve
    from interlace.serve.server import listen
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
