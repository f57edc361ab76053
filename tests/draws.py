"""Settings of property tests: the same examples in every run on any machine; new ones with INTERLACE_RANDOM=1.

``make random`` runs all property tests with new examples, ROUNDS times over; a failure prints the blob that repeats it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hypothesis import settings

# Hypothesis also draws constants from loaded modules, which depend on earlier tests. Releases without this feature have
# nothing to turn off.
with suppress(ImportError):
    from hypothesis.internal.conjecture import providers

    providers.is_local_module_file = lambda _: False

RANDOM = os.environ.get("INTERLACE_RANDOM") == "1"
_MOST = 80 if RANDOM else 50
EXAMPLES = settings(derandomize=not RANDOM, deadline=None, database=None, max_examples=_MOST, print_blob=RANDOM)
#: Settings of tests that draw the same plans as other tests.
FEWER = settings(EXAMPLES, max_examples=_MOST if RANDOM else 30)
