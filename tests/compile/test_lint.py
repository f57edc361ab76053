"""Each rule of the PTX lint finds the fault that it is for."""

from __future__ import annotations

import pytest

from interlace.kernels import lint as linting
from interlace.kernels.lint import LintFinding

GOOD = """
    ld.acquire.gpu.global.b32 %r1, [%rd1];
    bar.sync 0;
    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
    st.global.v4.b32 [%rd2], {%r1, %r2, %r3, %r4};
    bar.sync 0;
    atom.global.gpu.release.add.u32 %r5, [%rd3], 1;
"""

BROKEN = {
    "release": GOOD.replace("    bar.sync 0;\n    atom", "    atom"),
    "acquire": GOOD.replace("[%rd1];\n    bar.sync 0;", "[%rd1];", 1),
    "hand-off": GOOD.replace(
        "    bar.sync 0;\n    ld", "    mbarrier.arrive.shared::cta.b64 _, [%r9];\n    bar.sync 0;\n    ld"
    ),
    "tma-load": GOOD.replace(
        "    st.global",
        "    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier [%r1], [%rd9];\n    st.global",
    ),
    "tma-store": GOOD.replace(
        "    bar.sync 0;\n    atom",
        "    cp.async.bulk.tensor.2d.global.shared::cta [%rd9], [%r1];\n"
        "    cp.async.bulk.wait_group.read 0;\n    bar.sync 0;\n    atom",
    ),
    "wrap": GOOD.replace("bar.sync 0;", "bar.sync 0;\n    setp.le.s32 %p1, %r9, %r1;", 1),
    "dependent": "    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\n    griddepcontrol.wait;\n" + GOOD,
}


def lint(ptx: str) -> list[LintFinding]:
    return linting.lint(ptx, posts=True, waits=True)


def test_the_protocol_passes() -> None:
    assert lint(GOOD) == []


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_finds_its_violation(rule: str) -> None:
    assert [finding.rule for finding in lint(BROKEN[rule])] == [rule]


def test_the_right_forms_of_bulk_copies_pass() -> None:
    fixed = BROKEN["tma-load"].replace(
        "    bar.sync 0;\n    ld.global", "    bar.sync 0;\n    fence.proxy.async.global;\n    ld.global"
    )
    assert lint(fixed) == []
    fixed = BROKEN["tma-store"].replace("wait_group.read 0", "wait_group 0")
    assert lint(fixed) == []


def test_counters_may_be_compared_by_difference_and_for_equality() -> None:
    fixed = BROKEN["wrap"].replace("setp.le.s32 %p1, %r9, %r1", "sub.s32 %r8, %r9, %r1;\n    setp.lt.s32 %p1, %r8, 1")
    assert lint(fixed) == []
    assert lint(BROKEN["wrap"].replace("setp.le", "setp.eq")) == []
    moved = BROKEN["wrap"].replace("setp.le.s32 %p1, %r9, %r1", "mov.u32 %r8, %r1;\n    max.s32 %r7, %r8, %r9")
    assert [(f.rule, f.line) for f in lint(moved)] == [("wrap", 5)]


def test_item_tables_may_be_read_before_the_dependent_wait() -> None:
    assert lint("    ld.global.b32 { %r1 }, [ %rd1 + 0 ];\n    griddepcontrol.wait;\n" + GOOD) == []


@pytest.mark.parametrize(("gone", "what"), [("atom.global.gpu.release", "posts"), ("ld.acquire.gpu", "waits")])
def test_a_launch_without_the_instructions_that_its_plan_asks_for_is_found(gone: str, what: str) -> None:
    without = "\n".join(line for line in GOOD.splitlines() if gone not in line)
    assert [(f.rule, f.line) for f in lint(without)] == [("absent", 0)]
    assert what in lint(without)[0].text
    assert linting.lint(without, posts=what != "posts", waits=what != "waits") == []
