"""The lint recognises LL words in compiled launches, and finds each way to break them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import interlace as il
from interlace.kernels.cuda.compiler import compile_source
from interlace.kernels.lint import LintFinding, lint
from interlace.megakernel.compose import PREAMBLE
from interlace.workloads import LLAMAS, build_decode_graph

from ..thorough import some

STORE = """  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)),
               "l"(word_of(data, publication))
               : "memory");
"""
LOAD = (
    '  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : '
    '"l"(__cvta_generic_to_global(at)) : "memory");\n'
)
LOAD_TWO = """  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
"""
HALVES = '"r"((int)data), "r"((int)publication) : "memory");\n'
EXACT = "return (unsigned)(word >> 32) == publication;"
#: Replaced source, its replacement, and the rule that finds it, by description.
BROKEN = {
    "stored as a pair of halves": (
        STORE,
        '  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), ' + HALVES,
        "word",
    ),
    "stored half by half": (
        STORE,
        '  asm volatile("st.relaxed.gpu.global.b32 [%0], %1; st.relaxed.gpu.global.b32 [%0 + 4], %2;"\n'
        '               ::"l"(__cvta_generic_to_global(at)), ' + HALVES,
        "word",
    ),
    "stored weakly": (STORE, "  *at = word_of(data, publication);\n", "word"),
    "stored as volatile": (STORE, "  *(volatile unsigned long long*)at = word_of(data, publication);\n", "word"),
    "stored without a number": (STORE, STORE.replace("word_of(data, publication)", "(long long)data"), "word"),
    "loaded as if nobody wrote it": (LOAD, "  word = __ldg(at);\n", "word"),
    "loaded in two as if nobody wrote them": (LOAD_TWO, "  first = __ldg(at), second = __ldg(at + 1);\n", "word"),
    "loaded non-coherently": (LOAD_TWO, LOAD_TWO.replace("relaxed.gpu.global", "global.nc"), "word"),
    "loaded weakly": (LOAD_TWO, LOAD_TWO.replace("relaxed.gpu.global", "global"), "word"),
    "loaded as volatile": (LOAD, "  word = *(const volatile unsigned long long*)at;\n", "word"),
    "loaded as a pair of halves": (
        LOAD,
        "  unsigned data, number;\n"
        '  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"\n'
        '               : "=r"(data), "=r"(number) : "l"(__cvta_generic_to_global(at)) : "memory");\n'
        "  word = word_of(data, number);\n",
        "word",
    ),
    "taken of a later number": (EXACT, EXACT.replace("==", ">="), "polled"),
    "taken of any number": (EXACT, "return true;", "polled"),
    "taken by its data": (EXACT, EXACT.replace("word >> 32", "word"), "polled"),
}


@cache
def launch(
    options: il.RunOptions, dispatch: il.Dispatch | None = None, model: str = "smollm2-135m"
) -> il.MegakernelExecutor:
    """Build a layer for one sequence, as planned or under a dispatch, with LL words of all kinds of tensors."""
    graph = build_decode_graph(replace(LLAMAS[model], layers=1, vocabulary=4096), 1, 1088, il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    plan = plan if dispatch is None else il.build(plan.graph, il.Schedule(132, dispatch))
    return il.MegakernelExecutor(plan, options)


def run_lint(ptx: str) -> list[LintFinding]:
    return lint(ptx, posts=True, waits=True, posting_warp=True, has_ll=True)


OPTIONS = {
    "words": il.RunOptions("meta"),
    "dependent": il.RunOptions("meta", dependent_launch=True),
    "traced": il.RunOptions("meta", trace=True),
}


@pytest.mark.parametrize("options", some([*OPTIONS], lambda name: name == "dependent"))
def test_launches_by_words_store_load_and_look_at_them_whole(options: str) -> None:
    """Loaders poll some words, such as those of ``inner``, and consumers poll others."""
    run = launch(OPTIONS[options], model="llama3.2-1b")
    assert {"q_heads", "parts", "heads", "inner", "x_scaled"} <= run.lowered.ll_edges.sizes.keys()
    assert run_lint(run.binary.ptx) == []


@pytest.mark.parametrize("dispatch", some([il.Dispatch.STATIC, il.Dispatch.TICKET], lambda d: d is il.Dispatch.TICKET))
def test_so_they_do_under_each_dispatch_that_has_words(dispatch: il.Dispatch) -> None:
    run = launch(OPTIONS["words"], dispatch)
    assert {"q_heads", "parts", "heads", "x_scaled"} <= run.lowered.ll_edges.sizes.keys()
    assert run_lint(run.binary.ptx) == []


def test_a_launch_without_words_where_its_plan_has_them_is_found() -> None:
    ptx = launch(il.RunOptions("meta", ll_tensors=())).binary.ptx
    assert [(f.rule, f.line) for f in run_lint(ptx)] == [("absent", 0)] * 2
    assert lint(ptx, posts=True, waits=True, posting_warp=True) == []


@pytest.mark.parametrize("how", some([*BROKEN], lambda how: how == "stored weakly"))
def test_the_lint_finds_a_word_that_is(how: str) -> None:
    text = launch(OPTIONS["words"]).composition.expanded_text
    before, after, rule = BROKEN[how]
    assert text.count(before) == 1
    ptx = compile_source(text.replace(before, after), "broken", il.H200.architecture, preamble=PREAMBLE)
    assert {finding.rule for finding in run_lint(ptx.ptx)} - {"absent"} == {rule}
