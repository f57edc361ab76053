"""Circular buffering as a compiler pass: plain loops over tiles become TMA and mbarrier pipelines.

A kernel is written with ``build``, checked by ``check``, rewritten by ``circular``, laid out in shared memory by
``smem``, proved free of hazards by ``proof``; ``interpret`` says what it means before and after, ``text`` prints it.
``cuda`` writes it as CUDA C++; ``compiled`` does all of that and launches it; ``op`` makes it an op of a graph.
"""
