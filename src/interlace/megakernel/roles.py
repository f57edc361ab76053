"""The kernel as CUDA C++: for each role of a block its loop over items; who does what says ``megakernel/walk``."""

from __future__ import annotations

from interlace.csrc import read_header

#: After the bodies and, for each role, a function that branches to the code of an item.
ROLES = read_header("roles.cuh")
