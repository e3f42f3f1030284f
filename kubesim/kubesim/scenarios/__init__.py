"""Worlds to put into an embedded cluster."""
