"""Inputs of a CUDA source: which it reads before the item's waits, and which come through the ring.

Plain loads of a source begin after the item's waits. Large inputs can come through the megakernel's ring instead:

    CudaLoads(
        pre_wait_inputs=("position",),                             plain loads before the waits
        ring=RingStage(
            "Loads",                                               struct of the source that fills a stage
            streamed_inputs=("k_cache", "v_cache"),                bulk copies before the waits
            stage_bytes=lambda op: 128 * int(op.param("D")),
        ),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from interlace.core.arguments import check_int, check_type, format_value
from interlace.core.errors import ParamError
from interlace.graph.op import Op
from interlace.kernels.bodies import MAX_BOX_ROWS
from interlace.kernels.megakernel_body import Loads, check_functions, check_names

_SLOT_BYTES = 1024  # bytes: slots of the ring, and regions cut from them, are aligned to this
_LINE_BYTES = 128  # bytes: headers, which accompany the slots, are aligned to this
_HEADER_ALIGN = 16  # bytes of a header that the launch uses itself
_INT32 = 1 << 31


@dataclass(frozen=True)
class RingStage:
    """Inputs of a CUDA source that come through the ring, and what a stage of the ring holds of them.

    Attributes:
        struct: struct of the source that defines the loads.
        streamed_inputs: arguments that come before the item's waits (``csrc/ring/streamed.cuh``); no earlier op may
            write them. The source's function then also takes a ``Stream& stream``.
        post_wait_inputs: arguments that come after the item's waits (``csrc/ring/fetched.cuh``). The source's function
            then also takes a ``Fetch& fetch``, and warpgroups share no scratch.
        stage_bytes: op -> lower bound of the bytes of a stage.
        box_rows: op -> rows of one bulk load of 128 bytes each, by streamed argument, viewed as matrices of its last
            two dimensions. ``<name>_boxes`` is then a tensor map of ``encode_row_boxes`` (``kernels/cuda/launcher``).
        header_inputs: arguments of which bulk copies bring a part with an item's first stage, in its header.
        header_bytes: op -> bytes of the header, in addition to each stage; 0 if an op polls.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: no inputs or inputs of both kinds, or an incomplete header.
    """

    struct: str
    streamed_inputs: tuple[str, ...] = ()
    post_wait_inputs: tuple[str, ...] = ()
    stage_bytes: Callable[[Op], int] | None = None
    box_rows: Callable[[Op], Mapping[str, int]] | None = None
    header_inputs: tuple[str, ...] = ()
    header_bytes: Callable[[Op], int] | None = None

    def __post_init__(self) -> None:
        check_type(self.struct, str, "RingStage", "struct")
        check_names(self, "streamed_inputs", "post_wait_inputs", "header_inputs")
        check_functions(self, "stage_bytes", "box_rows", "header_bytes")
        if not self.struct or bool(self.streamed_inputs) == bool(self.post_wait_inputs):
            raise ParamError(
                f"a RingStage has struct={self.struct!r}, streamed_inputs={self.streamed_inputs} and "
                f"post_wait_inputs={self.post_wait_inputs}; name the struct of the source that defines the loads, and "
                "give inputs of one kind"
            )
        if bool(self.header_inputs) != (self.header_bytes is not None) or (
            self.header_inputs and not self.streamed_inputs
        ):
            raise ParamError(
                f"a RingStage has header_inputs={self.header_inputs}, header_bytes={self.header_bytes} and "
                f"streamed_inputs={self.streamed_inputs}; a header comes with streamed inputs, and has both arguments "
                "and a size, or leave out all of it"
            )

    @property
    def types(self) -> tuple[str, str]:
        """C++ class template of the tile (``csrc/ring``), and type of the function's further parameter."""
        return ("Streamed", "Stream") if self.streamed_inputs else ("Fetched", "Fetch")

    @property
    def has_header(self) -> bool:
        """True if a header comes with an item's first stage."""
        return self.header_bytes is not None

    def compute_slots(self, op: Op) -> tuple[int, int]:
        """Return the bytes of the slots of a stage, for prefetchable operands and for dependent ones."""
        stage = -(-evaluate_bytes(op, "stage_bytes", self.stage_bytes, "a stage of {} bytes") // _SLOT_BYTES)
        return (stage * _SLOT_BYTES, 0) if self.streamed_inputs else (0, stage * _SLOT_BYTES)

    def compute_header_bytes(self, op: Op) -> int:
        """Return the bytes of the header of an op that polls no LL words."""
        if self.header_bytes is None:
            return 0
        own = evaluate_bytes(op, "header_bytes", self.header_bytes, "a header of {} bytes")
        return -(-(_HEADER_ALIGN + own) // _LINE_BYTES) * _LINE_BYTES

    def compute_box_rows(self, op: Op, args: Iterable[str]) -> dict[str, int]:
        """Return the rows of a box, by argument; ``args``: the arguments of the op."""
        found = {} if self.box_rows is None else self.box_rows(op)
        check_type(found, Mapping, f"op {op.name!r}", "box_rows")
        known = [*args]
        for name, count in found.items():
            if name not in known or not 1 <= check_int(count, f"op {op.name!r}", f"box_rows[{name!r}]") <= MAX_BOX_ROWS:
                raise ParamError(
                    f"op {op.name!r}: boxes of {format_value(count)} rows of {name!r}; give 1 to {MAX_BOX_ROWS} rows "
                    f"of one of {known}"
                )
        return dict(found)


@dataclass(frozen=True)
class CudaLoads(Loads):
    """Inputs that a CUDA source reads before the item's waits, through the ring, or two elements at a time.

    The second name of a ``short_inputs`` pair is the param that holds the number of rows.

    Attributes:
        paired_inputs: arguments that are read two elements at a time.
        ring: inputs that come through the ring; None if none do.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: a resident input without streamed inputs, or one that is not among the pre-wait inputs.
    """

    paired_inputs: tuple[str, ...] = ()
    ring: RingStage | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "paired_inputs")
        if self.ring is not None:
            check_type(self.ring, RingStage, "CudaLoads", "ring")
        if self.resident_input and (not self.streamed_inputs or self.resident_input not in self.pre_wait_inputs):
            raise ParamError(
                f"a CudaLoads has resident_input={self.resident_input!r}, streamed_inputs={self.streamed_inputs} and "
                f"pre_wait_inputs={self.pre_wait_inputs}; loads of streamed inputs may wait for one of the pre-wait "
                "inputs, so name it there too"
            )

    @property
    def streamed_inputs(self) -> tuple[str, ...]:
        """Arguments that come through the ring before the item's waits."""
        return () if self.ring is None else self.ring.streamed_inputs

    @property
    def header_inputs(self) -> tuple[str, ...]:
        """Arguments of which a part comes with an item's first stage."""
        return () if self.ring is None else self.ring.header_inputs

    @property
    def inputs_before_waits(self) -> tuple[str, ...]:
        """Arguments that are loaded before the item's waits."""
        return *self.streamed_inputs, *self.pre_wait_inputs


def evaluate_bytes(op: Op, name: str, value: Callable[[Op], int] | None, label: str) -> int:
    """Return an attribute's value for an op, in bytes; 0 if it is unset. Raises ParamError for other values."""
    found = 0 if value is None else check_int(value(op), f"op {op.name!r}", name)
    if not 0 <= found < _INT32:
        raise ParamError(f"op {op.name!r}: {label.format(format_value(found))}; give 0 or more, below 2^31")
    return found
