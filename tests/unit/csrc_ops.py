"""Headers that a launch generates for an op: its arguments and constants, from an op of each kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import interlace as il
from interlace.core.dtypes import int32
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels import gelu
from interlace.kernels.abi import Struct
from interlace.kernels.avg_pool2d import avg_pool2d
from interlace.kernels.base import build_megakernel_body
from interlace.kernels.block_sparse.cuda import OPERANDS as OF_BLOCK_SPARSE
from interlace.kernels.causal_attention.cuda import OPERANDS as OF_ATTENTION
from interlace.kernels.chunk_attention.cuda import OPERANDS as OF_CHUNKS
from interlace.kernels.conv2d.megakernel_body import OPERANDS as OF_CONVOLUTION
from interlace.kernels.copy import copy
from interlace.kernels.elementwise import elementwise
from interlace.kernels.experts.cuda import OPERANDS as OF_EXPERTS
from interlace.kernels.layer_norm import layer_norm
from interlace.kernels.matmul import megakernel_body
from interlace.kernels.matmul.megakernel_operands import OPERANDS
from interlace.kernels.max_pool2d import max_pool2d
from interlace.kernels.rms_norm import rms_norm
from interlace.kernels.routing.cuda import _LOADS, _TOKENS
from interlace.kernels.softmax import softmax
from interlace.kernels.spin import spin
from interlace.kernels.unfold_rows import unfold_rows
from interlace.workloads import LLAMAS, MoE, build_decode_graph, quadrature

_ELEMENT = '#define ELEMENT unsigned short\n#define ELEMENT_PTX "bf16"\n'
_PRODUCTS = f'#include "ring/plain.cuh"\n{_ELEMENT}'
_TEXT = f'#include "generated/elements.cuh"\n#include "ring/fetched.cuh"\n{_ELEMENT}'
_IN_RING = " in ring"
#: By path below ``ops/``, or by its folder: the kernel whose arguments a header is compiled with.
KERNELS = {
    "argmax/first_tile": "reduce_argmax",
    "argmax": "most",
    "gelu": "matmul",
    "heads": "append",
    "mma": "matmul",
    "pages": "append",
    "quadrature/refine": "refine",
    "quadrature": "total",
    "routing/choose": "route",
    "routing/route": "route",
    "routing/fill": "fill",
    "routing": "place",
    "row_groups/in_ring": "rms_norm" + _IN_RING,
    "row_groups/of_row": "rms_norm" + _IN_RING,
    "row_groups/whole_rows_in_ring": "rms_norm" + _IN_RING,
    "elementwise/in_ring": "elementwise" + _IN_RING,
    "row_groups": "rms_norm",
    "rows": "copy",
    "sample/cutoff": "cutoff",
    "sample/noisy": "noisy",
    "sample": "outline",
    "vectors": "copy",
}


def kernel_of(header: str) -> str:
    """Return the kernel whose arguments a header below ``ops/`` is compiled with; most have its name."""
    path = header.removeprefix("ops/").removesuffix(".cuh")
    return KERNELS.get(path) or KERNELS.get(path.partition("/")[0]) or path.partition("/")[0]


def generated_of_ops() -> dict[str, str]:
    """Return generated headers by path: one folder for each kernel, and what all kernels share."""
    arguments = {name: _of_products(operands) for name, operands in _OPERANDS.items()}
    for graph in _graphs():
        for op in graph.ops:
            if op.kernel not in ("matmul", "expert_matmul", "chunk_attention"):
                ring = int(op.parameters.get("BM", 1)) > 1 and op.kernel in ("rms_norm", "elementwise")
                arguments.setdefault(op.kernel + _IN_RING * ring, _arguments(op, graph))
    headers = {f"{kernel}/generated/arguments": text for kernel, text in arguments.items()}
    for kernel, columns in (("rms_norm", "N"), ("elementwise", "BN")):
        own = f"{kernel}{_IN_RING}/generated"
        headers[f"{own}/arguments"] += f"constexpr int WIDE = {columns};\n"
        headers[f"{own}/row_groups"] = '#include "ops/row_groups/of_row.cuh"\n'
    return headers | {
        "generated/row_groups": '#include "ops/row_groups/of_tile.cuh"\n',
        "generated/make_row": '#include "ops/rms_norm.cuh"\n',
        "generated/gelu": '#include "ptx.cuh"\n' + gelu.CUDA.partition("\n#include")[0],
    }


_OPERANDS = {
    "matmul": OPERANDS,
    "experts": OF_EXPERTS,
    "causal_attention": OF_ATTENTION,
    "block_sparse": OF_BLOCK_SPARSE,
    "conv2d": OF_CONVOLUTION,
    "chunk_attention": OF_CHUNKS,
}


def _of_products(operands: Struct) -> str:
    """Return what a launch generates for ops on tensor cores, but for their configs."""
    return f"{_PRODUCTS}{operands.source}{megakernel_body._HELD}{megakernel_body._LIMITS}\n"


def _arguments(op: Op, graph: il.Graph) -> str:
    """Return what the composition puts before the text of an op."""
    body = build_megakernel_body(op, {access.arg: graph.tensor(access.tensor) for access in op.accesses}, frozenset())
    own = body.source.partition("namespace own {\n")[2].partition("#line 1 ")[0]
    own = re.sub(r"^using (Tile|Fetch|Stream) = \1;\n", "", own, flags=re.MULTILINE)
    return f"{_TEXT}{body.operands.source}{own}{_OF_TEXT.get(op.kernel, '')}"


#: Constants of a text beside those of its op.
_OF_TEXT: Mapping[str, str] = {
    **dict.fromkeys(("assign", "route"), _TOKENS),
    **dict.fromkeys(("fill", "place"), _LOADS),
}


def _graphs() -> Iterator[il.Graph]:
    model = replace(LLAMAS["llama3.2-1b"], layers=1, vocabulary=4096)
    yield build_decode_graph(model, 4, 1088, il.H200)
    yield build_decode_graph(model, 4, 1088, il.H200, has_sampling=True)
    yield build_decode_graph(model, 4, 1088, il.H200, chunk=64)
    for tokens in (64, 4096):
        yield MoE.from_fields({"tokens": tokens}, True, "mixtral-8x7b").build_graph(il.H200)
    yield quadrature(8, 2, 8, 1e-4)
    for rows in (1, 16):
        yield _rows(rows)


def _rows(rows: int) -> il.Graph:
    """Return the ops over rows, whose tiles of 16 rows go through the ring."""
    x, weight, bias = (Tensor(name, shape, il.bf16) for name, shape in (("x", (64, 256)), ("w", (256,)), ("b", (256,))))
    ns, spun = (Tensor(name, (4,), int32) for name in ("ns", "spun"))
    outs = [Tensor(f"out{n}", (64, 256), il.bf16) for n in range(5)]
    images = ("image", 8), ("pooled", 4), ("mean", 4)
    image, pooled, mean = (Tensor(name, (1, n, n, 64), il.bf16) for name, n in images)
    columns = Tensor("columns", (1, 8, 8, 192), il.bf16)
    ops = (
        max_pool2d("pool", image, pooled, window=2),
        avg_pool2d("average", image, mean, window=2),
        unfold_rows("unfold", image, columns, taps=3, padding=1),
        rms_norm("rms", x, weight, outs[0], 1e-6, rows=rows),
        layer_norm("layer", x, weight, bias, outs[1], eps=1e-6, rows=rows),
        softmax("softmax", x, outs[2], rows=rows),
        elementwise("point", x, outs[3], times=x, plus=bias, activation=il.Activation.SILU, tile=(rows, 64)),
        copy("copy", x, outs[4]),
        spin("spin", ns, spun),
    )
    names = ("x", "w", "b", "ns", "image")
    made = (*(out.name for out in outs), "spun", "pooled", "mean", "columns")
    return il.Graph("rows", (x, weight, bias, ns, spun, *outs, image, pooled, mean, columns), ops, names, made)
