"""What the README and the pages of docs/ say is so: their code runs, their links lead somewhere.

A ``python`` block followed by a ``text`` block prints exactly that; one without prints nothing. The blocks of
a page share one namespace and need only the base install, but for those behind a line ``*Needs ...*``,
which ``tests/interpret/test_examples.py`` runs.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli import app
from interlace.core import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
#: Made from measurements, so possibly not there yet.
MEASURED = {ROOT / "docs/performance.md", ROOT / "docs/speedup.svg"}

BLOCK = re.compile(
    r"(?P<needs>^\*Needs [^*]+\*\n\n)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
SESSION = re.compile(r"^```console\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: What of a page's prose is no running text (blocks of four spaces, headings, tables, comments), and what only shares
#: a word with the glossary.
NOT_RUNNING = re.compile(r"^(?:    |#|\||<!--).*$|(?:memory|program) order", re.MULTILINE)
GLOSSARY = re.findall(r"^## (.+)$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_prints_what_the_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("torch", "triton"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails, as on the base install
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in BLOCK.finditer(page.read_text()):
        if block["needs"]:
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            where = f"{page.name}: {block['code'][:40]!r}"
            exec(compile(block["code"], where, "exec", dont_inherit=True), namespace)  # as a file of its own
        assert printed.getvalue() == (block["output"] or "")


def test_commands_print_what_the_page_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Times differ from run to run, and where tables break with them: words are compared, in any order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    commands, exit_code = 0, 0
    for session in SESSION.finditer((ROOT / "docs/cli.md").read_text()):
        for step in re.split(r"^\$ ", session["lines"], flags=re.MULTILINE)[1:]:
            command, _, shown = step.partition("\n")
            program, *arguments = shlex.split(command)
            if program == "echo":  # $?
                assert shown.strip() == str(exit_code), command
                continue
            assert program == "interlace"
            result = CliRunner().invoke(app, arguments)
            assert result.exception is None or isinstance(result.exception, SystemExit)
            exit_code = result.exit_code
            assert _words(result.output) == _words(shown), command
            commands += 1
    assert commands >= 6


def _words(text: str) -> list[str]:
    text = re.sub(r"[^\x00-\x7f]", " ", text)  # frames of tables
    text = re.sub(r"CPU \(\w+\)", "CPU", text)
    return sorted(re.sub(r"\d[\d.,]*(e-?\d+)?", "0", text).split())


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.finditer(_prose(page)):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        if target in MEASURED and not target.exists():
            continue
        if not target.exists() or (link["heading"] and link["heading"] not in _anchors(target)):
            dead.append(link[0])
    assert dead == []


def test_the_readme_links_to_every_page() -> None:
    links = {(ROOT / link["path"]).resolve() for link in LINK.finditer(_prose(ROOT / "README.md"))}
    assert set(PAGES) - links == {ROOT / "README.md"}


def test_the_readme_begins_with_what_it_is_what_it_is_for_and_how_to_begin() -> None:
    head, *sections = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    _, what, plot, lead, uses = head.strip().split("\n\n")
    assert (what.count(". "), lead, uses.count("\n- ")) == (0, "What it is for:", 2)
    assert plot.endswith("](docs/decode.svg)")
    parts = dict(section.split("\n", 1) for section in sections)
    begin = ["Two commands", "The shortest program", "How it works", "Delete a wait, and the proof says so"]
    assert list(parts)[:4] == begin
    assert 4 <= parts["Where it stands"].count("\n| ") - 1 <= 6  # rows


def test_the_page_of_performance_begins_with_five_lines() -> None:
    title, _, mark, *lines = (ROOT / "docs/performance.md").read_text().splitlines()
    assert (title, mark) == ("# Performance", "<!-- summary -->")
    assert lines.index("<!-- /summary -->") == 5


def test_words_of_the_glossary_stand_in_alphabetical_order_and_each_says_something() -> None:
    _, *entries = re.split(r"^## ", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    words = [entry.partition("\n")[0] for entry in entries]
    assert words == sorted(words, key=str.lower)
    assert [word for word, entry in zip(words, entries, strict=True) if len(entry.split()) < 8] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_a_word_to_the_glossary_once(page: Path) -> None:
    links = [link for link in LINK.finditer(_prose(page)) if link["path"].endswith("glossary.md")]
    words = [link["heading"] for link in links if link["heading"]]
    assert len(words) == len(set(words))
    assert words or page.name == "glossary.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_words_are_linked_to_the_glossary_where_they_first_stand(page: Path) -> None:
    """Of the words that a page links; README links all that it has."""
    text = re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), NOT_RUNNING.sub("", _prose(page)))
    shown = re.sub(r"\]\([^)]*\)", lambda target: "]" + " " * (len(target[0]) - 1), text)
    late = []
    for word in GLOSSARY if page.name != "glossary.md" else ():
        first = _forms(word).search(shown)
        link = re.search(rf"\]\((?:docs/)?glossary\.md#{_anchor(word)}\)", text)
        if first and ("[" in text[first.end() : link.start()] if link else page.name == "README.md"):
            late.append(word)
    assert late == []


def _forms(word: str) -> re.Pattern[str]:
    """A word of the glossary, its plural, and what a verb makes of it."""
    stem = re.escape(word.removesuffix("y"))
    endings = "y|ies" if word.endswith("y") else "|s|es|ed|ing"
    return re.compile(rf"(?<![\w/#.-]){stem}(?:{endings})(?![\w/-])", re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_takes_time(page: Path) -> None:
    assert "**What takes time.** " in page.read_text() or page.name in ("README.md", "glossary.md")


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    return {_anchor(heading) for heading in HEADING.findall(_prose(page))}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_layout_page_names_every_folder() -> None:
    text = (ROOT / "docs/layout.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "src/interlace").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/" not in text} == set()


def test_contributing_lists_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = {path.parent.name for path in (ROOT / "src/interlace").glob("*/__init__.py")}
    checked = [set(re.findall(r"\w+", layer)) & rooms for layer in contracts[0]["layers"]]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(checked), 0, -1))
    assert [set(re.findall(r"`(\w+)`", names)) & rooms for _, names in rows] == checked


def test_the_proofs_page_shows_every_error_of_a_plan() -> None:
    text = (ROOT / "docs/proofs.md").read_text()
    names = [cls.__name__ for cls in (errors.PlanError, *errors.PlanError.__subclasses__())]
    assert [name for name in names if f"{name}" not in text] == []


def test_the_tree_of_errors_has_every_error_below_its_base() -> None:
    base, *rows = re.findall(r"^ {4}((?:[│├└─ ]{4})*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    path, shown = [base[1]], set()
    for indent, name in rows:
        path[len(indent) // 4 :] = [name]
        shown.add((name, path[-2]))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert shown == {(kind.__name__, kind.__base__.__name__) for kind in kinds if kind is not errors.InterlaceError}
