"""Lists from which others take when their own are empty, as CUDA C++; see ``megakernel/dispatch``.

``heads`` has a word for each list: the rows that are left of it, and the run; in another run's word none are left, and
the list is as the plan has it. It is changed by compare and swap, but that a thief stores its own, which is empty and
stays so until then. As the first row of what is taken is in no list any more, no word is ever found again in a run.
"""

from __future__ import annotations

from interlace.csrc import read_header

#: Of a row's number where two lie in one word beside 16 bits of the run.
ROW_BITS = 24

#: Behind ``await_finished`` and ``waits_for_none``.
STEALING = read_header("dispatch/stealing.cuh")
