"""Rules about requests as such: one writer at a time, and a bounded number for each object and hour."""

from __future__ import annotations

from typing import Final

import msgspec
from support.inprocess import Arrived

from gracectl.kube.transport import Request
from simulation.observer import Observer, Rule

UNFENCED: Final = ("events", "leases", "nodedisruptionbudgets", "selfsubjectaccessreviews", "secrets")
"""What every process writes, leader or not."""

OTHER: Final = (10.0, 60.0)
OF_WORKLOADS: Final = (40.0, 300.0)
"""Reads in one namespace, about workloads of which pods are replaced: one with each change of their pods."""
LIMITS: Final = {
    ("create", "pods/eviction"): (12.0, 60.0),  # and as often as a budget that allows nothing is tried: every minute
    ("delete", "pods"): (6.0, 60.0),
    ("patch", "pods/status"): (3.0, 12.0),  # once before its deletion; again if that was called off meanwhile
    ("patch", "nodes"): (24.0, 60.0),  # each request for a drain, and each end of one, takes some
    ("patch", "nodeclaims"): (24.0, 60.0),
    ("patch", "nodes/status"): (40.0, 120.0),  # what is left is shown as it leaves, some seconds apart
    ("patch", "nodeclaims/status"): (40.0, 120.0),
    ("patch", "nodedisruptionbudgets/status"): (24.0, 120.0),
    ("patch", "nodedrains/status"): (60.0, 1200.0),  # once a second, while something changes
    ("patch", "events"): (12.0, 120.0),
    ("update", "leases"): (20.0, 2000.0),  # renewed every 2 s
    ("list", ""): (6.0, 120.0),  # what the server does not serve is looked for every 30 s
    ("watch", ""): (6.0, 24.0),  # a watch lasts 5 to 10 minutes
    ("get", ""): (10.0, 300.0),  # Karpenter's Lease is read every 15 s
}
"""Requests of one process about one object, or path: so many at once, and so many more for each hour. OTHER: of any
other kind; a first pause doubles up to a minute."""


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
    """Nothing is requested again and again: in no time more of one object than at once, and what the time allows.

    Counted while nothing disturbs: a fault may cost any number of repeats.
    """

    name = "requests"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._levels: dict[tuple[str, ...], tuple[float, float]] = {}  # by what is requested: level, and since when
        self._reported: set[tuple[str, ...]] = set()

    def request(self, arrived: Arrived, request: Request) -> None:
        now = self.seen.now
        if now < self.seen.calm_since:
            return
        operation = arrived.operation
        key = (arrived.sender, operation.verb, operation.resource, _target(arrived, request))
        most, hourly = self._limit(operation.verb, operation.resource)
        if operation.verb in ("get", "list") and "/namespaces/shop/" in request.path:
            most, hourly = OF_WORKLOADS
        level, since = self._levels.get(key, (0.0, now))
        level = max(level - (now - since) * hourly / 3600, 0.0) + 1
        self._levels[key] = level, now
        if level > most and key not in self._reported:
            self._reported.add(key)
            self.violated(f"{' '.join(key)} more than {most:g} times, and {hourly:g} an hour")

    def _limit(self, verb: str, resource: str) -> tuple[float, float]:
        most, hourly = LIMITS.get((verb, resource)) or LIMITS.get((verb, "")) or OTHER
        if resource == "pods/eviction":
            hourly += 3600 / min(each.eviction.probe_seconds for each in self.seen.settings)
        return most, hourly


def _target(arrived: Arrived, request: Request) -> str:
    operation = arrived.operation
    if operation.plural == "events":
        body = msgspec.json.decode(request.body or b"{}")
        about = body.get("involvedObject", {}) if isinstance(body, dict) else {}
        return f"{about.get('name', operation.name.rpartition('.')[0])} {body.get('reason', '')}".rstrip()
    return f"{operation.namespace}/{operation.name}" if operation.name else request.path
