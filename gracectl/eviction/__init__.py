"""Evictions and deletions of pods: a PDB queue per budget, a parallel queue without, a timer per deadline."""
