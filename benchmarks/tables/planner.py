"""How long planning takes, what it chooses, how well it predicts: blocks of docs/planner.md and benchmarks/notes."""

from __future__ import annotations

from typing import Any

from tables import format_table


def dependencies_table(record: dict[str, Any]) -> str:
    """The table of benchmarks/notes/records.md: CPU seconds of large graphs, now and before."""
    limit = record["limit_s"]
    rows = []
    for row in record["rows"]:
        seconds, before = row["seconds"], row["before"]
        steps = (f"{seconds[step]:.2g}" for step in ("dependencies", "build", "verify"))
        earlier = f"{sum(before.values()):.3g}" if before else f"more than {limit}"
        tiles, edges = row["counts"]["tiles"], row["counts"]["dependencies"]
        rows.append((row["graph"], f"{tiles:,}", f"{edges:,}", *steps, f"{sum(seconds.values()):.2g}", earlier))
    return format_table("graph | tiles | dependencies | find | build | verify | total, s | before, s", rows)


def chosen_table(record: dict[str, Any]) -> str:
    """The table of docs/planner.md: what the planner chose, beside the best and the default."""
    table = []
    for row in record["rows"]:
        plans = {plan["plan"]: plan for plan in row["plans"]}
        chosen, best = plans[row["chosen"]], min(plan["us"] for plan in row["plans"])
        us = (chosen["us"], best, plans[row["default"]]["us"], plans[row["plain"]]["us"], chosen["predicted_us"])
        table.append((row["row"], row["m"], len(plans), row["chosen"], *(f"{value:.1f}" for value in us)))
    worst = max(row["over_best"] for row in record["rows"])
    behind = sum(row["over_default"] > 1 for row in record["rows"])
    lines = [
        format_table("FFN | tokens | plans | chosen | us | best | default | row-major | predicted", table),
        "",
        f"The choice takes at most {worst - 1:.1%} more than the best plan measured, the defaults "
        "by rule included; they are faster than the choice in "
        f"{behind} of {len(record['rows'])} cases. "
        f"Against row-major it is {record['mean_plain_over_chosen']:.2f} times as fast in the geometric mean.",
    ]
    return "\n".join(lines)


def predicted_table(record: dict[str, Any]) -> str:
    """The table of docs/planner.md: how far predictions are off."""
    names = {"all": "all", "matmuls": "single matmuls", "ffns": "FFNs"}
    table = []
    for key, name in names.items():
        group = record["errors"][key]
        for what, words in (
            ("dram_read", "bytes from memory"),
            ("dram_read_interval", "bytes outside the interval"),
            ("time", "time"),
        ):
            cells = (f"{group[what][figure]:.1%}" for figure in ("median", "p90", "worst"))
            table.append((f"{name} ({group['cases']})", words, *cells))
    beyond = sum(abs(row["predicted"]["dram_read_error"]) > 0.12 for row in record["rows"])
    cases = record["errors"]["all"]["cases"]
    width = record["errors"]["all"]["interval_width"]
    outside = [row["predicted"]["dram_read_interval_error"] for row in record["rows"]]
    lines = (
        f"The bytes of {beyond} of {cases} cases are predicted more than 12 % too high or too low. "
        f"{outside.count(0)} counts are in the interval, {sum(abs(error) > 0.08 for error in outside)} more than 8 % "
        f"outside it. The interval is {width['median']:.0%} wide in the median, {width['p90']:.0%} at "
        "the 90th percentile."
    )
    return format_table("cases | what is predicted | median error | 90th percentile | worst", table) + f"\n\n{lines}"
