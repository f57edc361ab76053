"""Lint of the repository's language: docstrings, function names, retired words, and class names.

Only syntax trees and pages are read; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/interlace"
CODE_FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
#: Folders next to the package whose functions and docstrings follow the same rules.
OTHER_FOLDERS = ("tests", "benchmarks")
SITE = sorted((ROOT / "docs").glob("*.py"))
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

#: First words of a relative clause without its noun, such as "Of a cluster." or "Whether it fits.".
CLAUSE = re.compile(r"(What|Of|Whether|Which|Whose|That|Those|By|Behind|Beside|Who)\b")

#: Verbs and nouns in -ed that are no participles.
NOT_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "shred", "speed", "succeed"})
#: Irregular participles, and adjectives: as the whole name of a function they do not say what it does.
BARE_WORDS = """
    apart begun blank born bought broken brought busiest busy caught cheap cheapest chosen deep dense distinct done
    drawn driven early equal even exact fast faster fastest few fewer fewest finite first found frozen full giant
    given gone grown held hidden idle inner kept known large larger largest last late least left lent likely long
    longer longest lost made many meant met most negative new odd of old other outer own paid plain positive ready right
    safe said same seen sent serial short shorter shortest shown shrunk single small smaller smallest sparse spent
    spinning spun stale stolen taken tall thin thrown told torn true understood uniform usual valid whole whose wide
    worn written wrong
"""
#: Statements of the language of loops, named as in TVM: methods that are excepted.
LOOP_STATEMENTS = frozenset({"Builder.serial", "Builder.shared", "Builder.unrolled"})

#: Old names, each distinctive enough that it can mean nothing else.
RETIRED_NAMES = """
    ByWords Choices CountedRow Deployment FIRST_OF_MOST Foreseen GroupedPanels HalfRows HandOver HandedOver Happens
    MOST_AT_ONCE MOST_WARPGROUPS MapSpec Numbered OneLaunchExecutor OpSetting OperandsInMemory PATIENCE_S PagedCache
    Panels RoleText SUMS_OF_LAUNCH SUMS_PER_THREAD TABLED_SHARE TextBody TextLaunch TextMemory TextStream Unpolled
    WalkBody WalkMaker WalkTile Ways WithOperands Worded able_to_share all_share beside_captures by_words
    chain_game_of deploy_graph derive_choices draws_ahead equal_shares executor_ways first_of_most ghost_in ghost_of
    halves_apart hand_over_ns hand_overs hand_to handed_over held_by_lru hold_whole iter_settings kept_apart
    kept_rows last_that_wait launch_struct least_drawn most_stolen most_warpgroups norm_is_op normalises_in
    normalises_sooner noted_warnings obstacle_of_device of_whole_rows open_model places_of plan_graph prove_choices
    proved_text proved_words recalled registers_to_normalise ring_launch rows_of_table same_op_before shown_chain
    shown_game shown_setting step_launch sum_of_parts sums_of_squares times_faster tokenizer_of_pieces warpgroups_of
    while_it_fits whole_shares with_sums word_ns words_need_reads words_proof words_refused
"""
BARE = frozenset(BARE_WORDS.split())
RETIRED = frozenset(RETIRED_NAMES.split())


@cache
def parse_package() -> dict[Path, ast.Module]:
    """Parse every module of the package once."""
    return {path: ast.parse(path.read_bytes()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def parse_folders() -> dict[Path, ast.Module]:
    """Parse the package, the tests and the benchmarks once."""
    others = (path for folder in OTHER_FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {**parse_package(), **{path: ast.parse(path.read_bytes()) for path in others}}


def format_location(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements below it, without descending into expressions, which hold no definition."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from walk_statements(child)


def find_clauses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and first line of the docstrings that begin with a relative clause."""
    for node in walk_statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node, clean=False) or "").lstrip()
            if CLAUSE.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def list_entries(doc: str, section: str) -> Iterator[str]:
    """Yield the names that a section of a docstring (``Args``, ``Attributes``) describes."""
    found = re.search(rf"^( *){section}:\n((?:\1 +.*\n|\n)*)", f"{doc}\n", re.MULTILINE)
    lines = [line for line in found[2].splitlines() if line.strip()] if found else []
    for line in lines:
        names = re.match(r" *([\w*]+(?:, [\w*]+)*): ", line)
        if names and not line.startswith(lines[0][: len(lines[0]) - len(lines[0].lstrip())] + " "):
            yield from (name.strip("*") for name in names[1].split(", "))


def list_members(node: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Return fields, methods and attributes of ``self`` of a class and of the package's classes below it."""
    names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and is_self(part.value)}
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            names.add(child.name)
        targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
        names |= {part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)}
    bases = {part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)}
    return names.union(*(list_members(base, classes) for name in bases - {node.name} for base in classes.get(name, [])))


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def list_parameters(node: ast.AST) -> set[str]:
    return {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}


def is_bare(name: str) -> bool:
    """Return True if a name is one participle or adjective, such as ``_made`` or ``rotated``."""
    word = name.strip("_")
    return word in BARE or ("_" not in word and word.endswith("ed") and word not in NOT_PARTICIPLES)


def find_bare_functions(node: ast.AST, owner: str = "") -> Iterator[tuple[int, str]]:
    """Yield line and qualified name of functions, methods and nested functions with a bare name, but no properties."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = (ast.unparse(decorator) for decorator in child.decorator_list)
            is_property = any(text.endswith(("property", ".setter", ".deleter")) for text in decorators)
            name = f"{owner}{child.name}"
            if is_bare(child.name) and not is_property and name not in LOOP_STATEMENTS:
                yield child.lineno, name
            yield from find_bare_functions(child)
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from find_bare_functions(child, f"{child.name}." if isinstance(child, ast.ClassDef) else owner)


def find_identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every identifier: variables, attributes, parameters, keywords, definitions, imports."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            text = getattr(node, field, None)
            if isinstance(text, str):
                yield from ((getattr(node, "lineno", 0), part) for part in text.split("."))


def find_words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def test_docstrings_begin_with_a_sentence_or_a_noun() -> None:
    found = [
        f"{format_location(path, line)}: {text}"
        for path, tree in [*parse_folders().items(), *((path, ast.parse(path.read_bytes())) for path in SITE)]
        for line, text in find_clauses(tree)
    ]
    assert not found, "\n".join(found)


def test_docstrings_describe_parameters_and_attributes_that_exist() -> None:
    trees, classes = parse_folders(), dict[str, list[ast.ClassDef]]()
    nodes = [(path, node) for path, tree in trees.items() for node in walk_statements(tree)]
    for _, node in nodes:
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, []).append(node)
    found = []
    for path, node in nodes:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        doc = ast.get_docstring(node, clean=False) or ""
        if "Attributes:" not in doc and "Args:" not in doc:
            continue
        if isinstance(node, ast.ClassDef):
            members = list_members(node, classes)
            inits = [child for child in node.body if getattr(child, "name", "") in ("__init__", "__new__")]
            known = {"Attributes": members, "Args": members.union(*map(list_parameters, inits))}
        else:
            known = {"Args": list_parameters(node)}
        unknown = [name for section, names in known.items() for name in list_entries(doc, section) if name not in names]
        found += [f"{format_location(path, node.lineno)}: {node.name} has no {name}" for name in unknown]
    assert not found, "\n".join(found)


def test_comments_of_headers_begin_with_a_sentence_or_a_noun() -> None:
    found = []
    for path in sorted((PACKAGE / "csrc").rglob("*.cuh")):
        before = ""
        for line, text in enumerate(map(str.strip, path.read_text().splitlines()), 1):
            begins = not before.startswith("//") or before == "//"  # of a comment, or of a paragraph of one
            if begins and text.startswith("// ") and CLAUSE.match(text[3:]):
                found.append(f"{format_location(path, line)}: {text}")
            before = text
    assert not found, "\n".join(found)


def test_functions_are_not_named_by_a_bare_participle_or_adjective() -> None:
    found = [
        f"{format_location(path, line)}: {name}"
        for path, tree in parse_folders().items()
        for line, name in find_bare_functions(tree)
    ]
    assert not found, "\n".join(found)


def test_retired_names_are_not_identifiers() -> None:
    found = []
    for path in (path for folder in CODE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text()
        if path == Path(__file__) or not RETIRED & find_words(text):
            continue  # most files: parsing all of them takes seconds
        tree = parse_package().get(path) or ast.parse(text)
        found += [f"{format_location(path, line)}: {name}" for line, name in find_identifiers(tree) if name in RETIRED]
    for path in sorted((PACKAGE / "csrc").rglob("*.cu*")):
        for line, text in enumerate(path.read_text().splitlines(), 1):
            names = sorted(RETIRED & find_words(text.partition("//")[0]))
            found += [f"{format_location(path, line)}: {name}" for name in names]
    assert not found, "\n".join(found)


def test_pages_have_no_retired_names_in_code() -> None:
    found = []
    for page in PAGES:
        text = page.read_text()
        code = " ".join(re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE))
        found += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(RETIRED & find_words(code))]
    assert not found, "\n".join(found)


def test_public_classes_of_different_rooms_have_different_names() -> None:
    rooms: dict[str, dict[str, str]] = {}
    for path, tree in parse_package().items():
        room = path.relative_to(PACKAGE).parts[0]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms.setdefault(node.name, {})[room] = format_location(path, node.lineno)
    shared = {name: sorted(places.values()) for name, places in rooms.items() if len(places) > 1}
    assert not shared, shared
