"""How everything that the stories put into a cluster is marked, so that nothing else is ever touched."""

from __future__ import annotations

LABEL = "gracectl-e2e"
"""On the stories' nodes, as label and as taint (NoSchedule); its value is the story's run. Their pods select and
tolerate it, and the controller under test manages no node without it.
"""
