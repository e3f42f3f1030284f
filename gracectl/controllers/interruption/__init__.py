"""Notices that machines will go, on their nodes."""
