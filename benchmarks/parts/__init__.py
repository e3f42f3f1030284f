"""Measurements of single parts, each beside the scenario that it explains."""
