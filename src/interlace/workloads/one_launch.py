"""An FFN as one launch on a GPU: by the Hopper executor where that can run it, else by the persistent one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from interlace.core.devices import DeviceSpec, spec_for
from interlace.core.dtypes import DType, bf16, fp16, fp32
from interlace.executors.device import DeviceExecutor, Options
from interlace.executors.gpu import open_device
from interlace.executors.hopper import default_pipeline
from interlace.plan.plan import Plan
from interlace.sim.modes import PERSISTENT, Mode, hopper
from interlace.workloads import tuned
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, hopper_executor, hopper_plan, hopper_setting
from interlace.workloads.persistent import persistent_executor, persistent_plan, persistent_setting
from interlace.workloads.settings import FFNSetting
from interlace.workloads.tuned import Setting

_HOPPER = 9  # compute capability
_FP32_SHARE = 67 / 989  # of the bf16 rate: fp32 does not go through tensor cores (H200 data sheet)


@dataclass(frozen=True)
class OneLaunch:
    """An FFN over m tokens on one GPU.

    Attributes:
        m, shape, dtype: which FFN.
        gpu: the GPU as data.
        capability: major number of its compute capability.
    """

    m: int
    shape: FFNShape
    dtype: DType
    gpu: DeviceSpec
    capability: int

    @staticmethod
    def here(m: int, shape: FFNShape, dtype: DType = bf16) -> OneLaunch:
        """On the current CUDA device.

        Raises:
            NoDeviceError: there is none.
        """
        torch, device = open_device("cuda")
        p = torch.cuda.get_device_properties(device)
        gpu = spec_for(p.name, p.multi_processor_count, p.L2_cache_size, p.shared_memory_per_block_optin)
        return OneLaunch(m, shape, dtype, gpu, p.major)

    @property
    def on_hopper(self) -> bool:
        """Whether the Hopper executor runs it: such a GPU, a dtype and widths that its bulk loads take."""
        widths = self.shape.hidden % 16 == 0 and self.shape.ffn % 16 == 0
        return self.capability == _HOPPER and self.dtype in (bf16, fp16) and widths

    @property
    def flops(self) -> float:
        """Floating-point operations of one run, without those on rows that only fill a tile."""
        return 2.0 * self.m * self.shape.hidden * self.shape.ffn * (2 + self.shape.gated)

    @property
    def executor_name(self) -> str:
        """Which executor runs it."""
        return "hopper" if self.on_hopper else "persistent"

    @property
    def kernel(self) -> str:
        """The name of the launch's kernel, as profilers show it."""
        return "hopper_kernel" if self.on_hopper else "persistent_ticket_kernel"

    @cached_property
    def device(self) -> DeviceSpec:
        """What a prediction takes: the GPU, with the rate at which it multiplies this dtype."""
        rate = self.gpu.flops_per_s * (_FP32_SHARE if self.dtype is fp32 else 1.0)
        return replace(self.gpu, flops_per_s=rate)

    def default(self) -> Setting:
        """The setting without any search."""
        if self.on_hopper:
            return hopper_setting(self.m, self.shape)
        return persistent_setting(self.m, self.shape, self.dtype, self.gpu.smem_bytes)

    def setting(self) -> Setting:
        """The setting that ``interlace tune`` kept, else the default."""
        name = self.gpu.name
        if self.on_hopper:
            return tuned.lookup(name, self.m, self.shape, self.dtype) or self.default()
        smem_bytes = self.gpu.smem_bytes
        return tuned.lookup_persistent(name, self.m, self.shape, self.dtype, smem_bytes) or self.default()

    def read(self, data: object) -> Setting:
        """A setting of this executor from JSON data. Raises ValueError if it is none."""
        return (HopperSetting if self.on_hopper else FFNSetting).from_data(data)  # type: ignore[arg-type]

    def plan(self, setting: Setting) -> Plan:
        """The plan under a setting."""
        if isinstance(setting, HopperSetting):
            return hopper_plan(self.m, self.shape, setting, self.dtype, self.gpu.sms)
        return persistent_plan(self.m, self.shape, setting, self.dtype, self.gpu.sms)

    def mode(self, plan: Plan) -> Mode:
        """How a prediction takes the executor of a plan."""
        if not self.on_hopper:
            return PERSISTENT
        ring = default_pipeline(plan.graph.ops)
        return hopper(ring.stages * (ring.free_rows + ring.bound_rows) * 128)

    def executor(self, setting: Setting, dependent_launch: bool = True) -> DeviceExecutor:
        """Planned, verified and ready to run.

        Args:
            setting: how.
            dependent_launch: whether it may start while the launch before drains; before Hopper, no GPU can.

        Raises:
            PlanError, NoDeviceError, ShapeError, DTypeError: as the executors do.
        """
        options = Options(dependent_launch=dependent_launch and self.capability >= _HOPPER)
        if isinstance(setting, HopperSetting):
            return hopper_executor(self.m, self.shape, setting, options, self.dtype, self.gpu.sms)
        return persistent_executor(self.m, self.shape, setting, options, self.dtype, self.gpu.sms)
