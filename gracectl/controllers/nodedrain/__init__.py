"""Campaigns over nodes (NodeDrain)."""
