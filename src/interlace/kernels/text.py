'''A tile as plain CUDA C++ text: what its author writes, and how it becomes a part of the one launch.

    HALVE = CudaBody("""
    DEVICE void halve(const Tile& tile, const Arguments& a) {
      const int row = tile.i * BM;
      for (int at = thread(); at < BM * a.N; at += THREADS)
        if (row + at / a.N < a.M) a.y[row * a.N + at] = rounded<bf16>(0.5f * widened(a.x[row * a.N + at]));
    }
    """, "halve", constants=("BM",))

All threads of a block's consumer warpgroups call the function together, once for each tile; ``docs/kernels-cuda.md``
has what it may use. Its data comes by ordinary loads, which see what the item's waits are for, because the loader that
waited signals through the ring (``csrc/ring/plain.cuh``). Data that no earlier op writes may come through the ring.
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
from interlace.kernels.text_source import check_source, find_line, is_name, isolate_macros

#: The C++ type of a text, and the namespace of all that is its own; there is one of both in each namespace of a launch.
_TILE_TYPE, _NAMESPACE = "Walked", "own"
_LOADS_NAME = "loads_of_walked"  # what the loads of a text are called beside it
#: Stands behind a text, and in none; the composition puts the number of the line there.
LINE_DIRECTIVE = "#line \0\n"
_INT32, _INT64 = 1 << 31, 1 << 63
_FLOAT_MAX, _FLOAT_MIN = (
    (2 - 2**-23) * 2.0**127,
    2.0**-126,
)  # the largest that float32 holds, the least with all its bits
_ALIGN = 16
_PANEL_BYTES = 128
_SLOT_BYTES = 1024  # bytes: slots of the ring, whatever is cut from them, lie at multiples of so many
_LINE_BYTES = 128  # bytes: headers, beside the slots, do
_MAX_RESIDENT = 256  # elements of what may lie in shared memory: a kilobyte


@dataclass(frozen=True)
class CudaBody:
    """A tile body as CUDA C++, for the one launch.

    Nothing proves what a text does: proofs take its op's access maps for granted, and say so (``Proof.unproved_ops``).

    Attributes:
        source: defines ``function``, and whatever that needs. It stands in a namespace of its own.
        function: ``DEVICE void function(const Tile& tile, const Arguments& a)``.
        constants: names of params that are ``constexpr`` of the text rather than members of ``Arguments``; ops that
            differ in them have code of their own.
        optional_args: names of arguments that an op may lack: null pointers that are known when the text is compiled.
        scratch_bytes: op -> bytes of shared memory that all threads of the block have together, see ``scratch``.
        is_proved: whether the text is one of the package, whose tests hold it to its op's access maps. All that such a
            text reads goes into what it publishes.
        streamed_inputs: arguments that come through the ring, ahead of the item's waits
            (``csrc/ring/streamed_inputs.cuh``); no op
        before it
            may write them. The function then takes a ``Stream& stream`` too.
        post_wait_inputs: arguments that come through the ring, behind the item's waits (``ring/fetched.cuh``). The
            function then takes a ``Fetch& fetch`` too, and warpgroups share no scratch.
        prefers_two_warpgroups: two warpgroups take a tile where no product of the launch says how many there are.
        max_warpgroups: that may take a tile, 2 or 3; products of a launch may have three.
        pre_wait_inputs: further arguments that it reads ahead of the item's waits, of which the same holds.
        resident_input: the one of these, a vector, for whose element ``tile.i`` loads wait; "" for none. Where it has
            256 elements or fewer it may lie in shared memory (``csrc/ring/streamed_inputs.cuh``).
        loads_struct: the struct of the text that says what is streamed, or comes late.
        stage_bytes: op -> bytes that a stage of the ring must hold of it; there may be more.
        header_inputs: arguments of which bulk copies bring a part with an item's first stage, in its header.
        header_bytes: op -> bytes of that, beside each stage; 0 where an op polls.
        box_rows: op -> of streamed arguments, as matrices of their last two dimensions, the rows that a bulk load of
            128 bytes of each brings: ``<name>_boxes`` is then a tensor map of elements, rows and matrices, with the
            128-byte swizzle.
        paired_inputs: arguments that it takes two elements at a time.
        ll_inputs: arguments whose words it may poll instead (``csrc/ll.cuh``), all that a tile reads of them;
            ``<name>_words`` tells the text whether it does, and then ``a.<name>`` are words and ``a.<name>_number`` is
            that of their publication, of ``a.epochs_per_run`` in a run.
        ll_outputs: arguments that it may leave as words instead, with nothing beside them; the same names.
        can_use_ll: op, tensors by argument -> whether it polls and publishes those of the op; None if it always may.
        select_variant: op, tensors by argument -> the text that computes the op instead, or None.
        short_inputs: (argument, param) pairs: arguments that may come with fewer rows than the graph says, of which the
            param then says how many there are; the text reads no others.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: the text defines no such function, or what is streamed is without ``loads_struct``.
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
        """The part of an op in the one launch, given the graph's tensors by argument; see ``MegakernelBodyFactory``.

        Raises:
            ParamError: a name that is none of C++, a constant that the op lacks, or a param that is no number.
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
        """The part of an op, some of whose arguments are words."""
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
        """Rows of a box, by argument."""
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
        """What may lie in shared memory: a vector that has an element for every ``tile.i``, and not too many."""
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
        """The text with what the op gives it before, and its type in the launch behind."""
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
        # What a text's function takes is in its namespace, so a type of its own that is called so is told where it is.
        types = "".join(f"using {name} = {name};\n" for name in ("Tile", taken) if name)
        types += f"struct Arguments : Operands {{\n{null}}};\n"
        file = re.sub(r"[^\w.-]", "_", op.kernel) + ".cu"
        ahead, behind = isolate_macros(expand(self.source))
        if self.loads_struct:  # which may take types and macros of the text
            behind = f"using {_LOADS_NAME} = {self.loads_struct};\n{behind}"
        # Of a function that does not suit, a compiler tells where it is taken: that is its own line.
        line = find_line(self.source, self.function) or 1
        return (
            f'namespace {_NAMESPACE} {{\n{constants}{types}{ahead}#line 1 "{file}"\n'
            f"{self.source.rstrip()}\n{behind}}}\n"
            f'#line {line} "{file}"\nstruct {_TILE_TYPE} : {through}> {{{kept}}};\n{LINE_DIRECTIVE}'
        )


def _evaluate_bytes(op: Op, name: str, value: Callable[[Op], int] | None, label: str) -> int:
    """What an attribute gives of an op, in bytes; 0 if it is left out. Raises ParamError for less, and for no int."""
    found = 0 if value is None else check_int(value(op), f"op {op.name!r}", name)
    if not 0 <= found < _INT32:
        raise ParamError(f"op {op.name!r}: {label.format(format_value(found))}; give 0 or more, below 2^31")
    return found


def _encode_map(value: Any, rows: int, dtype: DType) -> bytes:
    """The tensor map of boxes of so many rows of a tensor, which lies without gaps."""
    from interlace.kernels.cuda.launcher import encode_tensor_map

    *leading, n, d = value.shape
    box = 1, rows, _PANEL_BYTES // dtype.itemsize
    shape, strides = (math.prod(leading), n, d), (n * d, d, 1)
    return encode_tensor_map(
        value.data_ptr(), shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_PANEL_BYTES
    ).descriptor


def _accept_any(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """A text takes any tensors."""


def _declare_pointers(op: Op, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The C++ type of each argument."""
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
        # What float32 has no number for is 0 or the least there is, where a compiler would stop.
        return f"float {name} = {value if abs(value) >= _FLOAT_MIN else c_float(value).value!r}f"
    return f"{kind} {name} = {value}{'ll' if kind != 'int' else ''}"
