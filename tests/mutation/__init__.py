"""Mutation testing: plant one fault in a copy of the sources, and see which tests fail.

``mutants`` is the list of planted faults, ``targets`` names the tests of each source file, ``operators`` derives
further mutants from the syntax tree, ``plant`` runs tests on a mutant. ``python -m tests.mutation`` reports survivors.
"""
