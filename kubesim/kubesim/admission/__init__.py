"""Admission webhooks: called before something is written or deleted."""
