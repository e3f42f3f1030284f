"""What a deadline promises, worked out by people who have read the design and not the code.

Nothing here uses gracectl.policy: instants come from the stamps of the server, periods from the builder of the world.
All instants are the server's Unix time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import parse_time
from support.deadlines import written_on
from support.stored import Deed

NEVER = float("inf")


class Due(msgspec.Struct, frozen=True):
    """A node must be over at `at`, and that could not be known before `known`."""

    at: float
    known: float


class Beginning(msgspec.Struct):
    """When a node, or its claim, was deleted (`stamp`, as the server wrote it), and when that was so (`seen`)."""

    stamp: float
    seen: float


class Deadlines:
    """Of each node, from what was written on it and its claim. `periods`: the TGP in seconds of those that have one."""

    def __init__(self, periods: Mapping[str, float]) -> None:
        self.broken: list[str] = []
        self._periods = periods
        self._claimed: set[str] = set()
        self._nodes: dict[str, Beginning] = {}
        self._claims: dict[str, Beginning] = {}
        self._written: dict[str, list[Due]] = {}

    def node_changed(self, deed: Deed) -> None:
        """Of the table of nodes."""
        self._note(deed, deed.object["metadata"]["name"], self._nodes)

    def claim_changed(self, deed: Deed) -> None:
        """Of the table of claims; a claim is its node's from the moment on in which its status names it."""
        node = deed.object.get("status", {}).get("nodeName", "")
        if node:
            self._claimed.add(node)
            self._note(deed, node, self._claims)

    def _note(self, deed: Deed, node: str, beginnings: dict[str, Beginning]) -> None:
        before, after = annotated(deed.old), annotated(deed.new)
        if deed.new is not None and after > before:
            kind, name = deed.object["kind"], deed.object["metadata"]["name"]
            self.broken.append(f"the deadline of {kind} {name} was moved from {before} to {after}")
        if after < before:
            self._written.setdefault(node, []).append(Due(float(int(after)), deed.at))
        stamp = deed.object["metadata"].get("deletionTimestamp")
        if stamp and node not in beginnings:
            beginnings[node] = Beginning(parse_time(stamp), deed.at)

    def of(self, node: str) -> Due | None:
        """What holds for a node now; None: it has no deadline (yet)."""
        begun = [known[node].seen for known in (self._nodes, self._claims) if node in known]
        if not begun:
            return None
        found = [Due(due.at, max(due.known, min(begun))) for due in self._written.get(node, ())]
        clock = (self._claims if node in self._claimed else self._nodes).get(node)
        if clock is not None and node in self._periods:
            found.append(Due(clock.stamp + self._periods[node], clock.seen))
        return min(found, key=lambda due: (due.at, due.known), default=None)

    def earliest(self, node: str) -> float:
        """The earliest deadline that may count: as long as a claim cannot be deleted, its node's deletion
        is all there is to count from. NEVER without one."""
        due = self.of(node)
        found = [due.at] if due else []
        if node in self._periods and node in self._nodes:
            found.append(self._nodes[node].stamp + self._periods[node])
        return min(found, default=NEVER)


def annotated(thing: JsonObject | None) -> float:
    """The deadline that is written on a node or claim; NEVER when none is."""
    text = written_on(thing)
    return parse_time(text) if text else NEVER


def own_grace(pod: JsonObject) -> int:
    """The seconds that a pod asks for; the server fills in 30 where it says nothing."""
    seconds: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
    return max(seconds, 1) if seconds < 0 else seconds


def protected_until(pod: JsonObject) -> float:
    """Until when a pod must not be evicted, by annotations such as "true" and "90s"; the past if unprotected."""
    metadata = pod["metadata"]
    if "true" in (metadata.get(part, {}).get(names.DO_NOT_EVICT) for part in ("labels", "annotations")):
        return NEVER
    text = metadata.get("annotations", {}).get(names.DO_NOT_DISRUPT)
    if text is None:
        return 0.0
    found = re.fullmatch(r"([0-9]+)s", text)
    return parse_time(metadata["creationTimestamp"]) + int(found[1]) if found else NEVER


def is_waited_for(pod: JsonObject) -> bool:
    """Whether a drain waits for the pod at all: it has not finished, and it has not agreed to stay."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    keys = {(each.get("key"), each.get("operator")) for each in pod["spec"].get("tolerations", ())}
    return not keys & {(names.DISRUPTED_TAINT_KEY, "Exists"), (None, "Exists")}
