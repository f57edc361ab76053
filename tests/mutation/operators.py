"""Systematic mutants of a source file, derived from its syntax tree.

    x < y          x <= y                   an and b, min, any, &, +        a or b, max, all, |, -
    x == y         x != y                   2, True, side="left"            3, False, side="right"
    if x:          if not (x):              raise, continue, break          pass
    not x, ~x      x                        if x: return y                  if x: pass

Left alone, as no logic: docstrings, formatted strings and the arguments of a raised error, annotations, decorators, and
``strict=`` of ``zip``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .plant import Mutant

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "argmin": "argmax",
    "any": "all",
    "lowest": "highest",
    "first": "last",
    "popleft": "pop",
}
_NAMES |= {new: old for old, new in _NAMES.items()}
_CALLED = ("min", "minimum", "argmin", "any", "popleft")
_CALLED_TOO = tuple(_NAMES[name] for name in _CALLED)
_TEXTS = {"left": "right", "right": "left"}


def derive_mutants(file: str, text: str, tests: tuple[str, ...]) -> list[Mutant]:
    """Return the mutants of one source file in the order of their offsets."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        """Offset of a position in the tree, whose columns count bytes."""
        begin = starts[line - 1]
        return begin + len(text[begin : starts[line]].encode()[:column].decode())

    found = set()
    for begin, end, new in _changes(ast.parse(text), text, offset):
        if text[begin:end] != new:
            found.add((begin, text[begin:end], new))
    return [Mutant(file, old, new, tests, begin) for begin, old, new in sorted(found)]


def _changes(tree: ast.Module, text: str, offset: object) -> Iterator[tuple[int, int, str]]:
    assert callable(offset)

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[tuple[int, int, str]]:
        """Replace an operator between two operands."""
        begin, end = span(left)[1], span(right)[0]
        at = text.find(old, begin, end)
        if at >= 0:
            yield at, at + len(old), new

    for node in _logic(tree):
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(left, right, *_COMPARED[type(op)])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, old, new)
        elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
            yield from between(node.left, node.right, *_COMPUTED[type(node.op)])
        elif isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
            old, new = _COMPUTED[type(node.op)]
            yield from between(node.target, node.value, f"{old}=", f"{new}=")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
            begin, end = span(node)[0], span(node.operand)[0]
            yield begin, end, "(" * text[begin:end].count("(")
        elif isinstance(node, ast.Constant):
            begin, end = span(node)
            if isinstance(node.value, bool):
                yield begin, end, str(not node.value)
            elif isinstance(node.value, int):
                yield begin, end, str(node.value + 1)
            elif isinstance(node.value, str) and node.value in _TEXTS:
                yield begin, end, f'"{_TEXTS[node.value]}"'
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in _CALLED + _CALLED_TOO:
                end = span(node)[1]
                yield end - len(name), end, _NAMES[name]
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            begin, end = span(node.test)
            yield begin, end, f"not ({text[begin:end]})"
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                begin, end = span(test)
                yield begin, end, "True"
        elif isinstance(node, ast.Raise | ast.Continue | ast.Break):
            yield *span(node), "pass"
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return):
            yield *span(node.body[-1]), "pass"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.YieldFrom | ast.Yield):
            yield *span(node), "pass"


def _logic(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of texts, annotations and the arguments of errors."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr) or (isinstance(child, ast.keyword) and child.arg == "strict"):
            continue
        yield child
        if isinstance(child, ast.Raise):
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value
                yield from _logic(child.value)
            continue
        if isinstance(child, ast.arguments):
            for default in (*child.defaults, *child.kw_defaults):
                if default is not None:
                    yield default
                    yield from _logic(default)
            continue
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            for part in (*([child.args] if isinstance(child, ast.FunctionDef) else []), *child.body):
                yield part
                yield from _logic(part)
            continue
        yield from _logic(child)
