"""Composition roots: each builds a program from the settings and runs its components."""
