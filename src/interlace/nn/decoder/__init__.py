"""Decoders for language models of the Llama family, with a static KV cache; see docs/models.md."""
