"""Translate inline PTX to calls of C++ functions named after the instructions; all other text is unchanged.

    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    ptx::mbarrier_arrive_expect_tx_shared_cta_b64((barrier), (bytes));

Arguments have the order of the instruction, including immediates; results are passed as lvalues. Names of strings that
the source defines are replaced by the strings. A list in braces is one argument: a list of its values, or of their
addresses if they are results. A predicate that the template declares is skipped; the register that it is converted to
is passed instead. For an instruction that ``cuda.h`` lacks, the C++ compiler reports an error with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ASM = re.compile(r"\basm\b(?:\s+volatile\b)?\s*\(")
_STRING = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')
_NAMED = re.compile(r'^#define (\w+) ("[^"\n]*")$', re.MULTILINE)
_OPERAND = re.compile(r"\{[^}]*\}|%\d+|\b\d+\b")


def translate(text: str) -> str:
    """Return ``text`` with every ``asm`` statement replaced; lines keep their numbers."""
    defined = [(found.start(), found[1], found[2]) for found in _NAMED.finditer(text)]
    out, at = [], 0
    for found in _ASM.finditer(text):
        names = {name: string for where, name, string in defined if where < found.start()}
        end = _closing(text, found.end())
        statement = text[found.start() : end]
        call = _call(_replace_names(text[found.end() : end - 1], names))
        out += [text[at : found.start()], call, "\n" * statement.count("\n")]
        at = end
    return "".join([*out, text[at:]])


def _closing(text: str, at: int) -> int:
    """Return the index after the parenthesis that closes the one before ``at``."""
    depth = 1
    while depth:
        string = _STRING.match(text, at) if text[at] == '"' else None
        if string is not None:
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def _replace_names(inside: str, names: Mapping[str, str]) -> str:
    """Return the operands of an ``asm`` statement with names of strings replaced by the strings."""
    return re.sub(r"\b[A-Z]\w*\b", lambda name: names.get(name[0], name[0]), inside)


def _call(inside: str) -> str:
    """Return the call that replaces an ``asm`` statement with these operands."""
    template, *rest = _split(inside, ":")
    code = "".join(_STRING.findall(template))
    operands, results = [], 0
    for section in rest[:2]:
        for operand in filter(str.strip, _split(section, ",")):
            constraint = _STRING.match(operand)
            assert constraint is not None, inside
            operands.append(operand[constraint.end() :].strip())
            results += constraint[1][0] in "=+"
    steps = [step.strip() for step in code.replace("{ .reg", ".reg").split(";")]
    steps = [step for step in steps if step not in ("", "}") and not step.startswith(".reg")]
    if not steps:
        return "(void)0"
    mnemonic, _, first = steps[0].partition(" ")
    arguments = [_argument(word, operands, results) for word in _OPERAND.findall(first)]
    arguments += [_argument(word, operands, results) for step in steps[1:] for word in re.findall(r"%\d+", step)]
    special = re.search(r"%%(\w+)", first)
    name = re.sub(r"\W+", "_", mnemonic + (f".{special[1]}" if special else ""))
    return f"ptx::{name}({', '.join(arguments)})"


def _argument(word: str, operands: list[str], results: int) -> str:
    if word.startswith("{"):
        numbers = [int(n) for n in re.findall(r"%(\d+)", word)]
        return "{" + ", ".join(f"{'&' * (n < results)}{operands[n]}" for n in numbers) + "}"
    return operands[int(word[1:])] if word.startswith("%") else word


def _split(text: str, at: str) -> list[str]:
    """Split ``text`` at each ``at`` outside of parentheses and strings."""
    parts, depth, start, here = [], 0, 0, 0
    while here < len(text):
        string = _STRING.match(text, here) if text[here] == '"' else None
        if string is not None:
            here = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[here], 0)
        if text[here] == at and not depth:
            parts.append(text[start:here])
            start = here + 1
        here += 1
    return [*parts, text[start:]]
