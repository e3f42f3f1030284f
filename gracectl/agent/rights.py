"""What the agent must be allowed to do on a cluster: to read and end pods, and to mark its own node."""

from __future__ import annotations

from gracectl.kube.access import Right

RIGHTS = (
    *(Right(verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    Right("patch", "nodes", subresource="status"),
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "delete")),
    *(Right(verb, "events") for verb in ("create", "patch")),
)
"""Everything that it ever asks of a cluster. A role cannot say "only on its own node"; an admission policy can."""
