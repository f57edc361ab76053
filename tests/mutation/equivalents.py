"""Systematic mutants that no test can tell from the source, each with the reason; the generator leaves them out.

The text must occur exactly once, as in ``mutants``; it may be longer than what changes, to make it so.
"""

from __future__ import annotations

from .plant import SOURCES, Mutant


def ignore(file: str, old: str, new: str, why: str) -> Mutant:
    """One line of the list; ``why`` is for people."""
    assert why
    return Mutant(file, old, new, ())


_OTHER_OPS = "an item never depends on a tile of its own op"
_WIDER = "more of the waits are kept than can matter"
_SHORTCUT = "a shortcut: without it the same is computed in more steps"
_RESHAPE = "reshape takes every negative extent as the one to be found"

_SIGN = "instances of single agents lie in cells of barriers, where no other kind is"

EQUIVALENT: tuple[Mutant, ...] = (
    # ------------------------------------------------ plan/verify.py
    ignore("plan/verify.py", "follower = np.full(n, -1,", "follower = np.full(n, -2,", "every negative number is none"),
    ignore("plan/verify.py", "if want > get else", "if want >= get else", "the two differ where one of these is said"),
    ignore("plan/verify.py", "            passed.append(low)\n", "            pass\n", _SHORTCUT),
    ignore("plan/verify.py", "jump.update(dict.fromkeys(passed, low))", "pass", _SHORTCUT),
    ignore("plan/verify.py", "i = ready.popleft()", "i = ready.pop()", "any order of what can run will do"),
    ignore("plan/verify.py", "if follower[i] >= 0:", "if follower[i] > 0:", "item 0 follows none"),
    ignore("plan/verify.py", "if follower[i] >= 0:", "if follower[i] >= 1:", "item 0 follows none"),
    ignore("plan/verify.py", "of_wait = [-1]", "of_wait = [-2]", "every negative number is none"),
    ignore("plan/verify.py", "    longest = 0\n", "    longest = 1\n", "there is an item, and so a chain of one"),
    ignore("plan/verify.py", "if of_wait[w] < 0:", "if of_wait[w] <= 0:", "who posts is on a chain of one at least"),
    ignore("plan/verify.py", "if of_wait[w] < 0:", "if of_wait[w] < 1:", "who posts is on a chain of one at least"),
    ignore("plan/verify.py", "if of_wait[w] > d:", "if of_wait[w] >= d:", "the same number"),
    ignore("plan/verify.py", "self.one = [0] *", "self.one = [1] *", "who posts is on a chain of one at least"),
    ignore("plan/verify.py", "        best = 0\n", "        best = 1\n", "who posts is on a chain of one at least"),
    ignore("plan/verify.py", "place = low // step", "place = low * step", "blocks of other sizes cover the range, too"),
    ignore("plan/verify.py", "_CACHED_RANGE = 64", "_CACHED_RANGE = 65", "ranges of any length may be cached"),
    ignore("plan/verify.py", "if count < _CACHED", "if count <= _CACHED", "ranges of any length may be cached"),
    ignore("plan/verify.py", "if size < _CACHED", "if size <= _CACHED", "ranges of any length may be cached"),
    # ------------------------------------------------ plan/coverage.py
    ignore("plan/coverage.py", "_SPAN = 1 << 31", "_SPAN = 2 << 31", "any span above every k keeps the order"),
    ignore("plan/coverage.py", "_SPAN = 1 << 31", "_SPAN = 1 << 32", "any span above every k keeps the order"),
    ignore(
        "plan/coverage.py", "            continue\n        segments", "            pass\n        segments", _SHORTCUT
    ),
    ignore("plan/coverage.py", "np.r_[self.k_lo[1:], 0])", "np.r_[self.k_lo[1:], 1])", "the last segment is closing"),
    ignore("plan/coverage.py", "np.r_[0, node][before], 0)", "np.r_[1, node][before], 0)", "masked where before is 0"),
    ignore("plan/coverage.py", "self.tile_worker[:] = -1", "self.tile_worker[:] = 1", "all items have worker 0 then"),
    ignore(
        "plan/coverage.py", "self.tile_worker[:] = -1", "self.tile_worker[:] = -2", "items of one worker: none has -2"
    ),
    ignore("plan/coverage.py", "lowest, -2)[tiles.row]", "lowest, -3)[tiles.row]", "no tile has either number"),
    ignore(
        "plan/coverage.py",
        "find_ranges(runs, stop - start)",
        "find_ranges(runs, stop + start)",
        "further rows without runs",
    ),
    ignore("plan/coverage.py", "self.tile_last, tiles) < first", "self.tile_last, tiles) <= first", _OTHER_OPS),
    ignore("plan/coverage.py", "self.tile_last[tile] >= items", "self.tile_last[tile] > items", _OTHER_OPS),
    ignore(
        "plan/coverage.py",
        'raise AssertionError("one worker runs all tiles before all items")',
        "pass",
        "never reached",
    ),
    ignore(
        "plan/coverage.py",
        "batches(self.wait_end[a:b] - self",
        "batches(self.wait_end[a:b] + self",
        "larger sizes make smaller batches",
    ),
    ignore(
        "plan/coverage.py",
        "lowest, highest = np.full(len(needed.ptr) - 1,",
        "lowest, highest = np.full(len(needed.ptr) + 1,",
        "rows that nothing asks for",
    ),
    ignore(
        "plan/coverage.py",
        "np.full(len(needed.ptr) - 1, -1, np.int64)",
        "np.full(len(needed.ptr) + 1, -1, np.int64)",
        "rows that nothing asks for",
    ),
    ignore("plan/coverage.py", "- 1, -1, np.int64)", "- 1, 1, np.int64)", _WIDER),
    ignore("plan/coverage.py", "- 1, -1, np.int64)", "- 1, -2, np.int64)", _WIDER),
    ignore("plan/coverage.py", "(highest[box[row]] - low)", "(highest[box[row]] + low)", _WIDER),
    ignore("plan/coverage.py", "[box[row]] - low) // step) - skip", "[box[row]] - low) * step) - skip", _WIDER),
    ignore("plan/coverage.py", "keep = count > 0", "keep = count >= 0", _WIDER),
    ignore(
        "plan/coverage.py",
        "batches(needed.sizes[box[first]] + np",
        "batches(needed.sizes[box[first]] - np",
        "sizes decide only how much is looked at together",
    ),
    ignore(
        "plan/coverage.py", "(np.diff(awaited.ptr)[tiles.row] > 0)", "(np.diff(awaited.ptr)[tiles.row] >= 0)", _SHORTCUT
    ),
    ignore(
        "plan/coverage.py",
        "batches((size + awaited",
        "batches((size - awaited",
        "sizes decide only how much is looked at together",
    ),
    ignore(
        "plan/coverage.py",
        "            return\n        item = Groups",
        "            pass\n        item = Groups",
        _SHORTCUT,
    ),
    ignore("plan/coverage.py", "    fresh = 1\n", "    fresh = 2\n", "any numbers above 0 name the classes"),
    ignore("plan/coverage.py", "size.max(initial=0)", "size.max(initial=1)", "no row goes on at depth 0 then"),
    ignore(
        "plan/coverage.py", "begin + _MAX_LISTED + 1)]", "begin + _MAX_LISTED + 2)]", "more of what is cut off below"
    ),
    ignore("plan/coverage.py", "[: _MAX_LISTED + 1]]", "[: _MAX_LISTED + 2]]", "more of what is cut off below"),
    # ------------------------------------------------ plan/implied.py
    ignore(
        "plan/implied.py",
        "        ops = len(base) - 1\n        self",
        "        ops = len(base) + 1\n        self",
        "two ops without items",
    ),
    ignore("plan/implied.py", "if complete else -1", "if complete else -2", "no number of items is negative"),
    ignore("plan/implied.py", "                    break\n", "                    pass\n", _SHORTCUT),
    ignore("plan/implied.py", "(count != count[0]).any()", "(count == count[0]).any()", _SHORTCUT),
    ignore("plan/implied.py", "column[rows].reshape(-1,", "column[rows].reshape(-2,", _RESHAPE),
    ignore("plan/implied.py", "return rows.reshape(-1,", "return rows.reshape(-2,", _RESHAPE),
    ignore("plan/implied.py", "[first].reshape(-1)", "[first].reshape(-2)", _RESHAPE),
    ignore(
        "plan/implied.py",
        "high = np.full(ops, count, np.int64), np.full(ops, -1,",
        "high = np.full(ops, count, np.int64), np.full(ops, -2,",
        "cut at 0",
    ),
    ignore(
        "plan/implied.py",
        "np.cumsum(steps)[:-1] > 0]",
        "np.cumsum(steps)[:-1] >= 0]",
        "of the others nothing is awaited",
    ),
    ignore("plan/awaited.py", "(np.append(own, -1)[candidate]", "(np.append(own, 1)[candidate]", "excluded by at >= 0"),
    ignore("plan/posts.py", "since = at - np.maximum", "since = at + np.maximum", "of the same parity"),
    # ------------------------------------------------ policies
    ignore("policies/splits.py", "if self.chunks >= chunks:", "if self.chunks > chunks:", "cuts at the ends of tiles"),
    ignore("policies/orders.py", "abs(ax + ay), abs(bx + by)", "abs(ax + ay), abs(bx - by)", "one of the two is 0"),
    ignore(
        "policies/splits.py", "0 < begin < chunks", "0 < begin <= chunks", "chunks * e // (e + 1) is less than chunks"
    ),
    ignore(
        "policies/consumers.py", "if some.link.target.uses_k]\n", "if True]\n", "others are needed at the start, too"
    ),
    # ------------------------------------------------ loops/proof
    ignore(
        "loops/proof/cells.py",
        "q.offset_bytes + q.size_bytes and q.offset",
        "q.offset_bytes + q.size_bytes or q.offset",
        "the slots are compared after it",
    ),
    ignore(
        "loops/proof/cells.py",
        "q.size_bytes and q.offset_bytes < p",
        "q.size_bytes and q.offset_bytes <= p",
        "the slots are compared after it",
    ),
    ignore(
        "loops/proof/cells.py",
        "for t in kernel.tensors if t.name not in arrays",
        "for t in kernel.tensors if True",
        "no tensor has the name of barriers",
    ),
    ignore(
        "loops/proof/accesses.py", "content_before: int = 0", "content_before: int = 1", "set before it is looked at"
    ),
    ignore(
        "loops/proof/accesses.py",
        "if not (_is_by_copy(y) and y.end is not None and y.end[0] == access.end[0])",
        "if True",
        "all reads are kept in place of the last",
    ),
    ignore(
        "loops/proof/order.py",
        "self.width = len(self.agents) + cells.count - cells",
        "self.width = len(self.agents) + cells.count + cells",
        "entries that nothing asks for",
    ),
    ignore(
        "loops/proof/order.py",
        "self.phases = [0] *",
        "self.phases = [1] *",
        "phases are compared with each other alone",
    ),
    ignore("loops/proof/order.py", "        self.alone = 0", "        self.alone = 1", _SIGN),
    ignore("loops/proof/order.py", "self.alone -= 1", "self.alone += 1", _SIGN),
)


def equivalent_texts(file: str) -> set[str]:
    """Texts of a source file with each of its equivalent mutants."""
    text = (SOURCES / file).read_text()
    return {mutant.apply(text) for mutant in EQUIVALENT if mutant.file == file}
