"""Conversion of the KV caches of a decode step to pages and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

NAN = float("nan")
STEPS = 3  # steps for which sequences have pages


def in_pages(t: Mapping[str, torch.Tensor], pages: int, page: int = 64) -> dict[str, torch.Tensor]:
    """Return the inputs of a step with pools of pages and a table in place of caches (B, heads, capacity, D).

    Pages are in no particular order. Each sequence has pages for a few steps; all other pages hold NaN.
    """
    caches = [name for name in t if name.endswith("_cache")]
    batch, _, capacity, _ = t[caches[0]].shape
    free = torch.randperm(pages, generator=torch.Generator().manual_seed(pages)).tolist()
    table = torch.full((batch, -(-capacity // page)), -1, dtype=torch.int32)
    for b, at in enumerate(t["position"].tolist()):
        for n in range(min((at + STEPS) // page + 1, table.shape[1])):
            table[b, n] = free.pop()
    made = {**t, "table": table.to(t["position"].device)}
    for name in caches:
        old = t[name]
        made[name] = torch.full((pages, old.shape[1], page, old.shape[3]), NAN, dtype=old.dtype, device=old.device)
        for b, n in (table >= 0).nonzero().tolist():
            rows = old[b, :, n * page : (n + 1) * page]
            made[name][table[b, n], :, : rows.shape[1]] = rows
    return made


def in_rows(t: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert pools of pages back to caches, with NaN where a sequence has no page."""
    made, table = {name: value for name, value in t.items() if name != "table"}, t["table"].tolist()
    capacity = len(t["rope"])
    for name in (name for name in t if name.endswith("_cache")):
        _, heads, page, d = t[name].shape
        none = torch.full((heads, page, d), NAN, dtype=t[name].dtype, device=t[name].device)
        rows = [torch.cat([none if n < 0 else t[name][n] for n in row], dim=1)[:, :capacity] for row in table]
        made[name] = torch.stack(rows)
    return made
