"""The gate kernel loads and stores whole vectors for any number of elements."""

from __future__ import annotations

import pytest
import torch

from interlace.executors.launch import TritonLaunch
from interlace.kernels.gated import MULTIPLE, _silu_and_mul


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gate_compiles_to_vector_accesses(dtype: torch.dtype) -> None:
    gate, up = (torch.empty(3, 48, dtype=dtype, device="meta") for _ in range(2))
    launch = TritonLaunch(_silu_and_mul, (1,), (gate, up, 9, MULTIPLE, 1024), {"num_warps": 4})
    compiled = launch.compile_ahead()
    ptx = compiled.asm["ptx"]
    assert ptx.count("ld.global.v4") == 2
    assert ptx.count("st.global.v4") == 1
