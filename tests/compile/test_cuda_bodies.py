"""CUDA source in the megakernel compiles and keeps the memory order; errors have the source's own lines."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import pytest

import interlace as il
from interlace.core.errors import ArgumentError, CompileError, ParamError, PlanError
from interlace.csrc import expand
from interlace.kernels import cuda_source
from interlace.kernels.cuda_source import is_name
from interlace.kernels.lint import lint
from interlace.megakernel.compose import PREAMBLE
from interlace.megakernel.constants import KEEPS

from ..cuda_bodies import GUARD, NORM, NORM_TEXT, chain, norm
from ..thorough import some


def launch(graph: il.Graph, **schedule: object) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(il.build(graph, il.Schedule(132, **schedule)), il.RunOptions("meta"))


def alone(walk: il.CudaBody, params: dict[str, object] | None = None) -> il.Graph:
    """Build a graph of one op with the given CUDA source."""
    (m, n), (i,) = (16, 128), il.axes(1)
    x, y = (il.Tensor(name, (m, n), il.bf16) for name in "xy")
    op = replace(NORM, name="my norm", megakernel=walk).make_op(
        "mine",
        (2,),
        {"x": (x, (i.block(8), il.ALL))},
        {"y": (y, (i.block(8), il.ALL))},
        params={"M": m, "N": n, "BM": 8, "eps": 1e-5, **(params or {})},
    )
    return il.Graph("alone", (x, y), (op,), ("x",), ("y",))


TEXT = NORM.megakernel
OFTEN = (il.Dispatch.STATIC, 8), (il.Dispatch.HYBRID, 4), (il.Dispatch.DISPATCHER, 8)


@pytest.mark.parametrize(
    "case", some(product(il.Dispatch, (4, 8)), OFTEN.__contains__), ids=lambda case: f"{case[0].value}-{case[1]}"
)
def test_texts_and_products_in_one_launch_keep_the_memory_order(case: tuple[il.Dispatch, int]) -> None:
    dispatch, warps = case
    run = launch(chain(256, il.MatmulTile(128, 64, 64, num_warps=warps)), dispatch=dispatch)
    assert run.binary.resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []
    codes = run._table.items["code"]
    assert sorted(set((codes % KEEPS).tolist())) == [0, 1, 2]
    assert bool((codes >= KEEPS).any()) == (dispatch in (il.Dispatch.STATIC, il.Dispatch.TICKET, il.Dispatch.HYBRID))
    assert (run._table.waits["threshold"] == run.plan.waits.threshold).all()


def test_ops_share_the_code_of_a_text_unless_constants_or_dtypes_differ() -> None:
    dtypes = {"x": il.bf16, "y": il.bf16, "z": il.bf16, "w": il.bf16, "half": il.fp16, "v": il.bf16}
    t = {name: il.Tensor(name, (64, 128), dtype) for name, dtype in dtypes.items()}
    ops = (
        norm("same", t["x"], t["y"]),
        norm("too", t["y"], t["z"]),
        norm("taller", t["z"], t["w"], bm=16),
        norm("fp16", t["half"], t["v"]),
    )
    run = launch(il.Graph("norms", (*t.values(),), ops, ("x", "half"), ("w", "v")))
    items = run._table.items
    assert [set(items["code"][items["op"] == o] % KEEPS) for o in range(4)] == [{0}, {0}, {1}, {2}]


def test_copies_alone_make_a_launch_without_slots() -> None:
    run = launch(il.workloads.two_copies(300, 400, il.fp32))
    assert run.composition.stages == 4
    assert run.composition.shared_bytes < 1024
    assert lint(run.binary.ptx, posts=True, waits=True, posting_warp=True) == []


def test_a_text_that_does_not_compile_is_told_with_its_own_lines() -> None:
    wrong = NORM_TEXT.replace("float squares = 0.0f;", "float squares = none;")
    line = 1 + wrong[: wrong.index("none")].count("\n")
    run = launch(alone(replace(TEXT, source=wrong)))
    with pytest.raises(CompileError, match=rf'my_norm\.cu\({line}\): error: identifier "none" is undefined'):
        _ = run.binary


def test_of_what_ptxas_refuses_the_line_of_ptx_is_told() -> None:
    wrong = NORM_TEXT.replace("float squares = 0.0f;", 'float squares = 0.0f; asm volatile("nonsense.instr;");')
    with pytest.raises(CompileError, match=r"line \d+; error +: [^\n]* 'nonsense', in 'nonsense.instr;'\n"):
        _ = launch(alone(replace(TEXT, source=wrong))).binary


_HEAD = "DEVICE void norm_rows(const Tile& tile, const Arguments& a) {"


@pytest.mark.parametrize(
    "head",
    [
        _HEAD.replace(", const Arguments& a", ""),
        _HEAD.replace("const Tile& tile, const Arguments& a", "const Arguments& a, const Tile& tile"),
        _HEAD.replace("Arguments&", "int&"),
        f"template <int N> {_HEAD}",
        f"struct Tile {{}};  {_HEAD}",
        f"struct Arguments {{}};  {_HEAD}",
    ],
)
def test_a_function_that_does_not_suit_is_told_with_its_own_line(head: str) -> None:
    """Nothing that joins or splits lines before the function shifts its line number."""
    before = "// \\\nvoid norm_rows(\n/*\n*/\n#line 0\n\f// two \\\n\\\nlines\x85\n#line 9\n"
    run = launch(alone(replace(TEXT, source=f"{before}{head}}}\n")))
    with pytest.raises(CompileError) as caught:
        _ = run.binary
    line = 9 if head.startswith("struct") else 1 + before.count("\n")
    assert f"my_norm.cu({line}): error" in str(caught.value)
    assert "\0" not in str(caught.value)


def test_loads_may_be_made_of_types_and_macros_of_their_text() -> None:
    text = r"""
#define ELEMENTS bf16
template <class T> struct Rows {
  static constexpr int STAGES_OF_TILE = 1;
  DEVICE Rows(const Tile& tile, const Arguments& a) {}
  DEVICE unsigned bytes(int n) const { return 0; }
  DEVICE void load(int n, unsigned target, unsigned barrier) const {}
};
DEVICE void norm_rows(const Tile& tile, const Arguments& a, Fetch& fetch) {
  fetch.next();
  fetch.done();
}
"""
    ring = il.RingStage("Rows<ELEMENTS>", post_wait_inputs=("x",), stage_bytes=lambda op: 64)
    body = il.CudaBody(text, "norm_rows", loads=il.CudaLoads(ring=ring))
    assert launch(alone(body)).binary.warnings == ()


def test_of_functions_called_alike_the_one_that_takes_a_tile_is_told() -> None:
    other = "DEVICE void norm_rows(float) {}\n#if 0\nvoid norm_rows(\n#endif\n"
    body = il.CudaBody(f"DEVICE void norm_rows(const Tile& tile, int a) {{}}\n{other}", "norm_rows")
    with pytest.raises(CompileError, match=r"my_norm\.cu\(1\): error"):
        _ = launch(alone(body)).binary


def test_a_long_line_is_looked_at_once() -> None:
    """The line is scanned only from its beginning; a scan from each position would take minutes."""
    il.CudaBody(f"{NORM_TEXT}// {'x' * 200_000}\n", "norm_rows")
    text = "one \\\ntwo \\\nthree\nfour \\\nfive"
    found = [at for at in range(len(text)) if cuda_source._CONTINUED_LINES.match(text, at)]
    assert found == [0, text.index("two"), text.index("four")]


def test_behind_a_text_lines_count_on_whatever_stands_in_it() -> None:
    text = launch(alone(replace(TEXT, source=f"#line 0\n// \f\v \x85 \u2028 \r\n{NORM_TEXT}"))).composition.source
    _, line, behind = re.split(r'^#line (\d+) "one_launch.cu"\n', text, flags=re.MULTILINE)
    assert int(line) == text[: -len(behind)].count("\n") + 1


def test_types_and_functions_of_a_text_are_its_own_whatever_the_launch_has() -> None:
    types = "Plain Walked Operands Streamed Fetched Launch Item Stage own text body0 THREADS_OF".split()
    own = "".join(f"struct {name} {{ int {name.lower()}; }};\n" for name in types)
    own += "DEVICE int release(const Operands& o) { return o.operands; }\n"
    assert launch(alone(replace(TEXT, source=own + NORM_TEXT))).binary.warnings == ()


@pytest.mark.parametrize("define", ["/* stages */ #define STAGES 1", "#define/**/STAGES 1", "#\\\ndefine STAGES 1"])
def test_a_macro_written_strangely_ends_with_its_text_too(define: str) -> None:
    """The rest of the launch has its own number of stages."""
    plain = launch(alone(replace(TEXT, source=NORM_TEXT))).composition.source
    run = launch(alone(replace(TEXT, source=f"{define}\n{NORM_TEXT}")))
    assert "#undef STAGES" in run.composition.source
    assert "#undef STAGES" not in plain


def test_a_constant_below_what_float32_holds_is_a_number_of_it() -> None:
    for small in (1e-50, -1e-40, 0.0):
        text = replace(TEXT, constants=(*TEXT.constants, "tiny"))
        assert launch(alone(text, {"tiny": small})).binary.warnings == ()


_GUARDED = GUARD.replace("DEVICE", "{0}").replace("__device__", "{1}")


@pytest.mark.parametrize(
    "defines",
    [
        "#define rsqrtf(x) (x)\n#define DEVICE_HALF\n",
        "#undef DEVICE_HALF\n#define DEVICE_HALF 1\n",
        GUARD,
        _GUARDED.format("__device__", "") + _GUARDED.format("NULL", "0") + _GUARDED.format("offsetof", "0"),
        "#undef DEVICE\n#define DEVICE __device__ inline\n",
        "#define DEVICE __device__ inline\n",
    ],
)
def test_macros_of_a_text_end_with_it_and_those_of_the_launch_do_not(defines: str) -> None:
    first = defines + NORM_TEXT
    second = "#if defined(rsqrtf) || defined(DEVICE_HALF) || !defined(NULL)\n#error they go on\n#endif\n" + NORM_TEXT
    second += "#define TEXT(x) #x\n#define TEXT_OF(x) TEXT(x)\nstatic_assert(sizeof(TEXT_OF(DEVICE)) > 20);\n"
    x, y, z = (il.Tensor(name, (16, 128), il.bf16) for name in "xyz")
    ops = []
    for name, text, into, out in (("first", first, x, y), ("second", second, y, z)):
        op = norm(name, into, out)
        ops.append(replace(op, kernel=name, body=replace(NORM, name=name, megakernel=replace(TEXT, source=text))))
    run = launch(il.Graph("macros", (x, y, z), tuple(ops), ("x",), ("z",)))
    told = 'first.cu(1): warning #47-D: incompatible redefinition of macro "DEVICE"'
    assert [warning for warning in run.binary.warnings if not warning.startswith(told)] == []


def stream(**ring: object) -> il.CudaLoads:
    """Build the loads of a source to which x streams through the ring."""
    return il.CudaLoads(ring=il.RingStage("Loads", streamed_inputs=("x",), **ring))


def test_a_text_that_fits_no_shared_memory_or_registers_is_refused_before_a_launch() -> None:
    for more, told in (
        ({"scratch_bytes": lambda op: 232448}, "232448 bytes for its scratch, so give it smaller tiles, or its text"),
        (
            {"loads": stream(stage_bytes=lambda op: 1 << 17)},
            "262144 bytes for the slots of two stages, so give it smaller tiles$",
        ),
        (
            {"loads": stream(header_bytes=lambda op: 1 << 17, header_inputs=("x",), stage_bytes=lambda op: 64)},
            "262400 bytes for the headers of two stages, so give",
        ),
    ):
        with pytest.raises(PlanError, match=f"232448 do not hold two of them; op 'mine' takes {told}"):
            launch(alone(replace(TEXT, **more)))
    greedy = r"""
    DEVICE void norm_rows(const Tile& tile, const Arguments& a) {
      float v[420];
    #pragma unroll
      for (int i = 0; i < 420; ++i) v[i] = sqrtf(widened(a.x[i]));
      synchronise_block();
    #pragma unroll
      for (int i = 0; i < 420; ++i) a.y[i] = rounded<bf16>(v[i]);
    }
    """
    with pytest.raises(CompileError, match="my norm does not fit the registers: a thread has 1020 bytes"):
        _ = launch(alone(replace(TEXT, source=greedy))).binary
    deep = r"""
    DEVICE void norm_rows(const Tile& tile, const Arguments& a) {
      float v[1 << 18];
      for (int i = 0; i < 1 << 18; ++i) v[i] = widened(a.x[i % 64]);
      for (int i = thread(); i < 64; i += THREADS) a.y[i] = rounded<bf16>(v[(int)v[i] & 0x3ffff]);
    }
    """
    with pytest.raises(CompileError, match="my norm keeps 1048576 bytes of each thread in local memory"):
        _ = launch(alone(replace(TEXT, source=deep))).binary


def test_what_no_text_takes_is_refused() -> None:
    with pytest.raises(ParamError, match=r"defines no function 'nothing'; write DEVICE void nothing\(const Tile& tile"):
        il.CudaBody(NORM_TEXT, "nothing")
    with pytest.raises(ArgumentError, match="constants"):
        il.CudaBody(NORM_TEXT, "norm_rows", constants="BM")
    for struct, inputs in (("", {"streamed_inputs": ("x",)}), ("Loads", {})):
        with pytest.raises(ParamError, match="name the struct of the source that defines the loads, and give inputs"):
            il.RingStage(struct, **inputs)
    with pytest.raises(ParamError, match="give inputs of one kind"):
        il.RingStage("Loads", streamed_inputs=("x",), post_wait_inputs=("y",))
    with pytest.raises(ParamError, match=r"op 'mine' lacks params \['depth'\]"):
        launch(alone(replace(TEXT, constants=("depth",))))
    with pytest.raises(ParamError, match="op 'mine' has kind 'wide', which is no constant of a text"):
        launch(alone(replace(TEXT, constants=("kind",)), {"kind": "wide"}))
    with pytest.raises(ParamError, match=r"has depth 1180591620717411303424, and an integer of CUDA C\+\+ has 64"):
        launch(alone(replace(TEXT, constants=("depth",)), {"depth": 2**70}))
    with pytest.raises(ParamError, match=r"has heat 1e\+300, and a float of CUDA C\+\+ ends at 3\.402823e\+38"):
        launch(alone(TEXT, {"heat": 1e300}))
    with pytest.raises(ParamError, match=r"has no arguments \['w'\], which its text reads ahead; it has \['x'"):
        launch(alone(replace(TEXT, loads=il.CudaLoads(pre_wait_inputs=("w",)))))
    with pytest.raises(ArgumentError, match=r"scratch_bytes is 64; give a function of the op, scratch_bytes=lambda"):
        il.CudaBody(NORM_TEXT, "norm_rows", scratch_bytes=64)
    with pytest.raises(ArgumentError, match="op 'mine': scratch_bytes is 'x'; write a whole number"):
        launch(alone(replace(TEXT, scratch_bytes=lambda op: "x")))
    with pytest.raises(ArgumentError, match="max_count is 4; use 2 or 3"):
        il.Warpgroups(max_count=4)
    with pytest.raises(ArgumentError, match="CudaBody: loads"):
        il.CudaBody(NORM_TEXT, "norm_rows", loads=("x",))
    for part, more in ((il.CudaLoads, {"pre_wait_inputs": "x"}), (il.RingStage, {"struct": "S", "header_inputs": "x"})):
        with pytest.raises(ArgumentError, match=rf"{part.__name__}: {[*more][-1]} .*'x',"):
            part(**more)
    with pytest.raises(ArgumentError, match=r"CudaLoads: short_inputs is .*; give pairs, such as \(\('x', 'M'\),\)"):
        il.CudaLoads(short_inputs=(("x",),))
    header = {"header_inputs": ("x",), "header_bytes": lambda op: 16}
    with pytest.raises(ParamError, match="a header comes with streamed inputs, and has both arguments and a size"):
        il.RingStage("Loads", post_wait_inputs=("x",), **header)
    with pytest.raises(ParamError, match="has both arguments and a size"):
        stream(**{**header, "header_inputs": ()})
    with pytest.raises(ParamError, match=r"has no arguments \['w'\], which its text reads ahead"):
        launch(alone(replace(TEXT, loads=stream(**{**header, "header_inputs": ("w",)}))))
    with pytest.raises(ParamError, match="op 'mine': a header of -16 bytes; give 0 or more"):
        launch(alone(replace(TEXT, loads=stream(**{**header, "header_bytes": lambda op: -16}))))
    with pytest.raises(ArgumentError, match=r"op 'mine': header_bytes is 1\.5; write a whole number"):
        launch(alone(replace(TEXT, loads=stream(**{**header, "header_bytes": lambda op: 1.5}))))
    with pytest.raises(ParamError, match="op 'mine': an int of 16,610 bits bytes of scratch; give 0 or more, below 2"):
        launch(alone(replace(TEXT, scratch_bytes=lambda op: 10**5000)))
    for stage, message in ((None, "stage_bytes is None"), (1.5, "stage_bytes is 1.5"), (-5, "a stage of -5 bytes")):
        with pytest.raises((ArgumentError, ParamError), match=f"op 'mine': {message}"):
            launch(alone(replace(TEXT, loads=stream(stage_bytes=lambda op, stage=stage: stage))))
    for boxes, message in (
        (3, "box_rows is 3"),
        ({"x": 0}, "boxes of 0 rows of 'x'; give 1 to 256 rows"),
        ({"x": 300}, "boxes of 300"),
        ({"zz": 3}, "boxes of 3 rows of 'zz'"),
        ({"x": "a"}, r"box_rows\['x'\] is 'a'"),
    ):
        with pytest.raises((ArgumentError, ParamError), match=f"op 'mine': {message}"):
            launch(alone(replace(TEXT, loads=stream(box_rows=lambda op, boxes=boxes: boxes))))
    for more, message in (
        ("\udcff", "no UTF-8 at its"),
        ("\0", "has a NUL"),
        ("__shared__ float a;", "scratch<T>"),
        ("__global__ void mine() {}", "has a __global__ kernel"),
        ("DEVICE void meet() { __syncthreads(); }", r"has __syncthreads, .* call synchronise_block\(\) instead"),
        ("DEVICE int count() { return __syncthreads_count(1); }", "has __syncthreads_count, at which all threads"),
        ("DEVICE void meet() { __barrier_sync(0); }", "has __barrier_sync, at which all threads"),
        ('DEVICE void meet() { asm volatile("bar.sync 0;"); }', "has bar.sync 0, at which all threads"),
        ('DEVICE void meet() { asm("{ barrier.cta.sync.aligned 0; }"); }', "has barrier.cta.sync.aligned 0, at"),
        ('DEVICE void meet() { asm("bar.sync "\n"\\t0;"); }', "has bar.sync  0, at"),
        ("// and so on \\", "ends in a backslash"),
        ("}", "closes 1 braces more than it opens"),
        ("namespace mine {", "opens 1 braces more than it closes"),
    ):
        with pytest.raises(ParamError, match=message):
            il.CudaBody(f"{NORM_TEXT}{more}", "norm_rows")
    il.CudaBody(NORM_TEXT + '// no __shared__ {\n/* "__shared__" {\n */', "norm_rows")
    il.CudaBody(NORM_TEXT + "#if 1\nnamespace a {\n#else\nnamespace b {\n#endif\n}\n", "norm_rows")
    il.CudaBody(NORM_TEXT + "DEVICE char open() { return '{'; }\n", "norm_rows")
    il.CudaBody(NORM_TEXT + '// no __syncthreads() or asm("bar.sync 0;")\n', "norm_rows")
    meet = 'DEVICE void meet(int n) { asm volatile("bar.sync %0, 64;" ::"r"(n)); }\n'
    il.CudaBody(NORM_TEXT + meet + 'constexpr const char* told = "__syncthreads";\n', "norm_rows")
    for unseen in (
        'static_assert(true, "call no bar.sync 0; here");\n',
        'DEVICE void meet() { asm volatile("// no bar.sync 0; here\\n"); }\n',
        '// say \\\n"asm(bar.sync 0;)"\n',
        "#define __syncthreads synchronise_block\nDEVICE void meet() { __syncthreads(); }\n",
        "#ifdef ALONE\nDEVICE void meet() { __syncthreads(); }\n#endif\n",
        "DEVICE void meet() { __syncthreads_or_not(); }\n",
    ):
        il.CudaBody(NORM_TEXT + unseen, "norm_rows")
    strings = 'R"(a"b{)", u8R"x(}}} )" // )x", LR"(\n{\n)"'
    il.CudaBody(f"{NORM_TEXT}constexpr const char* texts[] = {{{strings}}};\n", "norm_rows")
    for function in ("norm_rows_", "", "norm rows", "*", "nothing"):
        with pytest.raises(ParamError, match="the text of a CudaBody defines no function"):
            il.CudaBody("// void nothing()\n/* void nothing() {} */\n" + NORM_TEXT, function)
    for macro in ("define SHARED_BASE 0", "undef ELEMENT", " define ELEMENT_PTX"):
        with pytest.raises(ParamError, match=rf"the macros \['{macro.split()[1]}'\] of the launch; rename them"):
            il.CudaBody(f"#{macro}\n{NORM_TEXT}", "norm_rows")
    with pytest.raises(ParamError, match="CUDA C\\+\\+ has no name 'a b'"):
        launch(alone(TEXT, {"a b": 1}))
    for name in ("int", "register", "DEVICE", "bf16", "Tile", "Operands", "__global__"):
        with pytest.raises(ParamError, match=f"CUDA C\\+\\+ has no name '{name}'"):
            launch(alone(TEXT, {name: 1}))
        with pytest.raises(ParamError, match=f"CUDA C\\+\\+ has no name '{name}'"):
            launch(alone(replace(TEXT, optional_args=(name,))))
    with pytest.raises(ParamError, match="CUDA C\\+\\+ has no name ''"):
        launch(alone(replace(TEXT, optional_args=("",))))
    with pytest.raises(ParamError, match="op 'mine': its text defines norm_rows, so no constant is called so"):
        launch(alone(replace(TEXT, constants=("norm_rows",)), {"norm_rows": 1}))
    launch(alone(TEXT, {"lambda": 1}))
    with pytest.raises(ParamError, match=r"both arguments and params \['x'\]"):
        launch(alone(TEXT, {"x": 1}))


@pytest.mark.parametrize("graph", [chain(17, il.MatmulTile(24, 64, 64, swap_ab=True)), alone(TEXT)])
def test_no_param_is_called_as_a_macro_of_the_launch(graph: il.Graph) -> None:
    text = expand(PREAMBLE) + launch(graph).composition.expanded_text
    macros = {*re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE)}
    assert {"DEVICE", "SHARED_BASE", "ELEMENT"} <= macros
    assert [name for name in sorted(macros) if is_name(name)] == []


def test_a_proof_says_that_it_rests_on_the_texts_of_users() -> None:
    proof = il.verify(il.build(chain(64, il.MatmulTile(64, 64, 64)), il.Schedule(4)))
    assert proof.unproved_ops == ("norm",)
    assert str(proof).endswith("no race, provided that op 'norm' touches what its access maps say, which is not proved")
    assert str(il.verify(il.build(il.workloads.two_copies(64, 64), il.Schedule(4)))).endswith("no deadlock, no race")
