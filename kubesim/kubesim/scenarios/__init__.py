"""Scenarios: clusters described in files, their faults and timelines."""
