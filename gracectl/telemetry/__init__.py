"""Metrics, traces, logs, and the servers of metrics and probes."""
