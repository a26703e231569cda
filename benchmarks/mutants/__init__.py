"""Measure what the tests find: change one operator or number of a sound module at a time, and run the tests.

`make mutants`, or `python -m benchmarks.mutants --help`. The result is in table.tsv and summary.md beside this file.
"""
