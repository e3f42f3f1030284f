"""Terminations of nodes and claims: the reconcile loops, a module per step, and the reports."""
