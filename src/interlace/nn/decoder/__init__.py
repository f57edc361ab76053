"""Language models of the Llama family that decode with a static cache; see docs/decoder.md."""
