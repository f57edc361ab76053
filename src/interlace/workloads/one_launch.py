"""An FFN as one launch on a GPU: by the Hopper executor where that can run it, else by the persistent one."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16, fp16
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import spec_by_name
from interlace.executors.hopper import default_pipeline
from interlace.executors.options import Options
from interlace.graph.graph import Graph
from interlace.plan.plan import Plan
from interlace.sim.modes import PERSISTENT, Mode, hopper
from interlace.workloads import tuned
from interlace.workloads.ffn import FFNShape, ffn
from interlace.workloads.hopper import (
    HopperSetting,
    fits,
    hopper_executor,
    hopper_graph,
    hopper_plan,
    hopper_setting,
)
from interlace.workloads.persistent import (
    adapted,
    persistent_executor,
    persistent_fits,
    persistent_plan,
    persistent_setting,
)
from interlace.workloads.settings import FFNSetting, ffn_settings
from interlace.workloads.tuned import Setting

HOPPER = 9  # compute capability
_FEW = 256  # tokens up to which weights may be the 64-row operand


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
        gpu = spec_by_name("cuda")
        return OneLaunch(m, shape, dtype, gpu, gpu.capability[0])

    @property
    def on_hopper(self) -> bool:
        """Whether the Hopper executor runs it: such a GPU, a dtype and widths that its bulk loads take."""
        widths = self.shape.hidden % 16 == 0 and self.shape.ffn % 16 == 0
        return self.capability == HOPPER and self.dtype in (bf16, fp16) and widths

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

    def tilings(self, tile: tuple[int, int, int] | None = None) -> list[Graph]:
        """The FFN in tilings that make a launch, the default first; only in tiles of (m, n, k), if those are given."""
        if not self.on_hopper:
            likely = (adapted(s, self.shape, self.dtype, self.gpu.smem_bytes) for s in ffn_settings(self.m, self.shape))
            launchable = [s for s in likely if persistent_fits(self.shape, s, self.dtype, self.gpu.smem_bytes)]
            pairs = dict.fromkeys((s.up, s.down) for s in launchable)
            return [ffn(self.m, self.shape, self.dtype, up, down) for up, down in pairs]
        padded = min(256, max(16, 1 << (self.m - 1).bit_length()))
        few = [(padded, 64, 256), (padded, 64, 128), (padded, 128, 64)] if self.m <= _FEW else []
        many = [(128, 256, 64), (128, 128, 64)] if self.m > _FEW // 4 else []
        default = hopper_setting(self.m, self.shape)
        ways = [(default.swap, default.shares), (False, 2), (True, 1), (True, 2)]
        graphs = []
        for size in dict.fromkeys([tile] if tile else [(default.m, default.n, default.k), *few, *many]):
            settings = (HopperSetting(*size, swap, shares) for swap, shares in ways)
            fitting = next((s for s in settings if fits(self.m, self.shape, s, self.dtype)), None)
            graphs += [hopper_graph(self.m, self.shape, fitting, self.dtype)] if fitting else []
        return graphs

    def mode(self, plan: Plan) -> Mode:
        """How a prediction takes the executor of a plan."""
        return self.mode_of(plan.graph)

    def mode_of(self, graph: Graph) -> Mode:
        """How a prediction takes the executor of any plan of a graph."""
        if not self.on_hopper:
            return PERSISTENT
        ring = default_pipeline(graph, self.gpu)
        return hopper(ring.stages * ring.stage_bytes)

    def executor(self, setting: Setting, dependent_launch: bool = True) -> DeviceExecutor:
        """Planned, verified and ready to run.

        Args:
            setting: how.
            dependent_launch: whether it may start while the launch before drains; before Hopper, no GPU can.

        Raises:
            PlanError, NoDeviceError, ShapeError, DTypeError: as the executors do.
        """
        options = Options(dependent_launch=dependent_launch and self.capability >= HOPPER)
        if isinstance(setting, HopperSetting):
            return hopper_executor(self.m, self.shape, setting, options, self.dtype, self.gpu.sms)
        return persistent_executor(self.m, self.shape, setting, options, self.dtype, self.gpu.sms)
