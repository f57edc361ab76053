'''CUDA sources of tiles: what an author writes, and how it becomes a part of the megakernel.

    HALVE = CudaBody("""
    DEVICE void halve(const Tile& tile, const Arguments& a) {
      const int row = tile.i * BM;
      for (int at = thread(); at < BM * a.N; at += THREADS)
        if (row + at / a.N < a.M) a.y[row * a.N + at] = rounded<bf16>(0.5f * widened(a.x[row * a.N + at]));
    }
    """, "halve", constants=("BM",))

All threads of a block's consumer warpgroups call the function together, once per tile; ``docs/kernels-cuda.md``
describes what it may use. Ordinary loads see the data that the item waited for, because the loader that waited
signals through the ring (``csrc/ring/plain.cuh``). Data that no earlier op writes may come through the ring.
'''

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from ctypes import c_float
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from interlace.core.arguments import check_int, check_sequence, check_type, format_value
from interlace.core.dtypes import DType
from interlace.core.errors import ArgumentError, ParamError, PlanError
from interlace.csrc import expand
from interlace.graph.op import Op, Param
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.bodies import (
    LL_WORD,
    MAX_BOX_ROWS,
    NO_LL,
    LLTensors,
    MegakernelBody,
    MegakernelTile,
    ResidentVector,
    check_alignment,
)
from interlace.kernels.cuda_source import check_source, find_line, is_name, isolate_macros

#: C++ type of a CUDA source's tile, and namespace of its definitions; each namespace of a launch has both.
_TILE_TYPE, _NAMESPACE = "Walked", "own"
_LOADS_NAME = "loads_of_walked"  # name by which code outside the source refers to its loads
#: Marker after a CUDA source, which no source contains; composition inserts the line number there.
LINE_DIRECTIVE = "#line \0\n"
_INT32, _INT64 = 1 << 31, 1 << 63
_FLOAT_MAX, _FLOAT_MIN = (
    (2 - 2**-23) * 2.0**127,
    2.0**-126,
)  # largest float32; smallest normal float32
_ALIGN = 16
_PANEL_BYTES = 128
_SLOT_BYTES = 1024  # bytes: slots of the ring, and regions cut from them, are aligned to this
_LINE_BYTES = 128  # bytes: headers, which accompany the slots, are aligned to this
_MAX_RESIDENT = 256  # upper bound of the elements that may be resident in shared memory: a kilobyte


@dataclass(frozen=True)
class CudaBody:
    """CUDA C++ source of a tile, for the megakernel.

    Nothing proves what the source does: proofs trust its op's access maps and report that (``Proof.unproved_ops``).

    Attributes:
        source: CUDA source that defines ``function`` and everything that it needs, in a separate namespace.
        function: ``DEVICE void function(const Tile& tile, const Arguments& a)``.
        constants: names of params that are ``constexpr`` in the source instead of members of ``Arguments``; ops with
            different values have separate code.
        optional_args: names of arguments that an op may lack: they are null pointers, known at compile time.
        scratch_bytes: op -> bytes of shared memory for all threads of the block together, see ``scratch``.
        is_proved: True if the source belongs to the package, whose tests check it against its op's access maps.
            Everything that such a source reads affects what it publishes.
        streamed_inputs: arguments that come through the ring before the item's waits
            (``csrc/ring/streamed.cuh``); no earlier op may write them. The function then also takes a
            ``Stream& stream``.
        post_wait_inputs: arguments that come through the ring after the item's waits (``ring/fetched.cuh``). The
            function then also takes a ``Fetch& fetch``, and warpgroups share no scratch.
        prefers_two_warpgroups: True if two warpgroups process a tile when no product of the launch determines their
            number.
        max_warpgroups: upper bound of the warpgroups that may process a tile, 2 or 3; products of a launch may have
            three.
        pre_wait_inputs: further arguments that are read before the item's waits; no earlier op may write them.
        resident_input: one of the pre-wait inputs, a vector; loads wait for its element ``tile.i``. "" for none. If
            it has at most 256 elements, it may be resident in shared memory (``csrc/ring/streamed.cuh``).
        loads_struct: struct of the source that defines the loads of streamed or post-wait inputs.
        stage_bytes: op -> lower bound of the bytes of a ring stage.
        header_inputs: arguments of which bulk copies bring a part with an item's first stage, in its header.
        header_bytes: op -> bytes of the header, in addition to each stage; 0 if an op polls.
        box_rows: op -> rows of one bulk load of 128 bytes each, by streamed argument, viewed as matrices of its last
            two dimensions. ``<name>_boxes`` is then a tensor map of elements, rows and matrices, with the 128-byte
            swizzle.
        paired_inputs: arguments that are read two elements at a time.
        ll_inputs: arguments that the source can poll as LL words instead (``csrc/ll.cuh``), all that a tile reads of
            them. The constant ``<name>_words`` is true if it does. Then ``a.<name>`` points to words and
            ``a.<name>_number`` is their epoch, of ``a.publications`` epochs in a run.
        ll_outputs: arguments that it can write as LL words instead, with no copy in the tensor; the same names apply.
        can_use_ll: op, tensors by argument -> True if LL inputs and outputs of the op can be used; None if they
            always can.
        select_variant: op, tensors by argument -> the source that computes the op instead, or None.
        short_inputs: (argument, param) pairs: arguments that may have fewer rows than the graph declares; the param
            then holds the number of rows, and the source reads no others.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: a source that does not define the function, or streamed inputs without ``loads_struct``.
    """

    source: str
    function: str
    constants: tuple[str, ...] = ()
    optional_args: tuple[str, ...] = ()
    scratch_bytes: Callable[[Op], int] | None = None
    is_proved: bool = False
    streamed_inputs: tuple[str, ...] = ()
    post_wait_inputs: tuple[str, ...] = ()
    prefers_two_warpgroups: bool = False
    max_warpgroups: int = 2
    pre_wait_inputs: tuple[str, ...] = ()
    resident_input: str = ""
    loads_struct: str = ""
    stage_bytes: Callable[[Op], int] | None = None
    header_inputs: tuple[str, ...] = ()
    header_bytes: Callable[[Op], int] | None = None
    box_rows: Callable[[Op], Mapping[str, int]] | None = None
    paired_inputs: tuple[str, ...] = ()
    ll_inputs: tuple[str, ...] = ()
    ll_outputs: tuple[str, ...] = ()
    can_use_ll: Callable[[Op, Mapping[str, Tensor]], bool] | None = None
    select_variant: Callable[[Op, Mapping[str, Tensor]], CudaBody | None] | None = None
    short_inputs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("source", "function", "resident_input", "loads_struct"):
            check_type(getattr(self, name), str, "CudaBody", name)
        for name in (
            "constants",
            "optional_args",
            "streamed_inputs",
            "post_wait_inputs",
            "pre_wait_inputs",
            "header_inputs",
            "paired_inputs",
            "ll_inputs",
            "ll_outputs",
        ):
            object.__setattr__(self, name, check_sequence(getattr(self, name), str, "CudaBody", name))
        for name in ("scratch_bytes", "stage_bytes", "header_bytes", "box_rows", "can_use_ll", "select_variant"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                told = format_value(value)
                raise ArgumentError(f"CudaBody: {name} is {told}; give a function of the op, {name}=lambda op: ...")
        if type(self.max_warpgroups) is not int or self.max_warpgroups not in (2, 3):
            raise ArgumentError(f"CudaBody: max_warpgroups is {format_value(self.max_warpgroups)}; use 2 or 3")
        filled = check_sequence(self.short_inputs, tuple, "CudaBody", "short_inputs")
        pairs = tuple(check_sequence(pair, str, "CudaBody", "short_inputs") for pair in filled)
        if any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(f"CudaBody: short_inputs is {self.short_inputs!r}; give pairs, such as (('x', 'M'),)")
        object.__setattr__(self, "short_inputs", pairs)
        check_source(expand(self.source))
        if not find_line(expand(self.source), self.function):
            raise ParamError(
                f"the text of a CudaBody defines no function {self.function!r}; write DEVICE void {self.function}"
                "(const Tile& tile, const Arguments& a) {...}, or give the name of the one that it defines"
            )
        if bool(self.streamed_inputs) + bool(self.post_wait_inputs) != bool(self.loads_struct):
            raise ParamError(
                f"a CudaBody has streamed_inputs={self.streamed_inputs}, post_wait_inputs={self.post_wait_inputs} and "
                f"loads_struct={self.loads_struct!r}; name the struct of the text that says how its streamed or "
                "its late arguments are loaded, or none of them"
            )
        if self.resident_input and (not self.streamed_inputs or self.resident_input not in self.pre_wait_inputs):
            raise ParamError(
                f"a CudaBody has resident_input={self.resident_input!r}, streamed_inputs={self.streamed_inputs} and "
                f"pre_wait_inputs={self.pre_wait_inputs}; loads of what is streamed may wait for one of the "
                "early arguments, so name it there too"
            )
        if bool(self.header_inputs) != (self.header_bytes is not None) or (
            self.header_inputs and not self.streamed_inputs
        ):
            raise ParamError(
                f"a CudaBody has header_inputs={self.header_inputs}, header_bytes={self.header_bytes} and "
                f"streamed_inputs={self.streamed_inputs}; a header comes with what is streamed, and has both "
                "arguments and a size, or leave out all of it"
            )

    def build_megakernel_body(
        self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str] = frozenset()
    ) -> MegakernelBody:
        """Return an op's body in the megakernel; see ``MegakernelBodyFactory``.

        Raises:
            ParamError: a name that is invalid in C++, a constant that the op lacks, or a param that is not a number.
        """
        instead = None if self.select_variant is None else self.select_variant(op, tensors)
        if instead is not None:
            return instead.build_megakernel_body(op, tensors)
        body = self._build_body(op, tensors, NO_LL)
        if self.can_use_ll is not None and not self.can_use_ll(op, tensors):
            return body
        polls, publishes = (tuple(n for n in names if n in tensors) for names in (self.ll_inputs, self.ll_outputs))
        worded = partial(self._build_body, op, tensors)
        return replace(body, ll_inputs=polls, ll_outputs=publishes, ll_needs_reads=self.is_proved, build_ll_body=worded)

    def _build_body(self, op: Op, tensors: Mapping[str, Tensor], ll_tensors: LLTensors) -> MegakernelBody:
        """Build an op's body, some of whose arguments use the LL protocol."""
        pointers = _declare_pointers(op, tensors)
        pointers |= {name: f"{'const ' * pointers[name].startswith('const ')}{LL_WORD}*" for name in ll_tensors.epochs}
        numbers = {name: value for name, value in op.params if not isinstance(value, str)}
        members = {name: value for name, value in numbers.items() if name not in self.constants}
        for name in (*pointers, *members, *self.constants, *self.optional_args, *self.ll_inputs, *self.ll_outputs):
            if not is_name(name):
                raise ParamError(f"op {op.name!r}: CUDA C++ has no name {name!r}; rename the argument or param")
        if {self.function, self.loads_struct} & {*self.constants}:
            names = " and ".join(filter(None, (self.function, self.loads_struct)))
            raise ParamError(f"op {op.name!r}: its text defines {names}, so no constant is called so; rename one")
        unknown = sorted(
            {*self.streamed_inputs, *self.pre_wait_inputs, *self.header_inputs}
            - pointers.keys()
            - {*self.optional_args}
        )
        if unknown and not self.is_proved:
            has = f"it has {[*pointers]}"
            raise ParamError(f"op {op.name!r} has no arguments {unknown}, which its text reads ahead; {has}")
        clash = sorted(pointers.keys() & members.keys())
        if clash:
            raise ParamError(f"op {op.name!r} has both arguments and params {clash}; a text wants a name for each")
        strange = [pair for pair in self.short_inputs if pair[0] not in pointers or pair[1] not in members]
        if strange:
            raise ParamError(
                f"op {op.name!r}: filled={strange} names no argument with a param that is no constant; it has "
                f"{[*pointers]} and {[*members]}"
            )
        both = [name for name, _ in self.short_inputs if name in self.ll_inputs]
        if both:
            raise ParamError(f"op {op.name!r}: {both} are filled and polled; words are of all rows, so leave out one")
        rows = self._compute_box_rows(op, pointers)
        headed = self.header_bytes is not None and ll_tensors.epochs.keys().isdisjoint(self.ll_inputs)
        maps = tuple((f"{name}_boxes", TENSOR_MAP) for name in rows)
        kinds = ((name, _declare_type(op, name, value)) for name, value in members.items())
        struct = Struct("Operands", (*maps, *pointers.items(), *kinds, *ll_tensors.operand_fields))

        def pack(op: Op, given: Mapping[str, Any], dtype: DType) -> bytes:
            for name in (*self.streamed_inputs, *(name for name in self.header_inputs if headed and name in given)):
                check_alignment(op.name, name, given[name].data_ptr(), _ALIGN, "bulk copies want")
            for name in (name for name in self.paired_inputs if name in given):
                pair = 2 * given[name].element_size()
                check_alignment(op.name, name, given[name].data_ptr(), pair, "it is taken by pairs, at")
            boxed = {
                f"{name}_boxes": _encode_map(given[name], count, tensors[name].dtype) for name, count in rows.items()
            }
            addresses = {name: given[name] for name in pointers}
            there = {param: given[name].shape[0] for name, param in self.short_inputs}
            return struct.pack(**boxed, **addresses, **{**members, **there}, **ll_tensors.operand_values)

        text = self._wrap_source(op, tensors, struct, ll_tensors, headed)
        early, tile = (*self.streamed_inputs, *self.pre_wait_inputs), partial(self._build_tile, headed)
        return MegakernelBody(
            text,
            struct,
            (),
            tile,
            pack,
            _accept_any,
            max_warpgroups=self.max_warpgroups,
            is_chunked=False,
            pre_wait_inputs=early,
            resident=self._find_resident(op, tensors),
            post_wait_inputs=self.post_wait_inputs,
            prefers_two_warpgroups=self.prefers_two_warpgroups,
            short_inputs=tuple(name for name, _ in self.short_inputs),
        )

    def _compute_box_rows(self, op: Op, pointers: Mapping[str, str]) -> dict[str, int]:
        """Return the rows of a box, by argument."""
        found = {} if self.box_rows is None else self.box_rows(op)
        check_type(found, Mapping, f"op {op.name!r}", "box_rows")
        for name, count in found.items():
            if (
                name not in pointers
                or not 1 <= check_int(count, f"op {op.name!r}", f"box_rows[{name!r}]") <= MAX_BOX_ROWS
            ):
                raise ParamError(
                    f"op {op.name!r}: boxes of {format_value(count)} rows of {name!r}; give 1 to {MAX_BOX_ROWS} rows "
                    f"of one of {[*pointers]}"
                )
        return dict(found)

    def _find_resident(self, op: Op, tensors: Mapping[str, Tensor]) -> ResidentVector | None:
        """Return the vector that may be resident in shared memory: few elements, one for every ``tile.i``."""
        shape = tensors[self.resident_input].shape if self.resident_input in tensors else ()
        kept = len(shape) == 1 and op.grid[0] <= shape[0] <= _MAX_RESIDENT
        return ResidentVector(self.resident_input, shape[0]) if kept else None

    def _build_tile(self, headed: bool, op: Op, parts: int, warpgroups: int) -> MegakernelTile:
        if parts > 1:
            raise PlanError(f"op {op.name!r} is split, and its text computes whole tiles; plan it with WholeTiles()")
        scratch = _evaluate_bytes(op, "scratch_bytes", self.scratch_bytes, "{} bytes of scratch")
        of_warpgroup = -(-scratch // (warpgroups * _ALIGN)) * _ALIGN
        stage = (
            -(-_evaluate_bytes(op, "stage_bytes", self.stage_bytes, "a stage of {} bytes") // _SLOT_BYTES) * _SLOT_BYTES
        )
        independent, dependent = (0, stage) if self.post_wait_inputs else (stage, 0)
        header = 0
        if headed and self.header_bytes is not None:
            own = _evaluate_bytes(op, "header_bytes", self.header_bytes, "a header of {} bytes")
            header = -(-(_ALIGN + own) // _LINE_BYTES) * _LINE_BYTES
        return MegakernelTile(_TILE_TYPE, (), independent, dependent, of_warpgroup, 0, 0, header_bytes=header)

    def _wrap_source(
        self, op: Op, tensors: Mapping[str, Tensor], struct: Struct, worded: LLTensors, headed: bool
    ) -> str:
        """Return the source, preceded by the op's declarations and followed by its tile type in the launch."""
        first = tensors[op.accesses[0].arg].dtype.name
        nulls = [name for name in self.optional_args if name not in struct.names]
        null = "".join(f"  static constexpr const {first}* {name} = nullptr;\n" for name in nulls)
        missing = [name for name in self.constants if name not in op.parameters]
        if missing:
            raise ParamError(f"op {op.name!r} lacks params {missing}, which its text takes as constants; give them")
        constants = "".join(f"constexpr {_format_constant(op, name)};\n" for name in self.constants)
        flags = ((name, str(name in worded.epochs).lower()) for name in (*self.ll_inputs, *self.ll_outputs))
        constants += "".join(f"constexpr bool {name}_words = {flag};\n" for name, flag in flags)
        left = (name for name in self.ll_outputs if name in tensors)
        constants += "".join(f"using {name}_element = {tensors[name].dtype.name};\n" for name in left)
        kind, taken = (
            ("Streamed", "Stream")
            if self.streamed_inputs
            else ("Fetched", "Fetch")
            if self.post_wait_inputs
            else ("Plain", "")
        )
        loads = f"{_NAMESPACE}::{_LOADS_NAME}, " if self.loads_struct else ""
        through = f"{kind}<{_NAMESPACE}::Arguments, Operands, {loads}"
        through += f"{str(headed).lower()}, " if self.streamed_inputs else ""
        through += f"{_NAMESPACE}::{self.function}"
        resident = self._find_resident(op, tensors)
        kept = "" if resident is None else f" typedef {through}, {resident.count}> Resident; "
        # Alias the types that the function takes, so that a type of the same name in the source is reported at its
        # own line.
        types = "".join(f"using {name} = {name};\n" for name in ("Tile", taken) if name)
        types += f"struct Arguments : Operands {{\n{null}}};\n"
        file = re.sub(r"[^\w.-]", "_", op.kernel) + ".cu"
        ahead, behind = isolate_macros(expand(self.source))
        if self.loads_struct:  # the struct may use types and macros of the source
            behind = f"using {_LOADS_NAME} = {self.loads_struct};\n{behind}"
        # The compiler reports an unsuitable function where it is used; map that to the function's own line.
        line = find_line(self.source, self.function) or 1
        return (
            f'namespace {_NAMESPACE} {{\n{constants}{types}{ahead}#line 1 "{file}"\n'
            f"{self.source.rstrip()}\n{behind}}}\n"
            f'#line {line} "{file}"\nstruct {_TILE_TYPE} : {through}> {{{kept}}};\n{LINE_DIRECTIVE}'
        )


def _evaluate_bytes(op: Op, name: str, value: Callable[[Op], int] | None, label: str) -> int:
    """Return an attribute's value for an op, in bytes; 0 if it is unset. Raises ParamError for other values."""
    found = 0 if value is None else check_int(value(op), f"op {op.name!r}", name)
    if not 0 <= found < _INT32:
        raise ParamError(f"op {op.name!r}: {label.format(format_value(found))}; give 0 or more, below 2^31")
    return found


def _encode_map(value: Any, rows: int, dtype: DType) -> bytes:
    """Encode the tensor map of boxes of ``rows`` rows of a contiguous tensor."""
    from interlace.kernels.cuda.launcher import encode_tensor_map

    *leading, n, d = value.shape
    box = 1, rows, _PANEL_BYTES // dtype.itemsize
    shape, strides = (math.prod(leading), n, d), (n * d, d, 1)
    return encode_tensor_map(
        value.data_ptr(), shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_PANEL_BYTES
    ).descriptor


def _accept_any(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Accept any tensors, as CUDA sources do."""


def _declare_pointers(op: Op, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the C++ type of each argument."""
    written = {access.arg for access in op.writes}
    names = dict.fromkeys(access.arg for access in op.accesses)
    return {name: f"{'' if name in written else 'const '}{tensors[name].dtype.name}*" for name in names}


def _declare_type(op: Op, name: str, value: Param) -> str:
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT_MAX:
            raise ParamError(f"op {op.name!r} has {name} {value!r}, and a float of CUDA C++ ends at {_FLOAT_MAX:.7g}")
        return "float"
    if not -_INT64 <= int(value) < _INT64:
        raise ParamError(f"op {op.name!r} has {name} {value!r}, and an integer of CUDA C++ has 64 bits")
    return "int" if -_INT32 <= int(value) < _INT32 else "long long"


def _format_constant(op: Op, name: str) -> str:
    value = op.param(name)
    if isinstance(value, str) or not math.isfinite(value):
        raise ParamError(f"op {op.name!r} has {name} {value!r}, which is no constant of a text; give a finite number")
    kind = _declare_type(op, name, value)
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, float):
        # Numbers below float32's normal range become subnormal or 0; a compiler would reject them.
        return f"float {name} = {value if abs(value) >= _FLOAT_MIN else c_float(value).value!r}f"
    return f"{kind} {name} = {value}{'ll' if kind != 'int' else ''}"
