'''A tile as plain CUDA C++ text: what its author writes, and how it becomes a part of the one launch.

    HALVE = TextBody("""
    DEVICE void halve(const Tile& tile, const Arguments& a) {
      const int row = tile.i * BM;
      for (int at = thread(); at < BM * a.N; at += THREADS)
        if (row + at / a.N < a.M) a.y[row * a.N + at] = rounded<bf16>(0.5f * widened(a.x[row * a.N + at]));
    }
    """, "halve", constants=("BM",))

All threads of a block's consumer warpgroups call the function together, once for each tile; ``docs/kernels.md`` has
what it may use. Its data comes by ordinary loads, which see what the item's waits are for, because the loader that
waited signals through the ring (``megakernel/plain``); what is written by no op before it may come through the ring.
'''

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from ctypes import c_float
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from interlace.core.arguments import check_type, series, shown, whole
from interlace.core.dtypes import DType
from interlace.core.errors import ArgumentError, ParamError, PlanError
from interlace.graph.op import Op, Param
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.bodies import AS_TENSORS, BOX_ROWS, WORD, Resident, WalkBody, WalkTile, Worded, check_address
from interlace.kernels.text_source import check_text, is_name, line_of, macros_end

#: The C++ type of a text, and the namespace of all that is its own; there is one of both in each namespace of a launch.
_TYPE, _OWN = "Walked", "own"
_LOADS = "loads_of_walked"  # what the loads of a text are called beside it
#: Stands behind a text, and in none; the composition puts the number of the line there.
LINES_GO_ON = "#line \0\n"
_INT32, _INT64 = 1 << 31, 1 << 63
_FLOAT, _LEAST = (2 - 2**-23) * 2.0**127, 2.0**-126  # the largest that float32 holds, the least with all its bits
_ALIGN = 16
_PANEL_BYTES = 128
_SLOT = 1024  # bytes: slots of the ring, whatever is cut from them, lie at multiples of so many
_LINE = 128  # bytes: headers, beside the slots, do
_MOST_RESIDENT = 256  # elements of what may lie in shared memory: a kilobyte


@dataclass(frozen=True)
class TextBody:
    """A tile body as CUDA C++, for the one launch.

    Nothing proves what a text does: proofs take its op's access maps for granted, and say so (``Proof.unproved``).

    Attributes:
        text: defines ``function``, and whatever that needs. It stands in a namespace of its own.
        function: ``DEVICE void function(const Tile& tile, const Arguments& a)``.
        constants: names of params that are ``constexpr`` of the text rather than members of ``Arguments``; ops that
            differ in them have code of their own.
        optional: names of arguments that an op may lack: null pointers that are known when the text is compiled.
        scratch_bytes: op -> bytes of shared memory that all threads of the block have together, see ``scratch``.
        proved: whether the text is one of the package, whose tests hold it to its op's access maps. All that such a
            text reads goes into what it publishes.
        streamed: arguments that come through the ring, ahead of the item's waits (``megakernel/streamed``); no op
        before it
            may write them. The function then takes a ``Stream& stream`` too.
        late: arguments that come through the ring, behind the item's waits (``megakernel/fetched``). The function then
            takes a ``Fetch& fetch`` too, and warpgroups share no scratch.
        wide: two warpgroups take a tile where no product of the launch says how many there are.
        most_warpgroups: that may take a tile, 2 or 3; products of a launch may have three.
        early: further arguments that it reads ahead of the item's waits, of which the same holds.
        resident: the one of these, a vector, for whose element ``tile.i`` loads wait; "" for none. Where it has 256
            elements or fewer it may lie in shared memory (``megakernel/streamed``).
        loads: the struct of the text that says what is streamed, or comes late.
        stage_bytes: op -> bytes that a stage of the ring must hold of it; there may be more.
        headed: arguments of which bulk copies bring a part with an item's first stage, in its header.
        header_bytes: op -> bytes of that, beside each stage; 0 where an op polls.
        boxes: op -> of streamed arguments, as matrices of their last two dimensions, the rows that a bulk load of 128
            bytes of each brings: ``<name>_boxes`` is then a tensor map of elements, rows and matrices, with the
            128-byte swizzle.
        paired: arguments that it takes two elements at a time.
        polls: arguments whose words it may poll instead (``primitives/tagged_cuda``), all that a tile reads of them;
            ``<name>_words`` tells the text whether it does, and then ``a.<name>`` are words and ``a.<name>_number`` is
            that of their publication, of ``a.publications`` in a run.
        publishes: arguments that it may leave as words instead, with nothing beside them; the same names.
        by_words: op, tensors by argument -> whether it polls and publishes those of the op; None if it always may.
        other: op, tensors by argument -> the text that computes the op instead, or None.
        filled: (argument, param) pairs: arguments that may come with fewer rows than the graph says, of which the param
            then says how many there are; the text reads no others.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: the text defines no such function, or what is streamed is without ``loads``.
    """

    text: str
    function: str
    constants: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    scratch_bytes: Callable[[Op], int] | None = None
    proved: bool = False
    streamed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    wide: bool = False
    most_warpgroups: int = 2
    early: tuple[str, ...] = ()
    resident: str = ""
    loads: str = ""
    stage_bytes: Callable[[Op], int] | None = None
    headed: tuple[str, ...] = ()
    header_bytes: Callable[[Op], int] | None = None
    boxes: Callable[[Op], Mapping[str, int]] | None = None
    paired: tuple[str, ...] = ()
    polls: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    by_words: Callable[[Op, Mapping[str, Tensor]], bool] | None = None
    other: Callable[[Op, Mapping[str, Tensor]], TextBody | None] | None = None
    filled: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("text", "function", "resident", "loads"):
            check_type(getattr(self, name), str, "TextBody", name)
        for name in ("constants", "optional", "streamed", "late", "early", "headed", "paired", "polls", "publishes"):
            object.__setattr__(self, name, series(getattr(self, name), str, "TextBody", name))
        for name in ("scratch_bytes", "stage_bytes", "header_bytes", "boxes", "by_words", "other"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                told = shown(value)
                raise ArgumentError(f"TextBody: {name} is {told}; give a function of the op, {name}=lambda op: ...")
        if type(self.most_warpgroups) is not int or self.most_warpgroups not in (2, 3):
            raise ArgumentError(f"TextBody: most_warpgroups is {shown(self.most_warpgroups)}; use 2 or 3")
        filled = series(self.filled, tuple, "TextBody", "filled")
        pairs = tuple(series(pair, str, "TextBody", "filled") for pair in filled)
        if any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(f"TextBody: filled is {self.filled!r}; give pairs, such as (('x', 'M'),)")
        object.__setattr__(self, "filled", pairs)
        check_text(self.text)
        if not line_of(self.text, self.function):
            raise ParamError(
                f"the text of a TextBody defines no function {self.function!r}; write DEVICE void {self.function}"
                "(const Tile& tile, const Arguments& a) {...}, or give the name of the one that it defines"
            )
        if bool(self.streamed) + bool(self.late) != bool(self.loads):
            raise ParamError(
                f"a TextBody has streamed={self.streamed}, late={self.late} and loads={self.loads!r}; name the struct "
                "of the text that says how its streamed or its late arguments are loaded, or none of them"
            )
        if self.resident and (not self.streamed or self.resident not in self.early):
            raise ParamError(
                f"a TextBody has resident={self.resident!r}, streamed={self.streamed} and early={self.early}; loads of "
                "what is streamed may wait for one of the early arguments, so name it there too"
            )
        if bool(self.headed) != (self.header_bytes is not None) or (self.headed and not self.streamed):
            raise ParamError(
                f"a TextBody has headed={self.headed}, header_bytes={self.header_bytes} and streamed={self.streamed}; "
                "a header comes with what is streamed, and has both arguments and a size, or leave out all of it"
            )

    def walk(self, op: Op, tensors: Mapping[str, Tensor], settled: frozenset[str] = frozenset()) -> WalkBody:
        """The part of an op in the one launch, given the graph's tensors by argument; see ``WalkMaker``.

        Raises:
            ParamError: a name that is none of C++, a constant that the op lacks, or a param that is no number.
        """
        instead = None if self.other is None else self.other(op, tensors)
        if instead is not None:
            return instead.walk(op, tensors)
        body = self._walk(op, tensors, AS_TENSORS)
        if self.by_words is not None and not self.by_words(op, tensors):
            return body
        polls, publishes = (tuple(n for n in names if n in tensors) for names in (self.polls, self.publishes))
        worded = partial(self._walk, op, tensors)
        return replace(body, polls=polls, publishes=publishes, words_need_reads=self.proved, worded=worded)

    def _walk(self, op: Op, tensors: Mapping[str, Tensor], worded: Worded) -> WalkBody:
        """The part of an op, some of whose arguments are words."""
        pointers = _pointers(op, tensors)
        pointers |= {name: f"{'const ' * pointers[name].startswith('const ')}{WORD}*" for name in worded.numbers}
        numbers = {name: value for name, value in op.params if not isinstance(value, str)}
        members = {name: value for name, value in numbers.items() if name not in self.constants}
        for name in (*pointers, *members, *self.constants, *self.optional, *self.polls, *self.publishes):
            if not is_name(name):
                raise ParamError(f"op {op.name!r}: CUDA C++ has no name {name!r}; rename the argument or param")
        if {self.function, self.loads} & {*self.constants}:
            names = " and ".join(filter(None, (self.function, self.loads)))
            raise ParamError(f"op {op.name!r}: its text defines {names}, so no constant is called so; rename one")
        unknown = sorted({*self.streamed, *self.early, *self.headed} - pointers.keys() - {*self.optional})
        if unknown and not self.proved:
            has = f"it has {[*pointers]}"
            raise ParamError(f"op {op.name!r} has no arguments {unknown}, which its text reads ahead; {has}")
        clash = sorted(pointers.keys() & members.keys())
        if clash:
            raise ParamError(f"op {op.name!r} has both arguments and params {clash}; a text wants a name for each")
        strange = [pair for pair in self.filled if pair[0] not in pointers or pair[1] not in members]
        if strange:
            raise ParamError(
                f"op {op.name!r}: filled={strange} names no argument with a param that is no constant; it has "
                f"{[*pointers]} and {[*members]}"
            )
        both = [name for name, _ in self.filled if name in self.polls]
        if both:
            raise ParamError(f"op {op.name!r}: {both} are filled and polled; words are of all rows, so leave out one")
        rows = self._boxes(op, pointers)
        headed = self.header_bytes is not None and worded.numbers.keys().isdisjoint(self.polls)
        maps = tuple((f"{name}_boxes", TENSOR_MAP) for name in rows)
        kinds = ((name, _kind(op, name, value)) for name, value in members.items())
        struct = Struct("Operands", (*maps, *pointers.items(), *kinds, *worded.fields))

        def pack(op: Op, given: Mapping[str, Any], dtype: DType) -> bytes:
            for name in (*self.streamed, *(name for name in self.headed if headed and name in given)):
                check_address(op.name, name, given[name].data_ptr(), _ALIGN, "bulk copies want")
            for name in (name for name in self.paired if name in given):
                pair = 2 * given[name].element_size()
                check_address(op.name, name, given[name].data_ptr(), pair, "it is taken by pairs, at")
            boxed = {f"{name}_boxes": _map(given[name], count, tensors[name].dtype) for name, count in rows.items()}
            addresses = {name: given[name] for name in pointers}
            there = {param: given[name].shape[0] for name, param in self.filled}
            return struct.pack(**boxed, **addresses, **{**members, **there}, **worded.values)

        text = self._around(op, tensors, struct, worded, headed)
        early, tile = (*self.streamed, *self.early), partial(self._tile, headed)
        return WalkBody(
            text,
            struct,
            (),
            tile,
            pack,
            _any,
            most_warpgroups=self.most_warpgroups,
            chunked=False,
            early=early,
            resident=self._resident(op, tensors),
            late=self.late,
            wide=self.wide,
            filled=tuple(name for name, _ in self.filled),
        )

    def _boxes(self, op: Op, pointers: Mapping[str, str]) -> dict[str, int]:
        """Rows of a box, by argument."""
        found = {} if self.boxes is None else self.boxes(op)
        check_type(found, Mapping, f"op {op.name!r}", "boxes")
        for name, count in found.items():
            if name not in pointers or not 1 <= whole(count, f"op {op.name!r}", f"boxes[{name!r}]") <= BOX_ROWS:
                raise ParamError(
                    f"op {op.name!r}: boxes of {shown(count)} rows of {name!r}; give 1 to {BOX_ROWS} rows of one of "
                    f"{[*pointers]}"
                )
        return dict(found)

    def _resident(self, op: Op, tensors: Mapping[str, Tensor]) -> Resident | None:
        """What may lie in shared memory: a vector that has an element for every ``tile.i``, and not too many."""
        shape = tensors[self.resident].shape if self.resident in tensors else ()
        kept = len(shape) == 1 and op.grid[0] <= shape[0] <= _MOST_RESIDENT
        return Resident(self.resident, shape[0]) if kept else None

    def _tile(self, headed: bool, op: Op, parts: int, warpgroups: int) -> WalkTile:
        if parts > 1:
            raise PlanError(f"op {op.name!r} is split, and its text computes whole tiles; plan it with Whole()")
        scratch = _size(op, "scratch_bytes", self.scratch_bytes, "{} bytes of scratch")
        of_warpgroup = -(-scratch // (warpgroups * _ALIGN)) * _ALIGN
        stage = -(-_size(op, "stage_bytes", self.stage_bytes, "a stage of {} bytes") // _SLOT) * _SLOT
        independent, dependent = (0, stage) if self.late else (stage, 0)
        header = 0
        if headed and self.header_bytes is not None:
            own = _size(op, "header_bytes", self.header_bytes, "a header of {} bytes")
            header = -(-(_ALIGN + own) // _LINE) * _LINE
        return WalkTile(_TYPE, (), independent, dependent, of_warpgroup, 0, 0, header_bytes=header)

    def _around(self, op: Op, tensors: Mapping[str, Tensor], struct: Struct, worded: Worded, headed: bool) -> str:
        """The text with what the op gives it before, and its type in the launch behind."""
        first = tensors[op.accesses[0].arg].dtype.name
        nulls = [name for name in self.optional if name not in struct.names]
        null = "".join(f"  static constexpr const {first}* {name} = nullptr;\n" for name in nulls)
        missing = [name for name in self.constants if name not in op.parameters]
        if missing:
            raise ParamError(f"op {op.name!r} lacks params {missing}, which its text takes as constants; give them")
        constants = "".join(f"constexpr {_constant(op, name)};\n" for name in self.constants)
        flags = ((name, str(name in worded.numbers).lower()) for name in (*self.polls, *self.publishes))
        constants += "".join(f"constexpr bool {name}_words = {flag};\n" for name, flag in flags)
        left = (name for name in self.publishes if name in tensors)
        constants += "".join(f"using {name}_element = {tensors[name].dtype.name};\n" for name in left)
        kind, taken = ("Streamed", "Stream") if self.streamed else ("Fetched", "Fetch") if self.late else ("Plain", "")
        loads = f"{_OWN}::{_LOADS}, " if self.loads else ""
        through = f"{kind}<{_OWN}::Arguments, Operands, {loads}"
        through += f"{str(headed).lower()}, " if self.streamed else ""
        through += f"{_OWN}::{self.function}"
        resident = self._resident(op, tensors)
        kept = "" if resident is None else f" typedef {through}, {resident.count}> Resident; "
        # What a text's function takes is in its namespace, so a type of its own that is called so is told where it is.
        types = "".join(f"using {name} = {name};\n" for name in ("Tile", taken) if name)
        types += f"struct Arguments : Operands {{\n{null}}};\n"
        file = re.sub(r"[^\w.-]", "_", op.kernel) + ".cu"
        ahead, behind = macros_end(self.text)
        if self.loads:  # which may take types and macros of the text
            behind = f"using {_LOADS} = {self.loads};\n{behind}"
        # Of a function that does not suit, a compiler tells where it is taken: that is its own line.
        line = line_of(self.text, self.function)
        return (
            f'namespace {_OWN} {{\n{constants}{types}{ahead}#line 1 "{file}"\n{self.text.rstrip()}\n{behind}}}\n'
            f'#line {line} "{file}"\nstruct {_TYPE} : {through}> {{{kept}}};\n{LINES_GO_ON}'
        )


def _size(op: Op, name: str, given: Callable[[Op], int] | None, told: str) -> int:
    """What an attribute gives of an op, in bytes; 0 if it is left out. Raises ParamError for less, and for no int."""
    found = 0 if given is None else whole(given(op), f"op {op.name!r}", name)
    if not 0 <= found < _INT32:
        raise ParamError(f"op {op.name!r}: {told.format(shown(found))}; give 0 or more, below 2^31")
    return found


def _map(value: Any, rows: int, dtype: DType) -> bytes:
    """The tensor map of boxes of so many rows of a tensor, which lies without gaps."""
    from interlace.kernels.cuda.launcher import tensor_map

    *leading, n, d = value.shape
    box = 1, rows, _PANEL_BYTES // dtype.itemsize
    shape, strides = (math.prod(leading), n, d), (n * d, d, 1)
    return tensor_map(value.data_ptr(), shape, strides, box, dtype, swizzled=True, fetched_bytes=_PANEL_BYTES).words


def _any(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """A text takes any tensors."""


def _pointers(op: Op, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The C++ type of each argument."""
    written = {access.arg for access in op.writes}
    names = dict.fromkeys(access.arg for access in op.accesses)
    return {name: f"{'' if name in written else 'const '}{tensors[name].dtype.name}*" for name in names}


def _kind(op: Op, name: str, value: Param) -> str:
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT:
            raise ParamError(f"op {op.name!r} has {name} {value!r}, and a float of CUDA C++ ends at {_FLOAT:.7g}")
        return "float"
    if not -_INT64 <= int(value) < _INT64:
        raise ParamError(f"op {op.name!r} has {name} {value!r}, and an integer of CUDA C++ has 64 bits")
    return "int" if -_INT32 <= int(value) < _INT32 else "long long"


def _constant(op: Op, name: str) -> str:
    value = op.param(name)
    if isinstance(value, str) or not math.isfinite(value):
        raise ParamError(f"op {op.name!r} has {name} {value!r}, which is no constant of a text; give a finite number")
    kind = _kind(op, name, value)
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, float):
        # What float32 has no number for is 0 or the least there is, where a compiler would stop.
        return f"float {name} = {value if abs(value) >= _LEAST else c_float(value).value!r}f"
    return f"{kind} {name} = {value}{'ll' if kind != 'int' else ''}"
