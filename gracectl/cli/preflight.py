"""What is looked at before anything is asked of any node: which of them nobody would drain.

Invariant: where one of the nodes cannot be drained, nothing is asked of the others either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gracectl.cli.elapsed import elapsed
from gracectl.config import Settings
from gracectl.inspect.forecast import neglect
from gracectl.model.node import Node
from gracectl.policy.warnings import WarningKind


class Undrainable(Exception):
    """Nothing was asked for, as some nodes cannot be drained; the message names each of them, and says why."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        listed = "\n".join(f"  - {name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"nothing was changed, as not all of these nodes can be drained:\n{listed}")


def check(nodes: Iterable[Node], settings: Settings, now: float, *, keeps: bool, by_default: bool) -> None:
    """Raise Undrainable unless all of these nodes would be drained, or are already.

    `now`: Unix seconds. `keeps`: they are to stay. `by_default`: the settings are nobody's own.
    """
    reasons = {node.name: _reason(node, settings, now, keeps, by_default) for node in nodes}
    bad = {name: reason for name, reason in reasons.items() if reason}
    if bad:
        raise Undrainable(bad)


def ending_for(node: Node, now: float) -> str:
    """Of a node that somebody has deleted: since when."""
    assert node.deletion_timestamp is not None
    return f"is being deleted already, for {elapsed(max(now - node.deletion_timestamp, 0.0))}"


def _reason(node: Node, settings: Settings, now: float, keeps: bool, by_default: bool) -> str:
    if keeps and node.deletion_timestamp is not None:
        return f"it {ending_for(node, now)}, and nobody can take that back"
    caution = neglect(settings.termination, node, keeps=keeps)
    if caution is None:
        return ""
    if caution.kind is WarningKind.NOT_MANAGED and by_default:
        return f"{caution.message}; give the controller's own settings with --config"
    return caution.message
