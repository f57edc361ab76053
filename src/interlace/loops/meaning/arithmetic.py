"""Arithmetic on tiles in NumPy: every operation in fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from interlace.loops.ir.values import ValueOp

Floats = npt.NDArray[np.float32]

OPERATIONS: dict[ValueOp, Callable[..., Floats]] = {
    ValueOp.ADD: np.add,
    ValueOp.SUB: np.subtract,
    ValueOp.MUL: np.multiply,
    ValueOp.DIV: np.divide,
    ValueOp.MAX: np.maximum,
    ValueOp.MIN: np.minimum,
    ValueOp.NEG: np.negative,
    ValueOp.EXP: np.exp,
    ValueOp.TANH: np.tanh,
    ValueOp.SQRT: np.sqrt,
    ValueOp.RSQRT: lambda x: np.float32(1) / np.sqrt(x),
    ValueOp.LESS: lambda x, y: np.less(x, y).astype(np.float32),
    ValueOp.WHERE: lambda c, x, y: np.where(c != 0, x, y),
}
