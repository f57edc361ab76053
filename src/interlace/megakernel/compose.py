"""The text of one launch: the walk, and the bodies that its ops take.

The order of the text, of a launch of a norm as plain text and of matmuls in two tilings:

    constexpr int STAGES = 4; ...              what the launch is compiled with
    struct Queue, struct Launch                what the kernel takes
    cluster, WALK, dispatch                    ring and messages; who takes which item
    namespace body0 { norm_rows ... }          a text and its operands, once for each dtype, whatever ops take it
    namespace body1 { Matmul<...> ... }
    prefetch, look_ahead,              for each role a switch over the ``code`` of an item's row:
    load, compute                    case 0: body0::...; case 1: body1::Matmul<16, 64, ...>; case 2: ...
    ROLES                                      the loops of the roles, and the kernel

Ops of equal tiles have the same code, so 16 layers have no more of it than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.dtypes import DType
from interlace.core.errors import PlanError
from interlace.kernels.abi import ITEM, STATE, Struct
from interlace.kernels.bodies import NO_CLUSTER, Cluster, MegakernelBody, MegakernelTile
from interlace.kernels.cuda.elements import ELEMENTS
from interlace.kernels.cuda.ptx import count_entry_registers
from interlace.kernels.primitives.tagged_cuda import LL_PROTOCOL
from interlace.kernels.text import LINE_DIRECTIVE
from interlace.megakernel.cluster import generate_source as cluster_text
from interlace.megakernel.dispatch import QUEUE, claims_ahead, select_queue_struct
from interlace.megakernel.dispatch import generate_constants as of_dispatch
from interlace.megakernel.dispatch import generate_source as dispatch_text
from interlace.megakernel.fetched import POST_WAIT_LOADS
from interlace.megakernel.plain import PLAIN, TILE
from interlace.megakernel.roles import ROLES
from interlace.megakernel.spawn import Termination
from interlace.megakernel.streamed import BULK_LOAD, PASSAGE, PRE_WAIT_LOADS
from interlace.megakernel.walk import ENDED, MISCOUNTED, RING, UNFINISHED
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import Stealing

#: In column ``code`` of an item: its last slots are kept until it is posted.
KEEPS = 1 << 16
#: The same, of a part of a tile whose sums another part adds to its own.
LEAVES_SUMS = 1 << 17
#: The same: the item before it in its block is of the same op, and left the scratch as that has it.
AGAIN = 1 << 18
#: The same: it waits and is one of the last, one for each block, so its block draws nothing behind it before it begins.
LAST = 1 << 19
#: Messages that the drawing warp is ahead of the other roles.
TICKETS = 4
_BARRIER_BYTES = 8
_CLUSTER_WORD_BYTES = 8 + _BARRIER_BYTES  # between the blocks of a cluster
_STAGE_BARRIERS = 4  # full and empty, of either slot
_MESSAGE_BYTES = ITEM.size + 32  # a row of the item table, the run, the slots that are kept, places in the ring
#: Registers of a thread of the warpgroup that loads; consumers share the rest.
_LOADER_REGISTERS = 56
_ROW_STEP = 64  # bytes: tensor maps, which rows of operands may hold, lie at multiples of so many

#: Dispatches under which a launch may hold its operands; spawn has addresses behind them.
_INLINE_OPERAND_DISPATCHES = (Dispatch.STATIC, Dispatch.TICKET)
#: That every driver takes of a kernel's parameters (CUDA C++ Programming Guide, function parameters).
_PARAMETER_BYTES = 4096

#: What the kernel takes: the state of a compiled plan, what bounds its waits, and the operands of every op.
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
    """What the kernel takes under a dispatch, whose queue it has; it may hold the bytes of all operands itself."""
    kinds = dict(LAUNCH.fields) | {"queue": select_queue_struct(dispatch)}
    if not inline_bytes:
        return Struct(LAUNCH.name, tuple(kinds.items()))
    del kinds["operands"]  # tensor maps among them are aligned by standing first
    return Struct(LAUNCH.name, (("operands", ("unsigned char", inline_bytes)), *kinds.items()), align=_ROW_STEP)


@dataclass(frozen=True)
class LoweredOp:
    """What a launch has of an op.

    Attributes:
        body: of its kernel.
        tile: how its tiles are computed.
        dtype: of its first argument.
        name: of the op, for messages.
    """

    body: MegakernelBody
    tile: MegakernelTile
    dtype: DType
    name: str

    @property
    def namespace(self) -> tuple[str, Struct, DType]:
        """Parts for which this is equal share one."""
        return self.body.source, self.body.operands, self.dtype

    @property
    def code(self) -> tuple[object, str]:
        """Parts for which this is equal share their code."""
        return self.namespace, self.tile.type


@dataclass(frozen=True)
class MegakernelSource:
    """A launch as text.

    Attributes:
        source: CUDA C++, behind ``kernels/cuda/ptx`` and the semaphores.
        launch: what the kernel takes.
        has_inline_operands: whether that has the operands of every op itself, rather than their address.
        operand_bytes: from the operands of one op to those of the next.
        stages: of the ring.
        shared_bytes: of a block.
    """

    source: str
    launch: Struct
    has_inline_operands: bool
    operand_bytes: int
    stages: int
    shared_bytes: int


def number_codes(parts: Sequence[LoweredOp]) -> list[int]:
    """Which code computes each op: what ``code`` says in its items' rows."""
    unlike = list(dict.fromkeys(part.code for part in parts))
    return [unlike.index(part.code) for part in parts]


def count_stages(
    tiles: Sequence[MegakernelTile], warpgroups: int, smem_bytes: int, cluster: Cluster = NO_CLUSTER
) -> int:
    """How many stages of the ring shared memory holds; fewer than two make no launch."""
    slots, words = (
        _max_prefetchable_bytes(tiles) + _max_dependent_bytes(tiles),
        _count_cluster_words(1, cluster) * _CLUSTER_WORD_BYTES,
    )
    stage_bytes = slots + _max_header_bytes(tiles) + _STAGE_BARRIERS * _BARRIER_BYTES + words // 2
    count = (smem_bytes - _compute_fixed_bytes(tiles, warpgroups) - words) // stage_bytes
    return count if slots else min(count, TICKETS)  # where nothing lies in a stage, an item needs one


def _compute_consumer_registers(warpgroups: int) -> int:
    """Registers of a thread of as many consumer warpgroups, in steps of 8: with two 224, with three 152."""
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
    """The launch of ops, in program order.

    Args:
        parts: of each op.
        warpgroups: consumers of a block, 1 to 3.
        smem_bytes: of shared memory that a block may have.
        in_flight_bytes: of independent operands under way in one block; what saturates memory.
        dispatch: who takes which item when.
        dependent_launch: it may start while the launch before drains.
        stealing: what a worker takes whose list is empty, if it does.
        blocks: that may be resident at once.
        termination: how workers find the end under spawn dispatch.
        cluster: blocks that load for one another (``megakernel/cluster``).

    Raises:
        PlanError: shared memory does not hold two stages beside the scratch.
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
    operand_bytes = -(-max(part.body.operands.size for part in parts) // _ROW_STEP) * _ROW_STEP
    constants = {
        "STAGES": count,
        "WARPGROUPS": warpgroups,
        "TICKETS": TICKETS,
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
        "KEEPS": KEEPS,
        "LEAVES_SUMS": LEAVES_SUMS,
        "AGAIN": AGAIN,
        "LAST": LAST,
        "ENDED": ENDED,
        "MISCOUNTED": MISCOUNTED,
        "UNFINISHED": UNFINISHED,
        "KEPT": count - 1,
        "DEPENDENT_LAUNCH": int(dependent_launch),
        "CLAIMS_AHEAD": int(claims_ahead(dispatch, independent > 0)),
        **of_dispatch(dispatch, stealing, blocks),
    }
    head = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    head += "extern __shared__ __align__(1024) unsigned char shared_memory[];\n"
    head += "#define SHARED_BASE shared_address(shared_memory)\n"
    early, late = any(part.body.pre_wait_inputs for part in parts), any(part.body.post_wait_inputs for part in parts)
    rings = (
        BULK_LOAD + PASSAGE if early or late else "",
        PRE_WAIT_LOADS if early else "",
        POST_WAIT_LOADS if late else "",
    )
    # Operands that a launch holds need no copy to the device, and come with it.
    launch = build_launch_struct(dispatch, operand_bytes * len(parts))
    held = dispatch in _INLINE_OPERAND_DISPATCHES and launch.size <= _PARAMETER_BYTES
    launch = launch if held else build_launch_struct(dispatch)
    structs = select_queue_struct(dispatch).source, launch.source
    drawing = dispatch_text(dispatch, termination, independent > 0, cluster)
    walk = *structs, cluster_text(cluster), RING, drawing, ELEMENTS, TILE, PLAIN, LL_PROTOCOL, *rings
    text = "".join((head, *walk, *_render_bodies(parts), _render_switches(parts), ROLES))
    shared = count * (independent + dependent + header + _STAGE_BARRIERS * _BARRIER_BYTES) + _compute_fixed_bytes(
        tiles, warpgroups
    )
    shared += _count_cluster_words(count, cluster) * _CLUSTER_WORD_BYTES
    return MegakernelSource(_number_lines(text), launch, held, operand_bytes, count, shared)


def _make_too_large_error(parts: Sequence[LoweredOp], warpgroups: int, smem_bytes: int) -> PlanError:
    """The error for ops that have no ring of two stages together: which of them takes most, for what."""
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
        f"a stage takes {stage} bytes of shared memory, what tiles keep beside the stages "
        f"{_compute_fixed_bytes(tiles, warpgroups)}, and {smem_bytes} do not hold two of them; op {name!r} takes "
        f"{most} bytes for {what}, so give it {less}"
    )


def _name_namespaces(parts: Sequence[LoweredOp]) -> dict[object, str]:
    """What the namespace of each text is called."""
    return {key: f"body{n}" for n, key in enumerate(dict.fromkeys(part.namespace for part in parts))}


def _render_bodies(parts: Sequence[LoweredOp]) -> list[str]:
    """Each text in its namespace, with the functions that its tiles need."""
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
    """Behind a text whose lines count by themselves, those of the launch go on."""
    if LINE_DIRECTIVE not in text:
        return text
    lines = text.split("\n")  # at what a compiler takes for an end, and no other
    go_on = LINE_DIRECTIVE.rstrip("\n")
    return "\n".join(f'#line {n + 2} "one_launch.cu"' if line == go_on else line for n, line in enumerate(lines))


def _render_switches(parts: Sequence[LoweredOp]) -> str:
    """For each role a function of an item that branches to the code of its op."""
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
    """Of a warpgroup; all together they are also what may be read behind the last stage."""
    beyond = max(tile.overread_bytes for tile in tiles)
    return max(*(tile.scratch_bytes for tile in tiles), -(-beyond // warpgroups // 16) * 16)


def _count_cluster_words(stages: int, cluster: Cluster) -> int:
    """Between blocks of a cluster (``megakernel/cluster``)."""
    return 0 if cluster == NO_CLUSTER else stages + 1


def _compute_fixed_bytes(tiles: Sequence[MegakernelTile], warpgroups: int) -> int:
    """Shared memory beside the stages."""
    messages = TICKETS * (3 * _BARRIER_BYTES + _MESSAGE_BYTES)
    return warpgroups * _compute_scratch_bytes(tiles, warpgroups) + _max_resident_bytes(tiles) + messages
