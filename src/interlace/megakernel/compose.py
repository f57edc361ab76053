"""The CUDA source of a megakernel: generated constants and structs, headers of ``csrc``, and the bodies of its ops.

The order of the source, for a launch of a norm in CUDA source and of matmuls in two tilings:

    constexpr int STAGES = 4; ...              constants that the headers are compiled with
    struct Queue, struct Launch                parameters of the kernel
    #include "ring/ring.cuh", ...              ring and messages
    #include "dispatch/static.cuh"             which block runs which item
    using Tickets = StaticDispatch;
    namespace body0 { norm_rows ... }          CUDA source and its operands, once for each dtype, shared by ops
    namespace body1 { Matmul<...> ... }
    prefetch, look_ahead, load, compute        a switch for each role over the code of an item's row:
                                               case 0: body0::...; case 1: body1::Matmul<16, 64, ...>; case 2: ...
    #include "roles.cuh"                       the loops of the roles, and the kernel

Ops with equal tiles share code, so 16 layers have as much code as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.dtypes import DType
from interlace.core.errors import PlanError
from interlace.csrc import expand, include
from interlace.kernels.abi import STATE, Struct
from interlace.kernels.bodies import NO_CLUSTER, Cluster, MegakernelTile
from interlace.kernels.cuda.preamble import ELEMENTS, SEMAPHORES, WORDS
from interlace.kernels.cuda.ptx import PTX, count_entry_registers
from interlace.kernels.cuda_body import LINE_DIRECTIVE
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.megakernel.constants import MESSAGE_BYTES, SHARED, TICKETS, define_constants
from interlace.megakernel.dispatch import CODES, QUEUE, select_code
from interlace.megakernel.options import Termination
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import Stealing

#: CUDA C++ that precedes the source of a launch.
PREAMBLE = PTX + SEMAPHORES + WORDS
_BARRIER_BYTES = 8
_CLUSTER_WORD_BYTES = 8 + _BARRIER_BYTES  # a word between blocks of a cluster, with its barrier
_STAGE_BARRIERS = 4  # full and empty, for each slot
#: Registers of a thread of the loader warpgroup; consumers share the rest.
_LOADER_REGISTERS = 56
_ROW_STEP = 64  # alignment in bytes of tensor maps, which rows of operands may hold

#: Bytes of kernel parameters that every driver accepts (CUDA C++ Programming Guide, function parameters).
_PARAMETER_BYTES = 4096

#: Parameter of the kernel: the state of a compiled plan, bounds of its waits, and the operands of every op.
LAUNCH = Struct(
    "Launch",
    (
        *STATE,
        ("lists", "const int*"),
        ("heads", "unsigned*"),
        ("queue", QUEUE),
        ("operands", "const unsigned char*"),
        *((name, "unsigned long long") for name in ("timeout_ns", "jitter_ns")),
        *((name, "int") for name in ("count", "programs")),
    ),
)


def build_launch_struct(dispatch: Dispatch, inline_bytes: int = 0) -> Struct:
    """Return the kernel's parameter under a dispatch; with ``inline_bytes`` it holds the operands of all ops itself."""
    kinds = dict(LAUNCH.fields) | {"queue": CODES[dispatch].queue}
    if not inline_bytes:
        return Struct(LAUNCH.name, tuple(kinds.items()))
    del kinds["operands"]  # they come first, so that tensor maps in them are aligned
    return Struct(LAUNCH.name, (("operands", ("unsigned char", inline_bytes)), *kinds.items()), align=_ROW_STEP)


@dataclass(frozen=True)
class LoweredOp:
    """Part of a megakernel that computes an op.

    Attributes:
        body: body of its kernel.
        tile: code of its tiles, and the shared memory that they need.
        dtype: dtype of its first argument.
        name: name of the op, for messages.
    """

    body: MegakernelBody
    tile: MegakernelTile
    dtype: DType
    name: str

    @property
    def namespace(self) -> tuple[str, Struct, DType]:
        """Key of its namespace; parts with equal keys share one."""
        return self.body.source, self.body.operands, self.dtype

    @property
    def code(self) -> tuple[object, str]:
        """Key of its code; parts with equal keys share theirs."""
        return self.namespace, self.tile.type


@dataclass(frozen=True)
class MegakernelSource:
    """Source of a launch.

    Attributes:
        source: CUDA C++ after ``PREAMBLE``; it includes headers of ``csrc``.
        launch: parameter of the kernel.
        has_inline_operands: True if the parameter holds the operands of every op itself, False if it holds their
            address.
        operand_bytes: stride in bytes between the operands of consecutive ops.
        stages: stages of the ring.
        shared_bytes: shared memory of a block.
    """

    source: str
    launch: Struct
    has_inline_operands: bool
    operand_bytes: int
    stages: int
    shared_bytes: int

    @property
    def expanded_text(self) -> str:
        """CUDA source with headers in place of its includes."""
        return expand(self.source, "one_launch.cu", after=PREAMBLE)


def number_codes(parts: Sequence[LoweredOp]) -> list[int]:
    """Return the number of each op's code, for column ``code`` of its items."""
    unlike = list(dict.fromkeys(part.code for part in parts))
    return [unlike.index(part.code) for part in parts]


def count_stages(
    tiles: Sequence[MegakernelTile], warpgroups: int, smem_bytes: int, cluster: Cluster = NO_CLUSTER
) -> int:
    """Return the number of stages of the ring that shared memory holds; a launch needs two."""
    slots, words = (
        _max_prefetchable_bytes(tiles) + _max_dependent_bytes(tiles),
        _count_cluster_words(1, cluster) * _CLUSTER_WORD_BYTES,
    )
    stage_bytes = slots + _max_header_bytes(tiles) + _STAGE_BARRIERS * _BARRIER_BYTES + words // 2
    count = (smem_bytes - _compute_fixed_bytes(tiles, warpgroups) - words) // stage_bytes
    return count if slots else min(count, TICKETS)  # an item needs a stage even if stages hold nothing


def _compute_consumer_registers(warpgroups: int) -> int:
    """Return the registers of a consumer thread, in steps of 8: with two warpgroups 224, with three 152."""
    every = (warpgroups + 1) * count_entry_registers((warpgroups + 1) * 128)
    return (every - _LOADER_REGISTERS) // warpgroups // 8 * 8


def compose(
    parts: Sequence[LoweredOp],
    warpgroups: int,
    smem_bytes: int,
    in_flight_bytes: int,
    *,
    dispatch: Dispatch,
    dependent_launch: bool,
    stealing: Stealing,
    blocks: int,
    termination: Termination = Termination.COUNT,
    cluster: Cluster = NO_CLUSTER,
) -> MegakernelSource:
    """Compose the launch of ops.

    Args:
        parts: part of each op, in program order.
        warpgroups: consumer warpgroups of a block, 1 to 3.
        smem_bytes: most shared memory of a block.
        in_flight_bytes: bytes of prefetches in flight in a block, enough to saturate memory.
        dispatch: how workers obtain items.
        dependent_launch: True if the launch may start while the previous launch drains.
        stealing: number of items and victim of a worker with an empty queue, under stealing dispatch.
        blocks: most blocks that may be resident at once.
        termination: how workers detect the end, under spawn dispatch.
        cluster: blocks that load for each other (``csrc/cluster/cluster.cuh``).

    Raises:
        PlanError: shared memory does not hold two stages next to the scratch.
    """
    tiles = [part.tile for part in parts]
    count = count_stages(tiles, warpgroups, smem_bytes, cluster)
    independent, dependent, header = (
        _max_prefetchable_bytes(tiles),
        _max_dependent_bytes(tiles),
        _max_header_bytes(tiles),
    )
    if count < 2:
        raise _make_too_large_error(parts, warpgroups, smem_bytes)
    code = select_code(dispatch, stealing, blocks, independent > 0, termination, cluster)
    operand_bytes = -(-max(part.body.operands.size for part in parts) // _ROW_STEP) * _ROW_STEP
    constants = {
        "STAGES": count,
        "WARPGROUPS": warpgroups,
        "PREFETCH_BYTES": independent,
        "LOAD_BYTES": dependent,
        "HEADER_BYTES": header,
        "RING_BYTES": count * (independent + dependent + header),
        "SCRATCH_BYTES": _compute_scratch_bytes(tiles, warpgroups),
        "RESIDENT_BYTES": _max_resident_bytes(tiles),
        "OPERAND_BYTES": operand_bytes,
        "IN_FLIGHT_BYTES": in_flight_bytes,
        "CONSUMER_REGISTERS": _compute_consumer_registers(warpgroups),
        "LOADER_REGISTERS": _LOADER_REGISTERS,
        "KEPT": count - 1,
        "DEPENDENT_LAUNCH": int(dependent_launch),
        "CLAIMS_AHEAD": int(code.claims_ahead),
        **SHARED,
        **code.constants,
    }
    head = define_constants(constants) + "extern __shared__ __align__(1024) unsigned char shared_memory[];\n"
    head += "#define SHARED_BASE shared_address(shared_memory)\n"
    sizes = f"CLUSTER_ROWS = {cluster.rows}, CLUSTER_COLUMNS = {cluster.columns}, CLUSTER = {cluster.blocks}"
    head += f"enum {{ {sizes} }};\n"
    # Operands in the parameter arrive with the launch and need no copy to the device.
    launch = build_launch_struct(dispatch, operand_bytes * len(parts))
    held = code.can_hold_operands and launch.size <= _PARAMETER_BYTES
    launch = launch if held else build_launch_struct(dispatch)
    text = "".join(
        (
            *(head, code.queue.source, launch.source),
            include("cluster/alone.cuh" if cluster == NO_CLUSTER else "cluster/cluster.cuh", "ring/ring.cuh"),
            *(code.source, ELEMENTS),
            include("ring/plain.cuh", "ll.cuh", "ring/streamed.cuh", "ring/fetched.cuh"),
            *(*_render_bodies(parts), _render_switches(parts), include("roles.cuh")),
        )
    )
    shared = count * (independent + dependent + header + _STAGE_BARRIERS * _BARRIER_BYTES) + _compute_fixed_bytes(
        tiles, warpgroups
    )
    shared += _count_cluster_words(count, cluster) * _CLUSTER_WORD_BYTES
    return MegakernelSource(_number_lines(text), launch, held, operand_bytes, count, shared)


def _make_too_large_error(parts: Sequence[LoweredOp], warpgroups: int, smem_bytes: int) -> PlanError:
    """Return the error for a ring of fewer than two stages; it names the op that needs most memory, and the purpose."""
    tiles = [part.tile for part in parts]
    stage = _max_prefetchable_bytes(tiles) + _max_dependent_bytes(tiles) + _max_header_bytes(tiles)
    slots = [(2 * (part.tile.prefetchable_bytes + part.tile.dependent_bytes), part.name) for part in parts]
    headers = [(2 * part.tile.header_bytes, part.name) for part in parts]
    scratch = [(warpgroups * part.tile.scratch_bytes, part.name) for part in parts]
    (most, name), what, less = max(
        (max(slots), "the slots of two stages", "smaller tiles"),
        (max(headers), "the headers of two stages", "a smaller header"),
        (max(scratch), "its scratch", "smaller tiles, or its text less scratch"),
    )
    return PlanError(
        f"a stage takes {stage} bytes of shared memory, what tiles keep next to the stages "
        f"{_compute_fixed_bytes(tiles, warpgroups)}, and {smem_bytes} do not hold two of them; op {name!r} takes "
        f"{most} bytes for {what}, so give it {less}"
    )


def _name_namespaces(parts: Sequence[LoweredOp]) -> dict[object, str]:
    """Return the name of each namespace."""
    return {key: f"body{n}" for n, key in enumerate(dict.fromkeys(part.namespace for part in parts))}


def _render_bodies(parts: Sequence[LoweredOp]) -> list[str]:
    """Return the source of each body in its namespace, with the functions that its tiles need."""
    texts = []
    for key, name in _name_namespaces(parts).items():
        mine = [part for part in parts if part.namespace == key]
        functions = "".join(dict.fromkeys(text for part in mine for text in part.tile.functions))
        body, dtype = mine[0].body, mine[0].dtype
        texts.append(
            f'namespace {name} {{\n#define ELEMENT unsigned short\n#define ELEMENT_PTX "{dtype.ptx}"\n'
            f"{body.operands.source}{body.source}{functions}#undef ELEMENT\n#undef ELEMENT_PTX\n}}\n"
        )
    return texts


def _number_lines(text: str) -> str:
    """Return the source with the launch's own line numbers after each body that has numbers of its own."""
    if LINE_DIRECTIVE not in text:
        return text
    lines = text.split("\n")  # lines as a compiler counts them
    go_on = LINE_DIRECTIVE.rstrip("\n")
    return "\n".join(f'#line {n + 2} "one_launch.cu"' if line == go_on else line for n, line in enumerate(lines))


def _render_switches(parts: Sequence[LoweredOp]) -> str:
    """Return a function for each role that branches to the code of an item's op."""
    names = _name_namespaces(parts)
    types = list(dict.fromkeys(f"{names[part.namespace]}::{part.tile.type}" for part in parts))

    def branching(head: str, calls: Sequence[str]) -> str:
        cases = "".join(f"    case {i}: {call}; break;\n" for i, call in enumerate(calls))
        return f"DEVICE void {head} {{\n  switch (item.code & KEEPS - 1) {{\n{cases}  }}\n}}\n"

    def switch(name: str, parameters: str, arguments: str) -> str:
        calls = [f"{type_}::{name}(launch, item, {arguments})" for type_ in types]
        return branching(f"{name}(const Launch& launch, const Item& item, {parameters})", calls)

    looks = [f"look_as<{type_}>(launch, item, 0)" for type_ in types]
    return (
        branching("look_ahead(const Launch& launch, Item& item)", looks)
        + switch("prefetch", "Stage& stage, int& n, Tickets& tickets", "stage, n, tickets")
        + switch("load", "int k_lo, int k_hi, Stage& stage", "k_lo, k_hi, stage")
        + switch("compute", "Stage& stage", "stage")
    )


def _max_prefetchable_bytes(tiles: Sequence[MegakernelTile]) -> int:
    return max(tile.prefetchable_bytes for tile in tiles)


def _max_dependent_bytes(tiles: Sequence[MegakernelTile]) -> int:
    return max(tile.dependent_bytes for tile in tiles)


def _max_header_bytes(tiles: Sequence[MegakernelTile]) -> int:
    return max(tile.header_bytes for tile in tiles)


def _max_resident_bytes(tiles: Sequence[MegakernelTile]) -> int:
    return max(tile.resident_bytes for tile in tiles)


def _compute_scratch_bytes(tiles: Sequence[MegakernelTile], warpgroups: int) -> int:
    """Return the scratch of a warpgroup in bytes; all together also hold what may be read after the last stage."""
    beyond = max(tile.overread_bytes for tile in tiles)
    return max(*(tile.scratch_bytes for tile in tiles), -(-beyond // warpgroups // 16) * 16)


def _count_cluster_words(stages: int, cluster: Cluster) -> int:
    """Return the number of words between blocks of a cluster (``dispatch/cluster_ticket.cuh``)."""
    return 0 if cluster == NO_CLUSTER else stages + 1


def _compute_fixed_bytes(tiles: Sequence[MegakernelTile], warpgroups: int) -> int:
    """Return the bytes of shared memory next to the stages."""
    messages = TICKETS * (3 * _BARRIER_BYTES + MESSAGE_BYTES)
    return warpgroups * _compute_scratch_bytes(tiles, warpgroups) + _max_resident_bytes(tiles) + messages
