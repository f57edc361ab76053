"""Model families as data: shapes, weights, checkpoints, tokenizers, chat templates, and the graph of a step."""
