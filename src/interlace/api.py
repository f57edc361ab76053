"""The names that ``interlace`` exports; it imports this module when the first of them is asked for."""

from __future__ import annotations

from interlace import workloads
from interlace.core import errors
from interlace.core.devices import CPU, H100, H200, DeviceSpec
from interlace.core.dtypes import DType, bf16, dtype, fp16, fp32, int32
from interlace.core.errors import InterlaceError
from interlace.deploy.planning import plan_graph
from interlace.executors import EXECUTORS, Executor
from interlace.executors.cuda_graph import CudaGraphExecutor
from interlace.executors.footprint import check_footprint
from interlace.executors.megakernel import OneLaunchExecutor
from interlace.executors.persistent import PersistentExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.executors.run import Run
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import PdlExecutor, SerialExecutor
from interlace.executors.streams import StreamsExecutor
from interlace.graph.access import ALL, Access, Affine, K, Span, axes, fixed
from interlace.graph.dependencies import Dependencies, Hazard
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Region, Tensor
from interlace.kernels.base import Kernel
from interlace.kernels.bodies import BodyKind, Reference, TritonBody
from interlace.kernels.copy import copy
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.read import read_plan
from interlace.kernels.text import TextBody
from interlace.megakernel.options import Options
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Stealing, Victim
from interlace.plan.verify import Proof, verify
from interlace.planner.build import Assignment, Choices, build
from interlace.policies.interleavings import ExplicitInterleaving, HalfRows, Interleaving, OpAfterOp, Panels
from interlace.policies.orders import (
    ColumnMajor,
    ExplicitOrder,
    GroupedPanels,
    GroupedSerpentine,
    Hilbert,
    Morton,
    Order,
    RowMajor,
    Serpentine,
)
from interlace.policies.splits import Split, SplitK, SplitTail, StreamK, Whole
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
from interlace.sim.modes import PERSISTENT, SEMAPHORE_STREAMS, SERIAL, Mode, ring_launch
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
    "Access",
    "Activation",
    "Affine",
    "Assignment",
    "BatchedRowSync",
    "BodyKind",
    "Choices",
    "ColumnMajor",
    "ColumnSync",
    "ConsumerSync",
    "Conv2DSync",
    "CudaGraphExecutor",
    "DType",
    "Dependencies",
    "DeviceSpec",
    "Dispatch",
    "Executor",
    "ExplicitInterleaving",
    "ExplicitOrder",
    "Graph",
    "GroupedPanels",
    "GroupedSerpentine",
    "HalfRows",
    "Hazard",
    "Hilbert",
    "InterlaceError",
    "Interleaving",
    "K",
    "Kernel",
    "KernelSync",
    "MatmulTile",
    "Mode",
    "Morton",
    "NoSync",
    "OneLaunchExecutor",
    "Op",
    "OpAfterOp",
    "Options",
    "Order",
    "Panels",
    "PdlExecutor",
    "PersistentExecutor",
    "Plan",
    "Proof",
    "Reduction",
    "Reference",
    "ReferenceExecutor",
    "Region",
    "RowMajor",
    "RowSync",
    "Run",
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
    "TextBody",
    "TileSync",
    "Trace",
    "TritonBody",
    "Victim",
    "Whole",
    "axes",
    "bf16",
    "build",
    "check_footprint",
    "copy",
    "dtype",
    "errors",
    "fixed",
    "fp16",
    "fp32",
    "int32",
    "matmul",
    "plan_graph",
    "read_plan",
    "ring_launch",
    "verify",
    "workloads",
]
