"""Memory available to the process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def get_available_bytes() -> int:
    """Return the bytes of memory that this process can allocate before the system swaps or kills it.

    The result is the minimum of the machine's free memory, the limit of the process's control group, and the limit of
    its address space; unknown values are skipped. It is an estimate, because other processes allocate memory too.
    """
    known = (_read_available_memory(), _read_cgroup_limit(), _read_address_space_limit())
    return min((number for number in known if number is not None), default=sys.maxsize)


def _read_available_memory() -> int | None:
    """Return Linux's available memory, which includes reclaimable caches; on other systems, all physical memory."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None


def _read_cgroup_limit() -> int | None:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no control groups of version 2, or "max"
        return None


def _read_address_space_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit
