"""NodeDrain of a command: what it requests, and how the command follows it.

The name is chosen here, so that it is known whatever happens to the response. The object outlives the command.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from gracectl.cli.report import Json
from gracectl.model.budget import scaled_value
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.nodedrain import Action, OnUndrainable, Order
from gracectl.model.windows import Window

LONGEST_REASON = 1024
KEPT_SECONDS = 7 * 86_400
"""A finished NodeDrain of a command is deleted after this time."""


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """What a command requests by a NodeDrain. `verb`: drain, terminate or rotate. `at_once`: nodes, or `10%`; None:
    all. `timeout`: seconds for each node."""

    verb: str
    reason: str
    at_once: int | str | None = None
    on_undrainable: OnUndrainable = OnUndrainable.WAIT
    order: Order = Order.BY_FORECAST
    timeout: float | None = None
    windows: Sequence[Window] = ()

    def new_name(self) -> str:
        """A new name."""
        return f"{self.verb}-{secrets.token_hex(3)}"

    def manifest(self, name: str, nodes: Sequence[str]) -> Json:
        """The object for these nodes, without apiVersion and kind."""
        spec: Json = {
            "nodeNames": list(nodes),
            "action": Action.DRAIN if self.verb == "drain" else Action.TERMINATE,
            "maxConcurrent": "100%" if self.at_once is None else self.at_once,
            "waitForReplacement": self.at_once is not None,
            "order": self.order,
            "onUndrainable": self.on_undrainable,
            "reason": self.reason[:LONGEST_REASON],
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        }
        if self.timeout is not None:
            spec["timeout"] = format_duration(round(self.timeout) * NANOSECONDS_PER_SECOND)
        if self.windows:
            spec["windows"] = msgspec.to_builtins(self.windows)
        return {"metadata": {"name": name}, "spec": spec}


def concurrency(at_once: int | str | None, nodes: int) -> int | None:
    """Nodes at the same time: a percentage is rounded down, at least 1; None: all."""
    return max(1, scaled_value(at_once, nodes, round_up=False)) if isinstance(at_once, str) else at_once
