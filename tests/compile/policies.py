"""Which bulk loads of a kernel tell the L2 what to give up first."""

from __future__ import annotations

import re


def hinted(ptx: str) -> tuple[int, int]:
    """Bulk loads that tell the L2 to give up their lines first, and the others."""
    policies = re.findall(r"createpolicy\.fractional\.(L2::evict_\w+)\.b64 (%rd\d+);", ptx)
    first = "|".join(register for policy, register in policies if policy == "L2::evict_first") or "none"
    loads = re.findall(r"cp\.async\.bulk\.\S*shared::cluster\.global\S* .*;", ptx)
    told = sum(bool(re.search(rf", (?:{first});$", load)) for load in loads)
    return told, len(loads) - told
