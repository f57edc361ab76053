"""A bulk-load stream with no arithmetic: the least time in which a GPU's blocks can read some weights.

The floor that memory-bound kernels are compared with; it fills rings as they do.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra import cuda

from interlace.kernels.gluon.names import bulk_load
from interlace.kernels.gluon.ring import make_barriers


@gluon.jit
def _load(source, stages, full, empty, first, last):
    STAGES: gl.constexpr = full.shape[0]
    BR: gl.constexpr = source.block_type.shape[0]
    BK: gl.constexpr = source.block_type.shape[1]
    across = source.shape[1] // BK
    for box in range(first, last):
        n = box - first
        s = n % STAGES
        mbarrier.wait(empty.index(s), ((n // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(s), source.block_type.nbytes)
        bulk_load(source, [box // across * BR, box % across * BK], full.index(s), stages.index(s))


@gluon.jit
def _drain(full, empty, first, last):
    STAGES: gl.constexpr = full.shape[0]
    for n in range(last - first):
        mbarrier.wait(full.index(n % STAGES), (n // STAGES) & 1)
        mbarrier.arrive(empty.index(n % STAGES), count=1)


@gluon.jit
def stream_kernel(source, boxes, STAGES: gl.constexpr):
    """Each block reads an equal share of the source's boxes into its shared memory and drops them."""
    BR: gl.constexpr = source.block_type.shape[0]
    BK: gl.constexpr = source.block_type.shape[1]
    stages = gl.allocate_shared_memory(source.dtype, [STAGES, BR, BK], source.layout)
    full, empty = make_barriers(STAGES, (1, 1))
    fence_async_shared()
    cuda.gdc_launch_dependents()
    first = gl.program_id(0) * boxes // gl.num_programs(0)
    last = (gl.program_id(0) + 1) * boxes // gl.num_programs(0)
    gl.warp_specialize(
        [(_drain, (full, empty, first, last)), (_load, (source, stages, full, empty, first, last))], [1], [24]
    )
