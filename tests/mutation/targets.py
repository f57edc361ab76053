"""The tests of each source file whose mutants are derived, the quickest to fail first."""

from __future__ import annotations

_VERIFY = ("test_verify_fields.py", "test_verify.py")
_CONSUMERS = ("test_policies.py", "test_orders.py")
_EVENTS = ("test_loops_events.py", "test_loops_interleavings.py", "test_loops_hazards.py", "test_loops_races.py")
_EXTENTS = ("test_loops_proof.py", "test_loops_hazards.py")

TESTS: dict[str, tuple[str, ...]] = {
    "loops/proof/accesses.py": _EVENTS,
    "loops/proof/agents.py": ("test_loops_hazards.py", "test_loops_races.py", "test_loops_proof.py"),
    "loops/proof/cells.py": (*_EVENTS, "test_loops_smem.py"),
    "loops/proof/events.py": _EVENTS,
    "loops/proof/extents.py": _EXTENTS,
    "loops/proof/general.py": _EXTENTS,
    "loops/proof/hazards.py": _EVENTS,
    "loops/proof/order.py": _EVENTS,
    "loops/proof/prove.py": _EXTENTS,
    "loops/proof/scopes.py": ("test_loops_hazards.py",),
    "plan/awaited.py": ("test_posts.py", *_VERIFY),
    "plan/coverage.py": (*_VERIFY, "test_orderings.py", "test_implied.py"),
    "plan/facts.py": _VERIFY,
    "plan/implied.py": ("test_implied.py",),
    "plan/orderings.py": ("test_orderings.py", "test_verify.py"),
    "plan/posts.py": ("test_posts.py", *_VERIFY),
    "plan/record.py": ("test_proof_cache.py",),
    "plan/parse.py": ("test_plan.py", "test_plan_fields.py"),
    "plan/plan.py": ("test_plan.py", "test_plan_fields.py", "test_proof.py", "test_verify_fields.py"),
    "plan/spawns.py": ("test_spawns.py", "test_spawns_random.py"),
    "plan/stealing.py": ("test_steals.py",),
    "plan/verify.py": (
        *_VERIFY,
        "test_proof.py",
        "test_proof_cache.py::test_what_was_found_is_of_one_plan_and_all_else_is_proved_again",
        "test_spawns.py::test_parts_of_tiles_are_refused",
        "test_cli_plan_file.py::test_a_plan_file_says_of_which_ops_nothing_holds_the_text_to_what_they_declare",
    ),
    "policies/consumers.py": _CONSUMERS,
    "policies/interleavings.py": ("test_orders.py",),
    "policies/orders.py": ("test_orders.py",),
    "policies/tiling.py": ("test_tiling.py",),
    "policies/splits.py": ("test_orders.py",),
    "policies/streams.py": ("test_streams_cover.py",),
    "policies/sync.py": ("test_policies.py",),
    "megakernel/ll_epochs.py": ("test_ll_epochs.py", "test_ll_ends.py"),
    "megakernel/ll_proof.py": ("test_ll_epochs.py", "test_ll_proof.py"),
    "executors/reference.py": (
        "test_reference_executor.py",
        "test_steals.py::test_items_are_stolen_by_whoever_has_none_left_and_all_are_right",
        "test_spawns.py",
        "test_reference_ll.py",
        "test_executor_errors.py",
    ),
}
