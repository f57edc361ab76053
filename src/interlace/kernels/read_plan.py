"""Reading plans from JSON together with the kernels that run them."""

from __future__ import annotations

from collections.abc import Iterable

from interlace.kernels.append import APPEND
from interlace.kernels.argmax import BLOCK_ARGMAX, REDUCE_ARGMAX
from interlace.kernels.assign import ASSIGN
from interlace.kernels.attend import ATTEND
from interlace.kernels.avg_pool2d import AVG_POOL2D
from interlace.kernels.base import Kernel
from interlace.kernels.block_sparse import BLOCK_SPARSE_MATMUL
from interlace.kernels.causal_attention import CAUSAL_ATTENTION
from interlace.kernels.chunk_attention import CHUNK_ATTENTION
from interlace.kernels.combine import COMBINE
from interlace.kernels.conv2d import CONV2D
from interlace.kernels.copy import COPY
from interlace.kernels.elementwise import ELEMENTWISE
from interlace.kernels.embedding import EMBEDDING
from interlace.kernels.experts import EXPERT_MATMUL
from interlace.kernels.gather import GATHER
from interlace.kernels.layer_norm import LAYER_NORM
from interlace.kernels.matmul import MATMUL
from interlace.kernels.max_pool2d import MAX_POOL2D
from interlace.kernels.merge import MERGE
from interlace.kernels.quadrature import REFINE, TOTAL
from interlace.kernels.rms_norm import RMS_NORM
from interlace.kernels.rotate import ROTATE
from interlace.kernels.routing import FILL, PLACE, ROUTE
from interlace.kernels.sample import CUTOFF, GUMBEL_ARGMAX, SEGMENT_STATS
from interlace.kernels.softmax import SOFTMAX
from interlace.kernels.unfold_rows import UNFOLD_ROWS
from interlace.plan.parse import parse_plan
from interlace.plan.plan import Plan

#: Kernels that need not be passed.
BUILT_IN_KERNELS = (
    *(MATMUL, COPY, EMBEDDING, RMS_NORM, ATTEND, COMBINE, APPEND, CAUSAL_ATTENTION, ROTATE, CHUNK_ATTENTION),
    *(
        BLOCK_ARGMAX,
        REDUCE_ARGMAX,
        SEGMENT_STATS,
        CUTOFF,
        GUMBEL_ARGMAX,
        ASSIGN,
        ROUTE,
        PLACE,
        FILL,
        GATHER,
        EXPERT_MATMUL,
        MERGE,
        BLOCK_SPARSE_MATMUL,
    ),
    *(REFINE, TOTAL),
    *(LAYER_NORM, SOFTMAX, ELEMENTWISE),
    *(CONV2D, MAX_POOL2D, AVG_POOL2D, UNFOLD_ROWS),
)


def read_plan(text: str, kernels: Iterable[Kernel] = ()) -> Plan:
    """Read a plan written by ``Plan.to_json``, ready to be verified and run.

    The text may come from an untrusted source: each op is compared with what its kernel makes of its tensors and
    params.

    Args:
        text: plan as JSON.
        kernels: kernels of the plan that are not built in, or that replace built-in ones of the same name. An op
            whose kernel is missing can be verified but not run, and is listed in ``Proof.unproved_ops``.

    Raises:
        PlanFormatError: text that is not JSON, not a plan or of another schema version, or an op that its kernel
            rejects.
    """
    return parse_plan(text, {kernel.name: kernel for kernel in (*BUILT_IN_KERNELS, *kernels)})
