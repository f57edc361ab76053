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
signals through the ring (``csrc/ring/plain.cuh``). ``cuda_loads`` declares inputs that come through the ring.
'''

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from interlace.core.arguments import check_type
from interlace.core.dtypes import DType
from interlace.core.errors import ParamError, PlanError
from interlace.csrc import expand
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.bodies import LL_WORD, NO_LL, LLTensors, MegakernelTile, check_alignment
from interlace.kernels.cuda_arguments import declare_pointers, declare_type, define_constant
from interlace.kernels.cuda_loads import CudaLoads, evaluate_bytes
from interlace.kernels.cuda_source import check_source, find_line, is_name, isolate_macros
from interlace.kernels.megakernel_body import (
    ANY_WARPGROUPS,
    LLArguments,
    LLSupport,
    MegakernelBody,
    MegakernelLoads,
    Tiling,
    Warpgroups,
    check_functions,
    check_names,
)

#: C++ type of a CUDA source's tile, and namespace of its definitions; each namespace of a launch has both.
_TILE_TYPE, _NAMESPACE = "Walked", "own"
_LOADS_NAME = "loads_of_walked"  # name by which code outside the source refers to its loads
#: Marker after a CUDA source, which no source contains; composition inserts the line number there.
LINE_DIRECTIVE = "#line \0\n"
_ALIGN = 16

#: Loads of a source all of whose loads are plain loads after the item's waits, and LL arguments of one without any.
_PLAIN_LOADS, _NO_LL_ARGUMENTS = CudaLoads(), LLArguments()


@dataclass(frozen=True)
class CudaBody:
    """CUDA C++ source of a tile, for the megakernel.

    Nothing proves what the source does: proofs trust its op's access maps and report that (``Proof.unproved_ops``).

    For LL arguments, the constant ``<name>_words`` is true if the op uses the LL protocol for them. Then ``a.<name>``
    points to words, without a copy in the tensor, and ``a.<name>_number`` is their epoch, of ``a.publications`` epochs
    in a run.

    Attributes:
        source: CUDA source that defines ``function`` and everything that it needs, in a separate namespace.
        function: ``DEVICE void function(const Tile& tile, const Arguments& a)``.
        constants: names of params that are ``constexpr`` in the source instead of members of ``Arguments``; ops with
            different values have separate code.
        optional_args: names of arguments that an op may lack: they are null pointers, known at compile time.
        scratch_bytes: op -> bytes of shared memory for all threads of the block together, see ``scratch``.
        loads: inputs that are read before the item's waits or through the ring; by default there are none.
        warpgroups: warpgroups that may process a tile; products of a launch may have three.
        ll: arguments that the source can read or write as LL words instead.
        is_proved: True if the source belongs to the package, whose tests check it against its op's access maps.
            Everything that such a source reads affects what it publishes.

    Raises:
        ArgumentError: an attribute of another type.
        ParamError: a source that does not define the function.
    """

    source: str
    function: str
    constants: tuple[str, ...] = ()
    optional_args: tuple[str, ...] = ()
    scratch_bytes: Callable[[Op], int] | None = None
    loads: CudaLoads = _PLAIN_LOADS
    warpgroups: Warpgroups = ANY_WARPGROUPS
    ll: LLArguments = _NO_LL_ARGUMENTS
    is_proved: bool = False

    def __post_init__(self) -> None:
        kinds = {"source": str, "function": str, "loads": CudaLoads, "warpgroups": Warpgroups, "ll": LLArguments}
        for name, kind in kinds.items():
            check_type(getattr(self, name), kind, "CudaBody", name)
        check_names(self, "constants", "optional_args")
        check_functions(self, "scratch_bytes")
        check_source(expand(self.source))
        if not find_line(expand(self.source), self.function):
            raise ParamError(
                f"the text of a CudaBody defines no function {self.function!r}; write DEVICE void {self.function}"
                "(const Tile& tile, const Arguments& a) {...}, or give the name of the one that it defines"
            )

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""
        return self.warpgroups.max_count

    def build_megakernel_body(
        self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str] = frozenset()
    ) -> MegakernelBody:
        """Return an op's body in the megakernel; see ``MegakernelBodyFactory``.

        Raises:
            ParamError: a name that is invalid in C++, a constant that the op lacks, or a param that is not a number.
        """
        return self._build_body(op, tensors, NO_LL)

    def _build_body(self, op: Op, tensors: Mapping[str, Tensor], ll_tensors: LLTensors) -> MegakernelBody:
        """Build an op's body, some of whose arguments use the LL protocol."""
        pointers = declare_pointers(op, tensors)
        pointers |= {name: f"{'const ' * pointers[name].startswith('const ')}{LL_WORD}*" for name in ll_tensors.epochs}
        numbers = {name: value for name, value in op.params if not isinstance(value, str)}
        members = {name: value for name, value in numbers.items() if name not in self.constants}
        self._check_op(op, [*pointers], [*members])
        loads, ring = self.loads, self.loads.ring
        rows = {} if ring is None else ring.compute_box_rows(op, pointers)
        headed = ring is not None and ring.has_header and ll_tensors.epochs.keys().isdisjoint(self.ll.inputs)
        maps = tuple((f"{name}_boxes", TENSOR_MAP) for name in rows)
        kinds = ((name, declare_type(op, name, value)) for name, value in members.items())
        struct = Struct("Operands", (*maps, *pointers.items(), *kinds, *ll_tensors.operand_fields))

        def pack(op: Op, given: Mapping[str, Any], dtype: DType) -> bytes:
            from interlace.kernels.cuda.launcher import encode_row_boxes

            headers = (name for name in loads.header_inputs if headed and name in given)
            for name in (*loads.streamed_inputs, *headers):
                check_alignment(op.name, name, given[name].data_ptr(), _ALIGN, "bulk copies want")
            for name in (name for name in loads.paired_inputs if name in given):
                pair = 2 * given[name].element_size()
                check_alignment(op.name, name, given[name].data_ptr(), pair, "it is taken by pairs, at")
            boxed = {
                f"{name}_boxes": encode_row_boxes(given[name], count, tensors[name].dtype)
                for name, count in rows.items()
            }
            addresses = {name: given[name] for name in pointers}
            present = {param: given[name].shape[0] for name, param in loads.short_inputs}
            return struct.pack(**boxed, **addresses, **{**members, **present}, **ll_tensors.operand_values)

        return MegakernelBody(
            self._wrap_source(op, tensors, struct, ll_tensors, headed),
            struct,
            pack,
            Tiling(partial(self._build_tile, headed), self.warpgroups),
            MegakernelLoads(
                loads.inputs_before_waits, loads.short_inputs, loads.resident_input, loads.evict_first_inputs
            ),
            LLSupport(
                self.ll.select(self.ll.inputs, op, tensors),
                self.ll.select(self.ll.outputs, op, tensors),
                needs_reads=self.is_proved,
                build_body=partial(self._build_body, op, tensors),
            ),
        )

    def _check_op(self, op: Op, args: list[str], members: list[str]) -> None:
        """Raise ParamError unless an op has names that the source can use, and the arguments of its loads."""
        for name in (*args, *members, *self.constants, *self.optional_args, *self.ll.inputs, *self.ll.outputs):
            if not is_name(name):
                raise ParamError(f"op {op.name!r}: CUDA C++ has no name {name!r}; rename the argument or param")
        defined = [self.function, *([] if self.loads.ring is None else [self.loads.ring.struct])]
        if {*defined} & {*self.constants}:
            names = " and ".join(defined)
            raise ParamError(f"op {op.name!r}: its text defines {names}, so no constant is called so; rename one")
        ahead = {*self.loads.inputs_before_waits, *self.loads.header_inputs}
        unknown = sorted(ahead - {*args, *self.optional_args})
        if unknown and not self.is_proved:
            raise ParamError(f"op {op.name!r} has no arguments {unknown}, which its text reads ahead; it has {args}")
        clash = sorted({*args} & {*members})
        if clash:
            raise ParamError(f"op {op.name!r} has both arguments and params {clash}; a text wants a name for each")
        strange = [pair for pair in self.loads.short_inputs if pair[0] not in args or pair[1] not in members]
        if strange:
            raise ParamError(
                f"op {op.name!r}: short_inputs={strange} names no argument with a param that is no constant; it has "
                f"{args} and {members}"
            )
        both = [name for name in self.loads.short_names if name in self.ll.inputs]
        if both:
            raise ParamError(
                f"op {op.name!r}: {both} are short inputs and LL inputs; LL words are of all rows, so leave out one"
            )

    def _build_tile(self, headed: bool, op: Op, parts: int, warpgroups: int) -> MegakernelTile:
        if parts > 1:
            raise PlanError(f"op {op.name!r} is split, and its text computes whole tiles; plan it with WholeTiles()")
        scratch = evaluate_bytes(op, "scratch_bytes", self.scratch_bytes, "{} bytes of scratch")
        of_warpgroup = -(-scratch // (warpgroups * _ALIGN)) * _ALIGN
        ring = self.loads.ring
        prefetchable, dependent = (0, 0) if ring is None else ring.compute_slots(op)
        header = ring.compute_header_bytes(op) if ring is not None and headed else 0
        return MegakernelTile(_TILE_TYPE, (), prefetchable, dependent, of_warpgroup, 0, 0, header_bytes=header)

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
        constants = "".join(define_constant(op, name) for name in self.constants)
        flags = ((name, str(name in worded.epochs).lower()) for name in (*self.ll.inputs, *self.ll.outputs))
        constants += "".join(f"constexpr bool {name}_words = {flag};\n" for name, flag in flags)
        left = (name for name in self.ll.outputs if name in tensors)
        constants += "".join(f"using {name}_element = {tensors[name].dtype.name};\n" for name in left)
        ring = self.loads.ring
        kind, taken = ("Plain", "") if ring is None else ring.types
        loads = "" if ring is None else f"{_NAMESPACE}::{_LOADS_NAME}, "
        through = f"{kind}<{_NAMESPACE}::Arguments, Operands, {loads}"
        through += f"{str(headed).lower()}, " if self.loads.streamed_inputs else ""
        through += f"{_NAMESPACE}::{self.function}"
        resident = self.loads.find_resident_vector(op, tensors)
        kept = "" if resident is None else f" typedef {through}, {resident.count}> Resident; "
        # Alias the types that the function takes, so that a type of the same name in the source is reported at its
        # own line.
        types = "".join(f"using {name} = {name};\n" for name in ("Tile", taken) if name)
        types += f"struct Arguments : Operands {{\n{null}}};\n"
        file = re.sub(r"[^\w.-]", "_", op.kernel) + ".cu"
        ahead, behind = isolate_macros(expand(self.source))
        if ring is not None:  # the struct may use types and macros of the source
            behind = f"using {_LOADS_NAME} = {ring.struct};\n{behind}"
        # The compiler reports an unsuitable function where it is used; map that to the function's own line.
        line = find_line(self.source, self.function) or 1
        return (
            f'namespace {_NAMESPACE} {{\n{constants}{types}{ahead}#line 1 "{file}"\n'
            f"{self.source.rstrip()}\n{behind}}}\n"
            f'#line {line} "{file}"\nstruct {_TILE_TYPE} : {through}> {{{kept}}};\n{LINE_DIRECTIVE}'
        )


@dataclass(frozen=True)
class CudaVariants:
    """CUDA sources that compute the ops of one kernel, chosen by op.

    Attributes:
        default: source for ops that have no other.
        select: op, tensors by argument -> the source that computes the op instead, or None.
    """

    default: CudaBody
    select: Callable[[Op, Mapping[str, Tensor]], CudaBody | None]

    @property
    def is_proved(self) -> bool:
        """True if the sources belong to the package; see ``CudaBody``."""
        return self.default.is_proved

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""
        return self.default.max_warpgroups

    def build_megakernel_body(
        self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str] = frozenset()
    ) -> MegakernelBody:
        """Return an op's body in the megakernel; see ``CudaBody.build_megakernel_body``."""
        return (self.select(op, tensors) or self.default).build_megakernel_body(op, tensors, read_only)
