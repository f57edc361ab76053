"""README and the pages of docs/: their code runs, and their links lead somewhere.

A ``python`` block followed by a ``text`` block prints exactly that; one without prints nothing. The blocks of
a page share one namespace and need only the base install, but for those behind a line ``*Needs ...*``,
which ``tests/interpret/test_examples.py`` runs.
"""

from __future__ import annotations

import io
import re
import runpy
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from interlace.core import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "benchmarks/notes").glob("*.md"))
LINKED = [*PAGES, *NOTES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
README_WORDS = 800
DOCS_WORDS = 30_000
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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
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


def test_the_page_of_commands_is_what_its_script_makes() -> None:
    """Times in the outputs differ from run to run, and so do line breaks of tables: compare words in any order."""
    made: str = runpy.run_path(str(ROOT / "docs/commands.py"))["make_page"]()
    shown = (ROOT / "docs/cli.md").read_text()
    assert SESSION.sub("", made) == SESSION.sub("", shown), "run make pages"
    sessions, others = SESSION.findall(shown), SESSION.findall(made)
    assert [_words(text) for text in others] == [_words(text) for text in sessions], "run make pages"
    assert sum(text.count("$ interlace ") for text in sessions) >= 6


def test_the_page_of_commands_has_an_example_of_each() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    for name in runpy.run_path(str(ROOT / "docs/commands.py"))["EXAMPLES"]:
        section = re.split(rf"^## {name}$", text, flags=re.MULTILINE)[1].partition("\n## ")[0]
        assert re.search(rf"^(?:\$|   ) interlace {name}\b", section, re.MULTILINE), name


def test_a_release_that_does_not_exist_is_not_installed_by_name() -> None:
    paragraphs = runpy.run_path(str(ROOT / "docs/commands.py"))["_paragraphs"]
    command = SimpleNamespace(help="Needs: pip install -e '.[gpu,plot]'.\n\nExample: a")
    assert paragraphs(command) == ["Needs: `pip install -e '.[gpu,plot]'`.", "Example: a"]


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


def test_the_readme_begins_with_a_sentence_the_plot_and_what_gains() -> None:
    head, *sections = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    _, what, plot, figures, _ = head.strip().split("\n\n")
    assert what.count(". ") == 0
    assert plot.endswith("](docs/decode.svg)")
    assert figures.startswith("<!-- readme -->\n- **The megakernel on Hopper gains.**")
    assert "\n- **Plain Triton bodies gain nothing from tile synchronisation.**" in figures
    assert [section.partition("\n")[0] for section in sections] == [
        "What runs where",
        "Ten lines with a model",
        "Ten lines with your own kernel",
        "Install",
        "Limits",
        "Read on",
    ]
    matrix = [line for line in sections[0].splitlines() if line.startswith("| ")]
    assert {line.count(" | ") for line in matrix} == {3}, "a cell for each kind of device"


def test_the_readme_and_the_manual_are_short() -> None:
    words = {page.name: len(page.read_text().split()) for page in PAGES}
    assert words.pop("README.md") <= README_WORDS
    assert sum(words.values()) <= DOCS_WORDS, words


def test_the_model_snippet_of_the_readme_runs_as_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads a small model with random weights from a file of the name that the snippet has."""
    for name in ("torch", "tokenizers", "jinja2"):
        pytest.importorskip(name)
    from .engines import write_model

    blocks = BLOCK.finditer((ROOT / "README.md").read_text())
    (snippet,) = (block["code"] for block in blocks if "il.LLM" in block[0])
    (name,) = re.findall(r'il.LLM\("(.*?)"', snippet)
    write_model(tmp_path / name, **{"llama.context_length": 512})
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec", dont_inherit=True), {})
    assert re.search(r"PyTorch's own ops|megakernel|launch", capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_has_a_caption(page: Path) -> None:
    text = _prose(page)
    assert text.count("\nTable: ") == len(re.findall(r"^\|(?: ?:?-+:? ?\|)+$", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_a_page_begins_with_what_the_reader_can_do(page: Path) -> None:
    text = re.sub(r"<!-- summary -->.*?<!-- /summary -->\n\n", "", page.read_text(), flags=re.DOTALL)
    assert re.match(r"# .+\n\nWith th(?:is page|e studio) you ", text)


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


def test_no_page_has_a_paragraph_on_times_or_installs_a_release_that_does_not_exist() -> None:
    for page in [*PAGES, *NOTES, ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        assert "**What takes time" not in text, page.name
        assert not re.search(r"pip install '?interlace", text), page.name
    for path in (ROOT / "src").rglob("*.py"):  # messages and help, too
        assert not re.search(r"pip install '?interlace", path.read_text()), path.name


def test_pages_that_the_sources_cite_exist() -> None:
    cited = re.compile(r"(?<![/\w])(?:docs|benchmarks/notes)/[a-z-]+\.(?:md|svg|png|py)\b")
    kinds = {".py", ".cuh", ".toml"}
    files = [p for room in ("src", "tests", "benchmarks", "examples", "docs") for p in (ROOT / room).rglob("*")]
    paths = {(p.name, path) for p in files if p.suffix in kinds for path in cited.findall(p.read_text())}
    assert len(paths) > 20
    assert {(name, path) for name, path in paths if not (ROOT / path).exists()} == set()


def test_no_page_of_the_manual_but_those_on_speed_links_to_the_notes() -> None:
    linked = {page.name for page in PAGES if "benchmarks/notes" in page.read_text()}
    assert linked <= {"performance.md", "planner.md", "internals.md"}


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    return {_anchor(heading) for heading in HEADING.findall(_prose(page))}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_page_of_internals_names_every_room() -> None:
    text = (ROOT / "docs/internals.md").read_text()
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
