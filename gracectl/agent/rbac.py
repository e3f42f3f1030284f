"""Permissions of the agent: to read and delete pods, and to patch its own node."""

from __future__ import annotations

from gracectl.kube.rbac import Permission

RIGHTS = (
    *(Permission(verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    Permission("patch", "nodes", subresource="status"),
    *(Permission(verb, "pods") for verb in ("get", "list", "watch", "delete")),
    *(Permission(verb, "events") for verb in ("create", "patch")),
)
"""All requests that it makes. RBAC cannot limit them to the agent's own node; an admission policy can."""
