"""Rules about requests as such: one writer at a time, and a bounded number for each object and hour."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
from support.inprocess import Arrived

from gracectl.kube.transport import Request
from simulation.contract import NEVER
from simulation.observer import Observer, Rule

UNFENCED: Final = ("events", "leases", "nodedisruptionbudgets", "selfsubjectaccessreviews", "secrets")
"""What every process writes, leader or not."""

LIMITS: Final = {
    ("create", "pods/eviction"): (12, 720),
    ("delete", "pods"): (8, 120),
    ("patch", "nodes"): (30, 120),
    ("patch", "nodes/status"): (30, 720),
    ("patch", "nodeclaims"): (30, 120),
    ("patch", "nodeclaims/status"): (30, 720),
    ("delete", "nodes"): (12, 720),
    ("delete", "nodeclaims"): (12, 720),
    ("create", "events"): (60, 240),
    ("patch", "events"): (30, 120),
    ("list", ""): (20, 60),
    ("watch", ""): (40, 120),
    ("get", ""): (40, 1000),
}
"""Requests about one object (of lists and watches: one resource of one process): a number, and more for each hour."""


class Writers(Rule):
    """While processes contend for a Lease, none writes but its holder.

    Which identity a process has is known by the Leases that it has written itself.
    """

    name = "writer"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._identities: dict[str, set[str]] = {}

    def request(self, arrived: Arrived, request: Request) -> None:
        operation = arrived.operation
        if request.method == "GET":
            return
        if operation.plural == "leases":
            body = msgspec.json.decode(request.body or b"{}")
            holder = body.get("spec", {}).get("holderIdentity") if isinstance(body, dict) else None
            if holder:
                self._identities.setdefault(arrived.sender, set()).add(str(holder))
        elif operation.plural not in UNFENCED:
            self.judge(arrived.sender, str(operation))

    def judge(self, sender: str, what: str) -> None:
        """A process does this at this moment."""
        if not self.seen.terms.elects:
            return
        settings = self.seen.settings[-1].leader_election
        table = self.seen.stage.server.store.table("leases.coordination.k8s.io")
        lease = table.get(settings.namespace or "kube-system", settings.name)
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        if not holder or holder not in self._identities.get(sender, ()):
            self.violated(f"{sender} did {what} while {holder or 'no process'} held the Lease")


class Requests(Rule):
    """Nothing is requested again and again: so many requests for each object, and so many more for each hour.

    Counted while nothing disturbs: a fault may cost any number of repeats.
    """

    name = "requests"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._since = NEVER

    def request(self, arrived: Arrived, request: Request) -> None:
        if self.seen.now < self.seen.calm_since:
            return
        self._since = min(self._since, self.seen.now)
        operation = arrived.operation
        target = f"{operation.namespace}/{operation.name}" if operation.name else arrived.sender
        if operation.plural == "events":
            body = msgspec.json.decode(request.body or b"{}")
            about = body.get("involvedObject", {}) if isinstance(body, dict) else {}
            target = about.get("name", operation.name.rpartition(".")[0]) + str(body.get("reason", ""))
        self._counts[operation.verb, operation.resource, target] += 1

    def end(self, calm: bool) -> None:
        hours = (self.seen.now - self._since) / 3600 if self._since < NEVER else 0.0
        for (verb, resource, target), count in sorted(self._counts.items()):
            base, rate = LIMITS.get((verb, resource)) or LIMITS.get((verb, "")) or (NEVER, 0)
            if count > base + rate * hours:
                self.violated(f"{count} requests to {verb} {resource} {target} in {hours * 60:.1f} min")
