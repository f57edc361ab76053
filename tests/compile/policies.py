"""Eviction hints of a kernel's bulk loads."""

from __future__ import annotations

import re


def count_hinted_loads(ptx: str) -> tuple[int, int]:
    """Return the numbers of bulk loads with the evict-first hint for the L2, and of all others."""
    policies = re.findall(r"createpolicy\.fractional\.(L2::evict_\w+)\.b64 (%rd\d+);", ptx)
    first = "|".join(register for policy, register in policies if policy == "L2::evict_first") or "none"
    loads = re.findall(r"cp\.async\.bulk\.\S*shared::cluster\.global\S* .*;", ptx)
    told = sum(bool(re.search(rf", (?:{first});$", load)) for load in loads)
    return told, len(loads) - told
