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
from interlace.kernels.bodies import ALONE, Cluster, WalkBody, WalkTile
from interlace.kernels.cuda.elements import ELEMENTS
from interlace.kernels.cuda.ptx import registers_at_entry
from interlace.kernels.primitives.tagged_cuda import TAGGED
from interlace.kernels.text import LINES_GO_ON
from interlace.megakernel.cluster import text as cluster_text
from interlace.megakernel.dispatch import QUEUE, draws_ahead, queue_of
from interlace.megakernel.dispatch import constants as of_dispatch
from interlace.megakernel.dispatch import text as dispatch_text
from interlace.megakernel.fetched import FETCHED
from interlace.megakernel.plain import PLAIN, TILE
from interlace.megakernel.roles import ROLES
from interlace.megakernel.spawn import Termination
from interlace.megakernel.streamed import BULK_LOAD, PASSAGE, STREAMED
from interlace.megakernel.walk import ENDED, MISCOUNTED, UNFINISHED, WALK
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
_WORD_BYTES = 8 + _BARRIER_BYTES  # between the blocks of a cluster
_STAGE_BARRIERS = 4  # full and empty, of either slot
_MESSAGE_BYTES = ITEM.size + 32  # a row of the item table, the run, the slots that are kept, places in the ring
#: Registers of a thread of the warpgroup that loads; consumers share the rest.
_OF_LOADER = 56
_ROW_STEP = 64  # bytes: tensor maps, which rows of operands may hold, lie at multiples of so many

#: Dispatches under which a launch may hold its operands; spawn has addresses behind them.
_HELD = (Dispatch.STATIC, Dispatch.TICKET)
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


def launch_struct(dispatch: Dispatch, held_bytes: int = 0) -> Struct:
    """What the kernel takes under a dispatch, whose queue it has; it may hold the bytes of all operands itself."""
    kinds = dict(LAUNCH.fields) | {"queue": queue_of(dispatch)}
    if not held_bytes:
        return Struct(LAUNCH.name, tuple(kinds.items()))
    del kinds["operands"]  # tensor maps among them are aligned by standing first
    return Struct(LAUNCH.name, (("operands", ("unsigned char", held_bytes)), *kinds.items()), align=_ROW_STEP)


@dataclass(frozen=True)
class Part:
    """What a launch has of an op.

    Attributes:
        body: of its kernel.
        tile: how its tiles are computed.
        dtype: of its first argument.
        name: of the op, for messages.
    """

    body: WalkBody
    tile: WalkTile
    dtype: DType
    name: str

    @property
    def namespace(self) -> tuple[str, Struct, DType]:
        """Parts for which this is equal share one."""
        return self.body.text, self.body.operands, self.dtype

    @property
    def code(self) -> tuple[object, str]:
        """Parts for which this is equal share their code."""
        return self.namespace, self.tile.type


@dataclass(frozen=True)
class Composition:
    """A launch as text.

    Attributes:
        text: CUDA C++, behind ``kernels/cuda/ptx`` and the semaphores.
        launch: what the kernel takes.
        held: whether that has the operands of every op itself, rather than their address.
        operand_bytes: from the operands of one op to those of the next.
        stages: of the ring.
        shared_bytes: of a block.
    """

    text: str
    launch: Struct
    held: bool
    operand_bytes: int
    stages: int
    shared_bytes: int


def codes(parts: Sequence[Part]) -> list[int]:
    """Which code computes each op: what ``code`` says in its items' rows."""
    unlike = list(dict.fromkeys(part.code for part in parts))
    return [unlike.index(part.code) for part in parts]


def stages(tiles: Sequence[WalkTile], warpgroups: int, smem_bytes: int, cluster: Cluster = ALONE) -> int:
    """How many stages of the ring shared memory holds; fewer than two make no launch."""
    slots, words = _independent(tiles) + _dependent(tiles), _words(1, cluster) * _WORD_BYTES
    stage_bytes = slots + _header(tiles) + _STAGE_BARRIERS * _BARRIER_BYTES + words // 2
    count = (smem_bytes - _fixed(tiles, warpgroups) - words) // stage_bytes
    return count if slots else min(count, TICKETS)  # where nothing lies in a stage, an item needs one


def _of_consumer(warpgroups: int) -> int:
    """Registers of a thread of as many consumer warpgroups, in steps of 8: with two 224, with three 152."""
    every = (warpgroups + 1) * registers_at_entry((warpgroups + 1) * 128)
    return (every - _OF_LOADER) // warpgroups // 8 * 8


def compose(
    parts: Sequence[Part],
    warpgroups: int,
    smem_bytes: int,
    in_flight_bytes: int,
    *,
    dispatch: Dispatch,
    dependent_launch: bool,
    stealing: Stealing,
    blocks: int,
    termination: Termination = Termination.COUNT,
    cluster: Cluster = ALONE,
) -> Composition:
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
    count = stages(tiles, warpgroups, smem_bytes, cluster)
    independent, dependent, header = _independent(tiles), _dependent(tiles), _header(tiles)
    if count < 2:
        raise _too_large(parts, warpgroups, smem_bytes)
    operand_bytes = -(-max(part.body.operands.size for part in parts) // _ROW_STEP) * _ROW_STEP
    constants = {
        "STAGES": count,
        "WARPGROUPS": warpgroups,
        "TICKETS": TICKETS,
        "PREFETCH_BYTES": independent,
        "LOAD_BYTES": dependent,
        "HEADER_BYTES": header,
        "RING_BYTES": count * (independent + dependent + header),
        "SCRATCH_BYTES": _scratch(tiles, warpgroups),
        "RESIDENT_BYTES": _resident(tiles),
        "OPERAND_BYTES": operand_bytes,
        "IN_FLIGHT_BYTES": in_flight_bytes,
        "CONSUMER_REGISTERS": _of_consumer(warpgroups),
        "LOADER_REGISTERS": _OF_LOADER,
        "KEEPS": KEEPS,
        "LEAVES_SUMS": LEAVES_SUMS,
        "AGAIN": AGAIN,
        "LAST": LAST,
        "ENDED": ENDED,
        "MISCOUNTED": MISCOUNTED,
        "UNFINISHED": UNFINISHED,
        "KEPT": count - 1,
        "DEPENDENT_LAUNCH": int(dependent_launch),
        "CLAIMS_AHEAD": int(draws_ahead(dispatch, independent > 0)),
        **of_dispatch(dispatch, stealing, blocks),
    }
    head = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    head += "extern __shared__ __align__(1024) unsigned char shared_memory[];\n"
    head += "#define SHARED_BASE shared_address(shared_memory)\n"
    early, late = any(part.body.early for part in parts), any(part.body.late for part in parts)
    rings = (BULK_LOAD + PASSAGE if early or late else "", STREAMED if early else "", FETCHED if late else "")
    # Operands that a launch holds need no copy to the device, and come with it.
    launch = launch_struct(dispatch, operand_bytes * len(parts))
    held = dispatch in _HELD and launch.size <= _PARAMETER_BYTES
    launch = launch if held else launch_struct(dispatch)
    structs = queue_of(dispatch).text, launch.text
    drawing = dispatch_text(dispatch, termination, independent > 0, cluster)
    walk = *structs, cluster_text(cluster), WALK, drawing, ELEMENTS, TILE, PLAIN, TAGGED, *rings
    text = "".join((head, *walk, *_bodies(parts), _switches(parts), ROLES))
    shared = count * (independent + dependent + header + _STAGE_BARRIERS * _BARRIER_BYTES) + _fixed(tiles, warpgroups)
    shared += _words(count, cluster) * _WORD_BYTES
    return Composition(_numbered(text), launch, held, operand_bytes, count, shared)


def _too_large(parts: Sequence[Part], warpgroups: int, smem_bytes: int) -> PlanError:
    """The error for ops that have no ring of two stages together: which of them takes most, for what."""
    tiles = [part.tile for part in parts]
    stage = _independent(tiles) + _dependent(tiles) + _header(tiles)
    slots = [(2 * (part.tile.independent_bytes + part.tile.dependent_bytes), part.name) for part in parts]
    headers = [(2 * part.tile.header_bytes, part.name) for part in parts]
    scratch = [(warpgroups * part.tile.scratch_bytes, part.name) for part in parts]
    (most, name), what, less = max(
        (max(slots), "the slots of two stages", "smaller tiles"),
        (max(headers), "the headers of two stages", "a smaller header"),
        (max(scratch), "its scratch", "smaller tiles, or its text less scratch"),
    )
    return PlanError(
        f"a stage takes {stage} bytes of shared memory, what tiles keep beside the stages {_fixed(tiles, warpgroups)}, "
        f"and {smem_bytes} do not hold two of them; op {name!r} takes {most} bytes for {what}, so give it {less}"
    )


def _namespaces(parts: Sequence[Part]) -> dict[object, str]:
    """What the namespace of each text is called."""
    return {key: f"body{n}" for n, key in enumerate(dict.fromkeys(part.namespace for part in parts))}


def _bodies(parts: Sequence[Part]) -> list[str]:
    """Each text in its namespace, with the functions that its tiles need."""
    texts = []
    for key, name in _namespaces(parts).items():
        mine = [part for part in parts if part.namespace == key]
        functions = "".join(dict.fromkeys(text for part in mine for text in part.tile.functions))
        body, dtype = mine[0].body, mine[0].dtype
        texts.append(
            f'namespace {name} {{\n#define ELEMENT unsigned short\n#define ELEMENT_PTX "{dtype.ptx}"\n'
            f"{body.operands.text}{body.text}{functions}#undef ELEMENT\n#undef ELEMENT_PTX\n}}\n"
        )
    return texts


def _numbered(text: str) -> str:
    """Behind a text whose lines count by themselves, those of the launch go on."""
    if LINES_GO_ON not in text:
        return text
    lines = text.split("\n")  # at what a compiler takes for an end, and no other
    go_on = LINES_GO_ON.rstrip("\n")
    return "\n".join(f'#line {n + 2} "one_launch.cu"' if line == go_on else line for n, line in enumerate(lines))


def _switches(parts: Sequence[Part]) -> str:
    """For each role a function of an item that branches to the code of its op."""
    names = _namespaces(parts)
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


def _independent(tiles: Sequence[WalkTile]) -> int:
    return max(tile.independent_bytes for tile in tiles)


def _dependent(tiles: Sequence[WalkTile]) -> int:
    return max(tile.dependent_bytes for tile in tiles)


def _header(tiles: Sequence[WalkTile]) -> int:
    return max(tile.header_bytes for tile in tiles)


def _resident(tiles: Sequence[WalkTile]) -> int:
    return max(tile.resident_bytes for tile in tiles)


def _scratch(tiles: Sequence[WalkTile], warpgroups: int) -> int:
    """Of a warpgroup; all together they are also what may be read behind the last stage."""
    beyond = max(tile.beyond_bytes for tile in tiles)
    return max(*(tile.scratch_bytes for tile in tiles), -(-beyond // warpgroups // 16) * 16)


def _words(stages: int, cluster: Cluster) -> int:
    """Between blocks of a cluster (``megakernel/cluster``)."""
    return 0 if cluster == ALONE else stages + 1


def _fixed(tiles: Sequence[WalkTile], warpgroups: int) -> int:
    """Shared memory beside the stages."""
    messages = TICKETS * (3 * _BARRIER_BYTES + _MESSAGE_BYTES)
    return warpgroups * _scratch(tiles, warpgroups) + _resident(tiles) + messages
