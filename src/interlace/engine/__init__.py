"""Texts from language models: requests, a scheduler that shares a decoder among them, and ``LLM``.

llm = interlace.LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
print(llm.generate("Once upon a time")[0].outputs[0].text)
"""

from __future__ import annotations

from interlace.engine.engine import Engine
from interlace.engine.llm import LLM
from interlace.engine.outputs import CompletionOutput, EngineStats, Logprob, RequestOutput
from interlace.engine.params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Engine", "EngineStats", "Logprob", "RequestOutput", "SamplingParams"]
