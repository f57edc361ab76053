"""Tests bite: faults that are planted in the sources one at a time fail the tests that are named for them."""

from __future__ import annotations

import ast

import pytest

from ..mutation.equivalents import EQUIVALENT, equivalent_texts
from ..mutation.mutants import MUTANTS
from ..mutation.operators import derive_mutants
from ..mutation.plant import ROOT, SOURCES, Copy, Mutant, Outcome, StaleMutantError
from ..mutation.targets import TESTS

LIMIT_S = 120


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of the sources, one for each process of tests."""
    return Copy(tmp_path_factory.mktemp("sources"))


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_tests_that_are_named_fail_with_the_fault(mutant: Mutant, copy: Copy) -> None:
    outcome, end = copy.run(mutant, LIMIT_S)
    assert outcome in (Outcome.KILLED, Outcome.TIMEOUT), f"{outcome.value}: {mutant}\n{end}"


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_the_text_of_every_mutant_occurs_once_and_its_replacement_is_python(file: str) -> None:
    text = (SOURCES / file).read_text()
    for mutant in MUTANTS:
        if mutant.file == file:
            ast.parse(mutant.apply(text))


def test_every_equivalent_mutant_is_one_that_is_derived() -> None:
    for file in sorted({mutant.file for mutant in EQUIVALENT}):
        text = (SOURCES / file).read_text()
        assert equivalent_texts(file) <= {mutant.apply(text) for mutant in derive_mutants(file, text, ())}, file


def test_no_mutant_is_listed_twice() -> None:
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_tests_of_every_mutant_exist() -> None:
    for node in {test for mutant in MUTANTS for test in mutant.tests} | {
        test for tests in TESTS.values() for test in tests
    }:
        file, _, name = node.partition("::")
        text = (ROOT / "tests/unit" / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text, node


def test_a_text_that_is_gone_or_occurs_twice_is_an_error() -> None:
    for old in ("c", "a"):
        with pytest.raises(StaleMutantError, match=r"the old text occurs \d times; update tests/mutation"):
            Mutant("x.py", old, "d", ()).apply("a b a")
    assert Mutant("x.py", "b", "d", ()).apply("a b a") == "a d a"
    assert Mutant("x.py", "a", "d", (), 4).apply("a b a") == "a b d"
    with pytest.raises(StaleMutantError, match="the file has changed at offset 3"):
        Mutant("x.py", "a", "d", (), 3).apply("a b a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x < y", {"x <= y"}),
        ("a == b in c", {"a != b in c", "a == b not in c"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("y = min(a, b)", {"y = max(a, b)"}),
        ("x.any()", {"x.all()", "pass"}),
        ("a + b * 2", {"a - b * 2", "a + b + 2", "a + b * 3"}),
        ("~(a & b)", {"(a & b)", "~(a | b)"}),
        ("if a:\n  raise B(1)", {"if not (a):\n  raise B(1)", "if a:\n  pass"}),
        ("def f(a: int = 1):\n  'doc'\n  if a:\n    return g\n", None),
        ("x = f'{a + 1}'", set()),
        ('x = s(a, side="left", strict=True)', {'x = s(a, side="right", strict=True)'}),
    ],
)
def test_mutants_are_derived_from_the_syntax(text: str, expected: set[str] | None) -> None:
    found = {mutant.apply(text) for mutant in derive_mutants("x.py", text, ())}
    if expected is None:
        head = "def f(a: int = 1):\n  'doc'\n  if "
        assert found == {
            head.replace("1", "2") + "a:\n    return g\n",
            head + "not (a):\n    return g\n",
            head + "a:\n    pass\n",
        }
    else:
        assert found == expected


@pytest.mark.thorough
def test_a_run_tells_what_became_of_a_mutant(copy: Copy) -> None:
    """The tests run on the copy, not on the sources that are installed."""
    head = "from __future__ import annotations"
    quick = ("test_files.py::test_a_failed_write_leaves_the_old_file_and_nothing_else",)
    for new, tests, expected in (
        (f"{head}\n", quick, Outcome.SURVIVED),
        (f"{head}\nraise ImportError", quick, Outcome.KILLED),
        (f"{head}\nwhile True: pass", quick, Outcome.TIMEOUT),
        (f"{head}\nimport os\nos.abort()", quick, Outcome.KILLED),
        (f"{head}\n", ("test_files.py::test_of_nothing",), Outcome.BROKEN),
    ):
        assert copy.run(Mutant("core/text.py", head, new, tests), 10)[0] is expected, new
    assert (SOURCES / "core/text.py").read_text() == (copy.package / "core/text.py").read_text()
