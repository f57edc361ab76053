"""Layer normalisation folded into adjacent products: weights are centred once, and an RMS normalisation remains.

    layer_norm(x) @ weight.T + bias = rms_norm(x - mean(x)) @ weight.T + (bias + weight @ shift)

The mean of a row of x = y @ first.T is y @ mean(first). If the mean over outputs is subtracted from ``first``, rows
of x have mean 0, and the normalisation folds into both products as in ``kernels/folded_norm``. In a model in which
every
reader of x normalises it, everything that writes x is centred: embeddings, biases, and the last weights of attention
and FFN.
Source: Ashkboos et al., SliceGPT, 2024, section 3.2.
"""

from __future__ import annotations

from typing import Any


def centre_outputs(weight: Any) -> Any:
    """Subtract the mean over outputs from weights (N, K) or a bias (N,), so that their outputs have rows of mean 0.

    For an embedding (V, N), or for data, pass the transpose. Takes NumPy or PyTorch arrays, preferably in float32.
    """
    return weight - weight.mean(0)


def fold_shift(weight: Any, shift: Any, bias: Any = None) -> Any:
    """Return the bias (N,) after weights (N, K) that replaces the normalisation's own shift (K,)."""
    return weight @ shift if bias is None else weight @ shift + bias
