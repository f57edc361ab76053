"""Text of the one launch whose inputs come through the ring behind its items' waits, and how its items pass through it.

Rows that earlier items produce are loaded while consumers are still at the items before, and stores of those are under
way: memory has work all the time, and a consumer that wants a row twice has it in shared memory.

    independent loads    open each stage with no bytes
    dependent loads      wait for the item's semaphores, then open a stage for each piece and load it
    consumers            wait for each stage, read it, hand it back; store

Every item of an op has the same number of stages. ``LOADS`` is a struct of the text, made from the tile and its
arguments: ``STAGES_OF_TILE``; ``bytes(n)`` of stage n; and ``load(n, target, barrier)``, which all lanes of a warp call
together to begin bulk copies of so many bytes into the slot of dependent operands at ``target``. Where a tile ends
beyond its tensors, its last stages have no bytes.

Warpgroups share nothing but these stages: each has its own part of the scratch, and they do not meet.
"""

from __future__ import annotations

from interlace.csrc import read_header

POST_WAIT_LOADS = read_header("ring/fetched.cuh")
