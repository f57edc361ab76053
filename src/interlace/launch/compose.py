"""The text of one launch: the walk, and the bodies that its ops take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.dtypes import DType
from interlace.core.errors import PlanError
from interlace.kernels.abi import ITEM, STATE, Struct
from interlace.kernels.bodies import WalkBody, WalkTile
from interlace.launch.walk import ROLES, WALK

#: Messages that the drawing warp is ahead of the other roles.
TICKETS = 4
_BARRIER_BYTES = 8
_MESSAGE_BYTES = ITEM.size + 16  # a row of the item table, and the run
_WIDE_SUMS = 232, 40  # registers of a consumer's thread and of a loader's, with two consumer warpgroups
_MOST_PARAMETERS = 32764  # bytes of a kernel's parameters (CUDA 12.1 and later)


@dataclass(frozen=True)
class Composition:
    """A launch as text.

    Attributes:
        text: CUDA C++, behind ``kernels/cuda/ptx`` and the semaphores.
        launch: the struct that its kernel takes.
        stages: of the ring.
        shared_bytes: of a block.
    """

    text: str
    launch: Struct
    stages: int
    shared_bytes: int


def stages(tiles: Sequence[WalkTile], warpgroups: int, smem_bytes: int) -> int:
    """How many stages of the ring shared memory holds; fewer than two make no launch."""
    stage = _independent(tiles) + _dependent(tiles) + 3 * _BARRIER_BYTES
    return (smem_bytes - _fixed(tiles, warpgroups)) // stage


def compose(
    body: WalkBody,
    tiles: Sequence[WalkTile],
    dtype: DType,
    warpgroups: int,
    smem_bytes: int,
    in_flight_bytes: int,
    *,
    static: bool,
    dependent_launch: bool,
) -> Composition:
    """The launch of ops with these tiles, in program order.

    Args:
        body: of the kernel that the ops have in common.
        dtype: of all tensors.
        warpgroups: consumers of a block, 1 or 2.
        smem_bytes: of shared memory that a block may have.
        in_flight_bytes: of independent operands under way in one block; what saturates memory.
        static: workers walk lists of their own; otherwise items are drawn by ticket.
        dependent_launch: it may start while the launch before drains.

    Raises:
        PlanError: shared memory does not hold two stages, or the parameters of a kernel not all ops.
    """
    count = stages(tiles, warpgroups, smem_bytes)
    independent, dependent = _independent(tiles), _dependent(tiles)
    if count < 2:
        raise PlanError(
            f"a stage takes {independent + dependent} bytes of shared memory, and {smem_bytes} do not hold two of "
            "them; give the ops smaller tiles"
        )
    launch = _launch(body, len(tiles))
    if launch.size > _MOST_PARAMETERS:
        most = (_MOST_PARAMETERS - launch.offsets["operands"]) // body.operands.size
        raise PlanError(f"{len(tiles)} ops; the parameters of one launch hold {most}. Make several graphs of them")
    constants = {
        "STAGES": count,
        "WARPGROUPS": warpgroups,
        "TICKETS": TICKETS,
        "INDEPENDENT_BYTES": independent,
        "DEPENDENT_BYTES": dependent,
        "SCRATCH_BYTES": _scratch(tiles, warpgroups),
        "IN_FLIGHT_BYTES": in_flight_bytes,
        "CONSUMER_REGISTERS": _WIDE_SUMS[0],
        "LOADER_REGISTERS": _WIDE_SUMS[1],
        "STATIC": int(static),
        "DEPENDENT_LAUNCH": int(dependent_launch),
    }
    head = "".join(f"constexpr int {name} = {value};\n" for name, value in constants.items())
    head += f'#define ELEMENT unsigned short\n#define ELEMENT_PTX "{dtype.ptx}"\n'
    head += "extern __shared__ __align__(1024) unsigned char shared_memory[];\n"
    head += "#define SHARED_BASE shared_address(shared_memory)\n"
    functions = "".join(dict.fromkeys(text for tile in tiles for text in tile.functions))
    parts = head, body.operands.text, launch.text, WALK, body.text, functions, _switches(tiles), ROLES
    shared = count * (independent + dependent + 3 * _BARRIER_BYTES) + _fixed(tiles, warpgroups)
    return Composition("".join(parts), launch, count, shared)


def _launch(body: WalkBody, ops: int) -> Struct:
    """What the kernel takes: the state of a compiled plan, what bounds its waits, and the operands of every op."""
    ints = tuple((name, "int") for name in ("count", "programs", "slot_floats"))
    times = tuple((name, "unsigned long long") for name in ("timeout_ns", "jitter_ns"))
    return Struct("Launch", (*STATE, ("lists", "const int*"), *times, *ints, ("operands", (body.operands, ops))))


def _switches(tiles: Sequence[WalkTile]) -> str:
    """For each role a function of an item that branches to the code of its op."""
    types = list(dict.fromkeys(tile.type for tile in tiles))
    which = ", ".join(str(types.index(tile.type)) for tile in tiles)
    table = f"__constant__ const unsigned char CODE_OF[{len(tiles)}] = {{{which}}};\n"

    def switch(name: str, parameters: str, arguments: str) -> str:
        cases = "".join(
            f"    case {i}: {type_}::{name}(launch, item, {arguments}); break;\n" for i, type_ in enumerate(types)
        )
        return (
            f"DEVICE void {name}(const Launch& launch, const Item& item, {parameters}) {{\n"
            f"  switch (CODE_OF[item.op]) {{\n{cases}  }}\n}}\n"
        )

    return (
        table
        + switch("load_independent", "Stage& stage, int& n, Tickets& tickets", "stage, n, tickets")
        + switch("load_dependent", "int k_lo, int k_hi, Stage& stage", "k_lo, k_hi, stage")
        + switch("compute", "Stage& stage", "stage")
    )


def _independent(tiles: Sequence[WalkTile]) -> int:
    return max(tile.independent_bytes for tile in tiles)


def _dependent(tiles: Sequence[WalkTile]) -> int:
    return max(tile.dependent_bytes for tile in tiles)


def _scratch(tiles: Sequence[WalkTile], warpgroups: int) -> int:
    """Of a warpgroup; all together they are also what may be read behind the last stage."""
    beyond = max(tile.beyond_bytes for tile in tiles)
    return max(*(tile.scratch_bytes for tile in tiles), -(-beyond // warpgroups // 16) * 16)


def _fixed(tiles: Sequence[WalkTile], warpgroups: int) -> int:
    """Shared memory beside the stages."""
    messages = TICKETS * (2 * _BARRIER_BYTES + _MESSAGE_BYTES)
    return warpgroups * (_scratch(tiles, warpgroups) + _BARRIER_BYTES) + messages
