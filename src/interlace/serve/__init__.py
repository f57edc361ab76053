"""OpenAI-compatible HTTP server over an engine: ``interlace serve``."""
