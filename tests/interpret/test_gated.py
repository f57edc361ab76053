"""The kernel of a gate, for FFNs whose matmuls a library runs."""

from __future__ import annotations

import pytest
import torch

from interlace.kernels.gated import MULTIPLE, silu_and_mul


@pytest.mark.parametrize("extents", [(1, 16), (3, 48), (5, 1024), (2, 3, 352)])
def test_silu_times_is_the_product_in_the_memory_of_up(extents: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(extents), torch.randn(extents)
    expected = torch.nn.functional.silu(gate) * up
    behind = torch.full((up.numel() + MULTIPLE,), 7.0)
    inside = behind[: up.numel()].view(extents)
    inside.copy_(up)
    assert silu_and_mul(gate, inside) is inside
    torch.testing.assert_close(inside, expected)
    assert (behind[up.numel() :] == 7.0).all()
