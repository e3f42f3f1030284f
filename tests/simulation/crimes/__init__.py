"""Crimes: what no controller may do."""
