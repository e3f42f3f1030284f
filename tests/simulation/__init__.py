"""Simulation: a seed makes a world, a history and faults; unmodified controllers run in it, on virtual time."""
