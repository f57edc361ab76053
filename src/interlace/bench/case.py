"""One FFN on one GPU, as it is tuned and profiled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.deploy import Deployment, deployment, here
from interlace.workloads.ffn import FFNShape, ffn


@dataclass(frozen=True)
class FFNCase:
    """An FFN over m tokens on one GPU.

    Attributes:
        m, shape, dtype: which FFN.
        gpu: the GPU as data.
    """

    m: int
    shape: FFNShape
    dtype: DType
    gpu: DeviceSpec

    @staticmethod
    def here(m: int, shape: FFNShape, dtype: DType = bf16) -> FFNCase:
        """On the current CUDA device.

        Raises:
            NoDeviceError: there is none.
        """
        return FFNCase(m, shape, dtype, here())

    @cached_property
    def deployment(self) -> Deployment:
        """As one launch."""
        return deployment(ffn(self.m, self.shape, self.dtype), self.gpu)
