"""Planted bugs, each of which the tests must catch: `make mutants`."""
