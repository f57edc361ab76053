"""Planted faults, each with the tests that must fail: ``make thorough`` plants them one after another.

A line is a source file, a text that occurs there exactly once, what replaces it, and node ids below ``tests/unit``. A
test of every run holds the texts to the sources; where the code has changed, change the line with it.

    mutant("plan/plan.py", "np.maximum.at(last,", "np.minimum.at(last,", "test_verify_fields.py"),
"""

from __future__ import annotations

from .plant import Mutant


def mutant(file: str, old: str, new: str, *tests: str) -> Mutant:
    """One line of the list."""
    return Mutant(file, old, new, tests)


NO_POSTS = "test_verify.py::test_wait_for_no_posts_at_all_is_refused"
LIMIT = "test_verify_fields.py::test_a_semaphore_of_too_many_posts_is_refused"
KEPT = "test_proof_cache.py::test_what_was_found_is_of_one_plan_and_all_else_is_proved_again"
PARTS = "test_spawns.py::test_parts_of_tiles_are_refused"
FIELDS = "test_verify_fields.py::test_a_plan_with_one_number_changed_is_judged_as_by_the_oracle"
SEVERAL = "test_verify_fields.py::test_a_plan_with_several_numbers_changed_is_judged_as_by_the_oracle"
BATCHES = "test_verify_fields.py::test_verdicts_do_not_depend_on_how_much_is_looked_at_together"
NAMED = "test_verify_fields.py::test_the_first_four_semaphores_that_were_awaited_are_named"
LATEST = "test_verify_fields.py::test_the_latest_item_that_is_awaited_is_the_last_that_posts"
IMPLIED = "test_implied.py::test_orders_of_ops_are_those_of_the_rules_and_hold_in_every_run"
ACCEPTED = "test_loops_events.py::test_events_in_order_are_accepted"
REFUSED = "test_loops_events.py::test_events_that_go_wrong_are_named"
ALIKE = "test_loops_events.py::test_blocks_are_alike_only_if_their_events_are_of_one_type"
CELLS = "test_loops_events.py::test_cells_share_bytes_as_in_the_worked_example_of_the_module"
EVENTS = "test_loops_events.py::test_a_block_that_came_before_is_not_followed_again"
LOADS = "test_loops_events.py::test_tiles_are_loaded_once_by_one_thread_or_by_all"
STOLEN = "test_reference_executor.py::test_a_thief_takes_at_most_so_many_items_and_at_most_half_of_the_rest"
VICTIM = "test_reference_executor.py::test_the_next_victim_is_the_next_by_number_and_after_the_last_the_first"
SPAWNS = "test_spawns.py"
POLLS = "test_ll_epochs.py"
FIELDS_BY_HAND = "test_plan_fields.py"
SUMS = "test_reference_executor.py::test_parts_of_a_sum_are_added_in_the_order_of_the_reduction_whoever_is_first"

WHOLE = "test_posts.py::test_what_is_awaited_is_known_range_by_range_and_one_by_one"
RANGES = "test_posts.py::test_ranges_hold_what_the_tiles_post_and_nothing_else"
SEMAPHORES = "test_policies.py::test_semaphores_of_a_grid_of_two_by_three"
SPLITS = "test_orders.py::test_splits_of_six_tiles_of_four_chunks"
ORDERS = "test_orders.py::test_orders_are_those_of_the_table_in_the_module"
STREAMS = "test_streams_cover.py::test_streams_and_the_fewest_events_keep_every_dependency"
SEVERAL_ITEMS = "test_policies.py::test_nor_do_items_behind_tiles_of_several_items_or_chunks_that_need_the_whole_op"
SHARED = "test_orders.py::test_a_consumer_comes_after_all_tiles_that_share_the_semaphore_it_waits_for"
HIGHEST = "test_verify_fields.py::test_the_highest_number_of_any_range_of_semaphores_is_found"
HALVES = "test_orders.py::test_half_rows_are_halves_of_the_last_coordinate"
LEVELLED = "test_orders.py::test_a_last_wave_is_cut_so_that_those_who_end_it_finish_with_those_who_begin"
URGENCY = "test_streams_cover.py::test_urgency_ranks_streams_by_the_longest_path_through_their_ops"
CHAINS = "test_streams_cover.py::test_as_many_chains_as_streams_keep_their_numbers"
HAZARDS = "test_loops_hazards.py"
RACES = "test_loops_races.py"
EXTENTS = "test_loops_proof.py"
TELLING = "test_loops_proof.py::test_few_numbers_of_steps_and_blocks_tell_all"

MUTANTS: tuple[Mutant, ...] = (
    # ------------------------------------------------ plan/verify.py
    mutant("plan/verify.py", "np.maximum, posts) != threshold", "np.maximum, posts) < threshold", FIELDS),
    mutant("plan/verify.py", "np.minimum, posts) != threshold", "np.minimum, posts) > threshold", FIELDS),
    mutant("plan/verify.py", "bad |= threshold < 1", "bad |= threshold < 0", NO_POSTS),
    mutant(
        "plan/verify.py",
        "if plan.dispatch is not Dispatch.STATIC or plan.workers == 1:",
        "if plan.dispatch not in (Dispatch.STATIC, Dispatch.HYBRID) or plan.workers == 1:",
        FIELDS,
    ),
    mutant(
        "plan/verify.py",
        "if plan.dispatch is not Dispatch.STATIC or plan.workers == 1:",
        "if plan.dispatch not in (Dispatch.STATIC, Dispatch.STEALING) or plan.workers == 1:",
        FIELDS,
    ),
    mutant(
        "plan/verify.py",
        "if plan.dispatch is not Dispatch.STATIC or plan.workers == 1:",
        "if plan.dispatch not in (Dispatch.STATIC, Dispatch.QUEUE) or plan.workers == 1:",
        FIELDS,
    ),
    mutant("plan/verify.py", "posts.max() >= _POSTS_LIMIT", "posts.max() > _POSTS_LIMIT", LIMIT),
    mutant("plan/verify.py", "if cached.plan_hash != hash_plan(plan):", "if False:", KEPT),
    mutant("plan/verify.py", "        Spawns.from_plan(plan)\n", "        pass\n", PARTS),
    mutant("plan/verify.py", "    if len(order) < n:", "    if len(order) < n - 1:", FIELDS, SEVERAL),
    mutant("plan/verify.py", "while low < end and not posts_left[low]:", "while low < end:", FIELDS),
    mutant("plan/verify.py", "blocked[by_worker[1:][same]] += 1", "blocked[by_worker[1:][same]] += 0", FIELDS),
    mutant(
        "plan/verify.py", "            continue\n        posts_left", "            pass\n        posts_left", FIELDS
    ),
    mutant("plan/verify.py", "low, (end - low) // step, step", "low, (end - low) * step, step", FIELDS),
    mutant("plan/verify.py", "longest = d + 1", "longest = d", FIELDS),
    mutant("plan/verify.py", "best = max(best, self._block", "best = min(best, self._block", HIGHEST),
    # ------------------------------------------------ plan/coverage.py
    mutant(
        "plan/coverage.py",
        "overtaking = plan.dispatch.can_reorder or",
        "overtaking = plan.dispatch is Dispatch.QUEUE or",
        FIELDS,
    ),
    mutant(
        "plan/coverage.py",
        "overtaking = plan.dispatch.can_reorder or",
        "overtaking = plan.dispatch is Dispatch.DISPATCHER or",
        FIELDS,
    ),
    mutant("plan/coverage.py", "lowest = np.minimum.reduceat(of_part", "lowest = np.maximum.reduceat(of_part", FIELDS),
    mutant(
        "plan/coverage.py", "highest = np.maximum.reduceat(of_part", "highest = np.minimum.reduceat(of_part", FIELDS
    ),
    mutant("plan/coverage.py", "lowest == highest, lowest, -1)", "lowest == highest, lowest, -2)", FIELDS),
    mutant("plan/coverage.py", "self.tile_last = np.maximum", "self.tile_last = np.minimum", FIELDS),
    mutant("plan/coverage.py", "lowest == highest, lowest, -2)", "lowest == highest, lowest, 2)", FIELDS),
    mutant("plan/coverage.py", "first = np.minimum.reduceat(items", "first = np.maximum.reduceat(items", FIELDS),
    mutant("plan/coverage.py", "fold(np.minimum, self.tile_worker", "fold(np.maximum, self.tile_worker", FIELDS),
    mutant("plan/coverage.py", "fold(np.maximum, self.tile_worker", "fold(np.minimum, self.tile_worker", FIELDS),
    mutant("plan/coverage.py", "fold(np.maximum, self.tile_last", "fold(np.minimum, self.tile_last", FIELDS),
    mutant("plan/coverage.py", "self.box[cases] - start", "self.box[cases]", BATCHES),
    mutant("plan/coverage.py", "np.arange(a + c, a + d,", "np.arange(a, a + d - c,", BATCHES),
    mutant("plan/coverage.py", "self.link.hazard is not Hazard.RAW", "True", FIELDS),
    mutant("plan/coverage.py", "at = groups.ptr[row] + depth", "at = groups.ptr[row] - depth", FIELDS),
    mutant("plan/coverage.py", "if len(awaited) > _MAX_LISTED else", "if len(awaited) >= _MAX_LISTED else", NAMED),
    # ------------------------------------------------ plan/implied.py
    mutant("plan/implied.py", "silent == 0", "silent >= 0", IMPLIED),
    mutant("plan/implied.py", "self._all_wait and any_of", "any_of", IMPLIED),
    mutant("plan/implied.py", "self._all_wait and every", "every", IMPLIED),
    mutant("plan/implied.py", "(owner >= 0) & known[owner]", "(owner >= 0)", IMPLIED),
    mutant("plan/implied.py", "(of_item == size).all()", "(of_item > 0).all()", IMPLIED),
    mutant("plan/implied.py", "(of_item > 0).all()", "(of_item > 0).any()", IMPLIED),
    mutant("plan/implied.py", "int(together) == size", "int(together) >= 1", IMPLIED),
    mutant("plan/implied.py", "found[:, c] |= ended[:, p]", "found[:, c] |= ended[:, p] | each[:, p]", IMPLIED),
    mutant("plan/implied.py", "complete = len(item) == sizes[c]", "complete = True", IMPLIED),
    mutant("plan/implied.py", "waits.k[rows] <= items.k_lo[item]\n", "waits.k[rows] <= items.k_hi[item]\n", IMPLIED),
    mutant("plan/implied.py", "each[p, c] |= all_together and post[p]", "each[p, c] |= all_together", IMPLIED),
    # ------------------------------------------------ plan/facts.py
    mutant(
        "plan/facts.py",
        "(self.wait_last[self.wait_class] < self.wait_item)",
        "(self.wait_last[self.wait_class] <= self.wait_item)",
        FIELDS,
    ),
    mutant(
        "plan/facts.py", "(post < -1) | (post >= plan.semaphores)", "(post < -1) | (post > plan.semaphores)", FIELDS
    ),
    mutant("plan/facts.py", "| (waits.k < 0)", "", FIELDS),
    mutant("plan/facts.py", "(waits.k >= items.k_hi[owner])", "(waits.k > items.k_hi[owner])", FIELDS),
    mutant("plan/facts.py", "(closes & (k_hi != extent))", "(closes & (k_hi > extent))", FIELDS),
    mutant("plan/facts.py", "(waits.count > steps + 1)", "(waits.count > steps + 2)", FIELDS),
    mutant("plan/facts.py", "| late[:1]", "", FIELDS),
    mutant("plan/facts.py", "| (late != (items.worker < 0))", "", FIELDS),
    # ------------------------------------------------ plan/plan.py
    mutant("plan/plan.py", "np.maximum.at(last,", "np.minimum.at(last,", FIELDS, LATEST),
    mutant("plan/plan.py", "awaited = fold(np.maximum", "awaited = fold(np.minimum", LATEST),
    mutant("plan/plan.py", "np.maximum.at(latest", "np.minimum.at(latest", LATEST),
    # ------------------------------------------------ plan/awaited.py
    mutant("plan/awaited.py", "& (posted.last <= low + (count - 1) * step)", "", WHOLE),
    mutant("plan/awaited.py", "& ((posted.first - low) % step == 0)", "", WHOLE),
    mutant("plan/awaited.py", "((posted.count == 1) | (posted.stride % step == 0))", "(posted.count >= 1)", WHOLE),
    mutant("plan/awaited.py", "& (np.append(own, -1)[candidate] == row)", "", WHOLE),
    # ------------------------------------------------ plan/posts.py
    mutant("plan/posts.py", "| (threshold[1:] != threshold[:-1])", "", RANGES),
    mutant("plan/posts.py", "(since % 2 == 1)", "(since % 2 == 0)", "test_posts.py"),
    mutant(
        "plan/posts.py", "np.maximum(np.abs(b - a) // np.maximum(count - 1, 1), 1)", "np.ones_like(a)", "test_posts.py"
    ),
    mutant("plan/posts.py", "some = whole <= last - (high", "some = whole <= last + (high", RANGES),
    # ------------------------------------------------ policies
    mutant("policies/sync.py", "coords[:, 0] // self.rows", "coords[:, 0] % self.rows", SEMAPHORES),
    mutant("policies/sync.py", "coords[:, -1] % stride", "coords[:, -1] // stride", SEMAPHORES),
    mutant("policies/sync.py", "min(self.stride, grid[-1])", "self.stride", SEMAPHORES),
    mutant("policies/splits.py", "order = np.lexsort((tile, lo))", "order = np.lexsort((lo, tile))", SPLITS),
    mutant("policies/splits.py", "np.arange(max(tiles - self.tiles, 0), tiles", "np.arange(0, self.tiles", SPLITS),
    mutant("policies/orders.py", "np.where(row % 2 == 0, column,", "np.where(row % 2 == 1, column,", ORDERS),
    mutant("policies/orders.py", "np.where(step % 2 == 0, row, -row)", "row", ORDERS),
    mutant("policies/orders.py", "if (count != 1).any():", "if (count > 1).any():", "test_orders.py"),
    mutant("policies/interleavings.py", "group[mine] = ready + lag", "group[mine] = ready", "test_orders.py"),
    mutant("policies/interleavings.py", "ready = np.maximum(ready,", "ready = np.minimum(ready,", "test_orders.py"),
    mutant("policies/interleavings.py", "np.maximum.at(tile_group", "np.minimum.at(tile_group", "test_orders.py"),
    mutant(
        "policies/interleavings.py", "np.where(post[tiles] >= 0, shared", "np.where(post[tiles] > 0, shared", SHARED
    ),
    mutant("policies/interleavings.py", "coords[:, -1] * 2 >= grid[-1]", "coords[:, 1] * 2 >= grid[-1]", HALVES),
    mutant("policies/splits.py", "chunks * ends_each // (ends_each + 1)", "chunks // 2", LEVELLED),
    mutant("policies/streams.py", "ahead[v] + weights[v] + behind[v])", "ahead[v] + behind[v])", URGENCY),
    mutant("policies/streams.py", "if len(found) <= most:", "if len(found) < most:", CHAINS),
    mutant("policies/streams.py", "if not implied >> u & 1:", "if True:", STREAMS),
    mutant("policies/streams.py", "implied |= behind[u] | 1 << u", "implied |= behind[u]", STREAMS),
    mutant("policies/streams.py", "fresh = ancestors[w] & ~seen", "fresh = ancestors[w]", "test_streams_cover.py"),
    mutant(
        "policies/consumers.py", "if op in awaited or some.link.hazard is Hazard.RAW", "if True", "test_policies.py"
    ),
    mutant("policies/consumers.py", "if not moving or not (split or self.by_chunk):", "if True:", SEVERAL_ITEMS),
    mutant(
        "policies/consumers.py",
        "start | self._find_ended_before_tiles(",
        "start & self._find_ended_before_tiles(",
        "test_policies.py",
    ),
    mutant(
        "policies/consumers.py",
        "np.subtract.at(step, runs.last[which] + 1,",
        "np.subtract.at(step, runs.last[which],",
        "test_policies.py",
    ),
    # ------------------------------------------------ loops/proof/hazards.py
    mutant("loops/proof/hazards.py", "return type(event), *event", "return event", ALIKE),
    mutant(
        "loops/proof/hazards.py",
        "for a in traces.agents), tuple(steps.work)",
        "for a in traces.agents[:1]), tuple(steps.work)",
        "test_loops_events.py",
    ),
    mutant(
        "loops/proof/hazards.py", "steps.work if i in traces.consumers else []", "steps.work", "test_loops_events.py"
    ),
    mutant("loops/proof/hazards.py", "if len(who) != 1 if by_tma else not who:", "if not who:", LOADS),
    # ------------------------------------------------ loops/proof/accesses.py
    mutant(
        "loops/proof/accesses.py",
        "self._cells[other].content = self._cells[other].content_before = 0",
        "pass",
        REFUSED,
    ),
    mutant(
        "loops/proof/accesses.py",
        "self._cells[other].content = self._cells[other].content_before = 0",
        "self._cells[other].content = 0",
        REFUSED,
    ),
    mutant("loops/proof/accesses.py", "if len(mine) > 1:", "if len(mine) > 0:", REFUSED),
    mutant("loops/proof/accesses.py", "(*at.before, *at.now) if together else at.now", "at.now", REFUSED),
    mutant("loops/proof/accesses.py", "if x.write or y.write:", "if x.write and y.write:", REFUSED),
    mutant(
        "loops/proof/accesses.py", "part = BEGUN if self.cells.is_barrier(cell) else FENCED", "part = BEGUN", REFUSED
    ),
    mutant(
        "loops/proof/accesses.py",
        "x.asynchronous and y.write and not y.asynchronous",
        "x.asynchronous and not y.asynchronous",
        ACCEPTED,
    ),
    # ------------------------------------------------ loops/proof/order.py
    mutant("loops/proof/order.py", "told = slice(None) if releases else CAME", "told = slice(None)", REFUSED),
    mutant("loops/proof/order.py", "if life.arriving[CAME, agent] < time:", "if False:", REFUSED),
    mutant("loops/proof/order.py", "if life.phase - life.first > phase + 1:", "if False:", REFUSED),
    mutant("loops/proof/order.py", "or life.pending < arrivals:", "or False:", REFUSED),
    mutant("loops/proof/order.py", "if life.pending or life.bytes:", "if life.pending:", "test_loops_events.py"),
    mutant("loops/proof/order.py", "groups[len(groups) - event.pending :] if event.pending else []", "[]", REFUSED),
    mutant(
        "loops/proof/order.py",
        "clock[BEGUN, i] = clock[KNOWN, i]",
        "clock[BEGUN] = clock[KNOWN]",
        "test_loops_events.py",
    ),
    # ------------------------------------------------ loops/proof, what is followed
    mutant("loops/proof/cells.py", "spans[j][0] < spans[i][1]", "spans[j][0] <= spans[i][1]", CELLS),
    mutant("loops/proof/cells.py", "p.offset_bytes + slot * p.slot_bytes", "p.offset_bytes + slot", CELLS),
    mutant("loops/proof/hazards.py", "sum(self._events.values()) - before", "sum(self._events.values())", EVENTS),
    mutant("loops/proof/cells.py", "spans[j][0] < spans[i][1]", "spans[j][0] < spans[i][0]", "test_loops_events.py"),
    mutant(
        "loops/proof/cells.py",
        "if not 0 <= slot < self._slots[name]:",
        "if not 0 <= slot <= self._slots[name]:",
        HAZARDS,
    ),
    mutant("loops/proof/agents.py", "1 if self.lagging else 0", "0", RACES),
    mutant("loops/proof/agents.py", "self._emit_events(scope.agents, Fence(everything=True))", "pass", RACES),
    mutant("loops/proof/agents.py", 'agents.append(Agent(f"{role}, second warp", WARP, 1))', "pass", HAZARDS, RACES),
    mutant("loops/proof/extents.py", "while high - low > 1:", "while high - low > 2:", EXTENTS),
    mutant("loops/proof/extents.py", "self._take({**more, symbol: more[symbol] - 1})", "pass", EXTENTS),
    mutant(
        "loops/proof/general.py",
        "return 2 * ring.stages + 1 + ring.prefetch",
        "return ring.stages + 1 + ring.prefetch",
        EXTENTS,
    ),
    mutant("loops/proof/general.py", "extent - 2, extent - 1)", "extent - 2)", TELLING),
    mutant("loops/proof/scopes.py", "if stmt.var in known:", "if False:", HAZARDS),
    mutant("loops/proof/prove.py", "if stmt not in reached:", "if False:", EXTENTS),
    # ------------------------------------------------ executors/reference.py
    mutant("executors/reference.py", "half = (len(rest) + 1) // 2", "half = len(rest)", STOLEN),
    mutant("executors/reference.py", "half = (len(rest) + 1) // 2", "half = len(rest) // 2", STOLEN),
    mutant("executors/reference.py", "min(half, stealing.most)", "stealing.most", STOLEN),
    mutant("executors/reference.py", "key=lambda w: (w < worker, w)", "key=lambda w: w", VICTIM),
    mutant("executors/reference.py", "for k in sorted(parts)]", "for k in parts]", SUMS),
    # ------------------------------------------------ plan/spawns.py, and spawning in executors/reference.py
    mutant("plan/spawns.py", "if len(late_spawner):", "if False:", SPAWNS, "test_spawns_random.py"),
    mutant("plan/spawns.py", "if len(both):", "if False:", SPAWNS, "test_spawns_random.py"),
    mutant("plan/spawns.py", "late[items.post[item]] = True", "pass", SPAWNS, "test_spawns_random.py"),
    mutant("plan/spawns.py", "(high - low != 1).any()", "False", SPAWNS, "test_spawns_random.py"),
    mutant(
        "plan/spawns.py",
        "part[...] = item_of[tile]",
        "part[...] = np.where(part < 0, item_of[tile], part)",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("plan/spawns.py", "if len(nobody):", "if False:", SPAWNS, "test_spawns_random.py"),
    mutant(
        "plan/spawns.py",
        "access.tensor in graph.inputs or (part >= 0).any()",
        "access.tensor in graph.inputs",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "plan/spawns.py",
        "access.tensor in graph.inputs or (part >= 0).any()",
        "(part >= 0).any()",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "plan/spawns.py",
        "elif any(map(len, awaited)):",
        "elif all(map(len, awaited)):",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "plan/spawns.py",
        "other = [by for by in posters if by not in line]",
        "other = []",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("plan/spawns.py", "by = int(spawner[by])\n    other", "by = -1\n    other", SPAWNS, "test_spawns_random.py"),
    mutant(
        "plan/spawns.py",
        "for s in some for by in posters[s]",
        "for s in some for by in posters[s][:1]",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("plan/spawns.py", "tensor.dtype is not int32 or", "", SPAWNS, "test_spawns_random.py"),
    mutant("plan/spawns.py", "if len(split):", "if False:", SPAWNS, "test_spawns_random.py"),
    mutant(
        "plan/spawns.py",
        "kept = zero | {find_when_tensor(op) for op in graph.ops if op.when}",
        "kept = {find_when_tensor(op) for op in graph.ops if op.when}",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("plan/spawns.py", "late = spawned.copy()", "late = np.zeros_like(spawned)", SPAWNS, "test_spawns_random.py"),
    mutant(
        "plan/spawns.py",
        "waits.stride[row] * np.arange(waits.count[row])",
        "np.arange(waits.count[row])",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "plan/spawns.py",
        "waits.stride[row] * np.arange(waits.count[row])",
        "waits.stride[row] * np.arange(1)",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("executors/reference.py", "self._unspawned.remove(child)", "pass", SPAWNS),
    mutant(
        "executors/reference.py",
        "            for never in self._unspawned:\n                self._post(never)",
        "            pass",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("executors/reference.py", "self._outstanding += 1", "pass", SPAWNS, "test_spawns_random.py"),
    mutant(
        "executors/reference.py",
        "if wanted[self._spawns.element[child]]:",
        "if True:",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant("executors/reference.py", "self._memory[name][...] = 0.0", "pass", SPAWNS, "test_spawns_random.py"),
    mutant(
        "executors/reference.py",
        "if self._spawns is None or self._outstanding == 0:",
        "if self._spawns is None:",
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "executors/reference.py",
        '        self._queue_children(item)\n        yield "posted"',
        '        yield "posted"\n        self._queue_children(item)',
        SPAWNS,
        "test_spawns_random.py",
    ),
    mutant(
        "executors/reference.py",
        "        while self._outstanding:\n            yield self._queued.popleft() if self._queued else -1",
        "        while self._queued:\n            yield self._queued.popleft()",
        SPAWNS,
        "test_spawns_random.py",
    ),
    # ------------------------------------------------ LL words: what polls show, and the plan that is proved
    mutant("megakernel/ll_epochs.py", "                if before >= 0:", "                if False:", POLLS),
    mutant("megakernel/ll_epochs.py", "if len(ops) > 1]", "if len(ops) > 2]", POLLS, "test_ll_ends.py"),
    mutant(
        "megakernel/ll_epochs.py",
        "            left[box] = use.op if use.writes else -1",
        "            left[box if use.writes else ...] = use.op if use.writes else -1",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant(
        "megakernel/ll_epochs.py",
        "            left[box] = use.op if use.writes else -1",
        "            left[box] = -1",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant("megakernel/ll_epochs.py", "{a.tensor for a in wanted} <= polled and", "", POLLS, "test_ll_ends.py"),
    mutant(
        "megakernel/ll_epochs.py",
        "if body.ll.needs_reads else",
        "if not body.ll.needs_reads else",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant(
        "megakernel/ll_epochs.py",
        "    if body.ll.reads_before_stores is not None and body.ll.reads_before_stores(publisher):\n"
        "        return True\n",
        "",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant(
        "megakernel/ll_epochs.py",
        "    return {a.tensor",
        "    return True or {a.tensor",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant(
        "megakernel/ll_epochs.py",
        "    return bool(((lo[",
        "    return True or bool(((lo[",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant(
        "megakernel/ll_epochs.py",
        "(lo == 0).all() and (hi",
        "(lo == 0).any() and (hi",
        POLLS,
        "test_ll_ends.py",
    ),
    mutant("megakernel/ll_proof.py", "    if unpolled is not None:", "    if False:", POLLS),
    mutant(
        "megakernel/ll_proof.py",
        "        post = np.select([roles[op, which] == role for role in own], [*own.values()], posts[of])",
        "        post = posts[of]",
        POLLS,
    ),
    mutant("megakernel/ll_proof.py", "_check_polls(bodies, found, dependencies)", "pass", POLLS),
    # ------------------------------------------------ plans by hand and from files
    mutant("plan/parse.py", "        if name in data:", "        if False:", FIELDS_BY_HAND),
    mutant("graph/access.py", "max(n - 1, 1)", "(n - 1)", FIELDS_BY_HAND),
    mutant(
        "plan/plan.py",
        "if column.dtype.hasobject or not column.ndim:",
        "if column.dtype.hasobject:",
        FIELDS_BY_HAND,
    ),
    mutant(
        "plan/plan.py",
        "            frozen = np.frombuffer(column.tobytes(), column.dtype).reshape(column.shape)\n",
        "            frozen = column\n            frozen.setflags(write=False)\n",
        FIELDS_BY_HAND,
    ),
    mutant("graph/graph.py", "body is None or not body.has_op_factory,", "False,", "test_cli_plan_file.py"),
)
