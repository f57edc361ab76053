"""Circular buffering as a compiler pass: plain loops over tiles become TMA and mbarrier pipelines.

A kernel is written with ``build``, checked by ``check``, rewritten by ``circular``, laid out in shared memory by
``smem``, proved free of hazards by ``hazards``; ``interpret`` says what it means before and after, ``text`` prints it.
``emit`` writes it as CUDA C++, ``compiled`` compiles that and launches it.
"""
