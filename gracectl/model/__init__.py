"""Slim typed views of Kubernetes objects, and the parsers they need. Pure: no I/O, no clock."""
