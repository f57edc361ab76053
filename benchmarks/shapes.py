"""Shapes of published dense models, as their config.json gives them; not a script."""

from __future__ import annotations

from interlace.models.llama import LLAMAS, LlamaShape

MODELS = {
    **LLAMAS,
    "tinyllama-1.1b": LlamaShape(22, 2048, 5632, 32, 4, 64, 32000),
    "llama3.2-3b": LlamaShape(28, 3072, 8192, 24, 8, 128, 128256, tied=True),
    "llama2-7b": LlamaShape(32, 4096, 11008, 32, 32, 128, 32000),
    "mistral-7b": LlamaShape(32, 4096, 14336, 32, 8, 128, 32768),
    "ministral-8b": LlamaShape(36, 4096, 12288, 32, 8, 128, 131072),
    "qwen2.5-1.5b": LlamaShape(28, 1536, 8960, 12, 2, 128, 151936, eps=1e-6, qkv_bias=True, tied=True),
    "qwen2.5-3b": LlamaShape(36, 2048, 11008, 16, 2, 128, 151936, eps=1e-6, qkv_bias=True, tied=True),
    "qwen2.5-7b": LlamaShape(28, 3584, 18944, 28, 4, 128, 152064, eps=1e-6, qkv_bias=True),
    "qwen3-1.7b": LlamaShape(28, 2048, 6144, 16, 8, 128, 151936, eps=1e-6, qk_norm=True, tied=True),
    "qwen3-4b": LlamaShape(36, 2560, 9728, 32, 8, 128, 151936, eps=1e-6, qk_norm=True, tied=True),
    "qwen3-8b": LlamaShape(36, 4096, 12288, 32, 8, 128, 151936, eps=1e-6, qk_norm=True),
    "smollm2-1.7b": LlamaShape(24, 2048, 8192, 32, 32, 64, 49152, tied=True),
    "smollm3-3b": LlamaShape(36, 2048, 11008, 16, 4, 128, 128256, tied=True),
    "yi-6b": LlamaShape(32, 4096, 11008, 32, 4, 128, 64000),
    "deepseek-coder-1.3b": LlamaShape(24, 2048, 5504, 16, 16, 128, 32256),
    "deepseek-7b": LlamaShape(30, 4096, 11008, 32, 32, 128, 102400),
    "internlm2-1.8b": LlamaShape(24, 2048, 8192, 16, 8, 128, 92544),
    "internlm2-7b": LlamaShape(32, 4096, 14336, 32, 8, 128, 92544),
    "danube-1.8b": LlamaShape(24, 2560, 6912, 32, 8, 80, 32000),
    "danube3-4b": LlamaShape(24, 3840, 10240, 32, 8, 120, 32000),
    "phi-3-mini": LlamaShape(32, 3072, 8192, 32, 32, 96, 32064),
    "gemma-2b": LlamaShape(18, 2048, 16384, 8, 1, 256, 256000, tied=True),
}
