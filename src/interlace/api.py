"""The names that ``interlace`` exports; it imports this module when the first of them is asked for."""

from __future__ import annotations

from interlace import workloads
from interlace.core import errors
from interlace.core.devices import CPU, H100, H200, DeviceSpec
from interlace.core.dtypes import DType, bf16, dtype, fp16, fp32, int32
from interlace.core.errors import InterlaceError
from interlace.deploy.planning import autoplan
from interlace.executors import EXECUTORS, Executor
from interlace.executors.footprint import check_footprint
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.executors.run import RunHandle
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import CudaGraphExecutor, PdlExecutor, SerialExecutor
from interlace.executors.streams import StreamsExecutor
from interlace.graph.access import ALL, Access, Affine, K, Span, axes, constant_span
from interlace.graph.dependencies import Dependencies, Hazard
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Region, Tensor
from interlace.kernels.base import Kernel
from interlace.kernels.bodies import BodyKind, Reference, TritonBody
from interlace.kernels.conv2d import Conv2DTile, conv2d
from interlace.kernels.copy import copy
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.cuda_loads import CudaLoads, RingStage
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.max_pool2d import max_pool2d
from interlace.kernels.megakernel_body import Warpgroups
from interlace.kernels.read_plan import read_plan
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Stealing, Victim
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build
from interlace.policies.interleavings import (
    Abreast,
    ExplicitInterleaving,
    HalfRowPanels,
    Interleaving,
    OpAfterOp,
    RowPanels,
)
from interlace.policies.orders import (
    ColumnMajor,
    ExplicitOrder,
    GroupedColumnMajor,
    GroupedSerpentine,
    Hilbert,
    Morton,
    Order,
    RowMajor,
    Serpentine,
)
from interlace.policies.schedule import Assignment, Schedule
from interlace.policies.splits import Split, SplitK, SplitTail, StreamK, WholeTiles
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
    ConsumerSync,
    Conv2DSync,
    KernelSync,
    NoSync,
    RowSync,
    StridedSync,
    SyncPolicy,
    TileSync,
)
from interlace.sim.modes import PERSISTENT, SEMAPHORE_STREAMS, SERIAL, Mode, make_megakernel_mode
from interlace.trace.events import Trace

__all__ = [
    "ALL",
    "CPU",
    "EXECUTORS",
    "H100",
    "H200",
    "PERSISTENT",
    "SEMAPHORE_STREAMS",
    "SERIAL",
    "Abreast",
    "Access",
    "Activation",
    "Affine",
    "Assignment",
    "BatchedRowSync",
    "BodyKind",
    "ColumnMajor",
    "ColumnSync",
    "ConsumerSync",
    "Conv2DSync",
    "Conv2DTile",
    "CudaBody",
    "CudaGraphExecutor",
    "CudaLoads",
    "DType",
    "Dependencies",
    "DeviceSpec",
    "Dispatch",
    "Executor",
    "ExplicitInterleaving",
    "ExplicitOrder",
    "Graph",
    "GroupedColumnMajor",
    "GroupedSerpentine",
    "HalfRowPanels",
    "Hazard",
    "Hilbert",
    "InterlaceError",
    "Interleaving",
    "K",
    "Kernel",
    "KernelSync",
    "MatmulTile",
    "MegakernelExecutor",
    "Mode",
    "Morton",
    "NoSync",
    "Op",
    "OpAfterOp",
    "Order",
    "PdlExecutor",
    "PersistentExecutor",
    "Plan",
    "Proof",
    "Reduction",
    "Reference",
    "ReferenceExecutor",
    "Region",
    "RingStage",
    "RowMajor",
    "RowPanels",
    "RowSync",
    "RunHandle",
    "RunOptions",
    "Schedule",
    "SemaphoreStreamsExecutor",
    "SerialExecutor",
    "Serpentine",
    "Span",
    "Split",
    "SplitK",
    "SplitTail",
    "Stealing",
    "StreamK",
    "StreamsExecutor",
    "StridedSync",
    "SyncPolicy",
    "Tensor",
    "TileSync",
    "Trace",
    "TritonBody",
    "Victim",
    "Warpgroups",
    "WholeTiles",
    "autoplan",
    "axes",
    "bf16",
    "build",
    "check_footprint",
    "constant_span",
    "conv2d",
    "copy",
    "dtype",
    "errors",
    "fp16",
    "fp32",
    "int32",
    "make_megakernel_mode",
    "matmul",
    "max_pool2d",
    "read_plan",
    "verify",
    "workloads",
]
