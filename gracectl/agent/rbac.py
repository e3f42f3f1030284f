"""Permissions of the agent: to read and delete pods, and to patch its own node."""

from __future__ import annotations

from gracectl.kube.access import Right

RIGHTS = (
    *(Right(verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    Right("patch", "nodes", subresource="status"),
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "delete")),
    *(Right(verb, "events") for verb in ("create", "patch")),
)
"""All requests that it makes. RBAC cannot limit them to the agent's own node; an admission policy can."""
