"""Layer normalisation in the products around it: weights are centred once, and what is left is an RMS normalisation.

    layer_norm(x) @ weight.T + bias = rms_norm(x - mean(x)) @ weight.T + (bias + weight @ shift)

The mean of a row of x = y @ first.T is y @ mean(first): with the mean of its outputs taken out of ``first``, rows have
none, and the normalisation folds into both products as ``kernels/squares`` says. In a model whose every reader of x
normalises it, whatever writes x is centred: embeddings, biases, and the last weights of attention and FFN.
Source: Ashkboos et al., SliceGPT, 2024, section 3.2.
"""

from __future__ import annotations

from typing import Any


def centre_outputs(weight: Any) -> Any:
    """Weights (N, K), or a bias (N,), less the mean over outputs, so that what they write has rows of mean 0.

    Of an embedding (V, N), or of data, take the transpose. Arrays of NumPy or PyTorch, best in float32.
    """
    return weight - weight.mean(0)


def fold_shift(weight: Any, shift: Any, bias: Any = None) -> Any:
    """The bias (N,) behind weights (N, K) that takes the place of the normalisation's own (K,)."""
    return weight @ shift if bias is None else weight @ shift + bias
