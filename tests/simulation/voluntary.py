"""Rules about voluntary terminations: their causes, how many at once, and budgets for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubesim.controllers.objects import controller_of
from kubesim.server.api import JsonObject
from kubesim.server.selectors import selector_matches
from kubesim.values import parse_seconds, parse_time, scaled_value
from support.clients import Deed, follow

from gracectl.config import Settings
from gracectl.model import names
from simulation.contract import (
    NEVER,
    annotations_of,
    condition,
    group_of,
    has_finalizer,
    is_daemon,
    is_deleted,
    is_managed,
    is_ready,
    is_urgent,
    labels_of,
    notice_of,
)
from simulation.deadlines import Deadlines
from simulation.observer import CALM_LAG, Observer, PodFacts, Rule, ThingFacts

SECOND: Final = 1.0
"""Stamps are whole seconds."""

BUDGETS: Final = "nodedisruptionbudgets.termination.karpenter.sh"

CREATED: Final = 5.0
"""The slot of a termination is taken for so long after its node is gone, as replacements are created meanwhile."""


def causes_of(seen: Observer, nodes: Sequence[JsonObject], claims: Sequence[JsonObject]) -> set[str]:
    """Why these may be terminated voluntarily, under any settings that have been in force: interruption, campaign,
    health, label, age."""
    causes = {"interruption"} if any(map(notice_of, nodes)) else set()
    if any(is_terminated_by_campaign(seen, node) for node in nodes):
        causes.add("campaign")
    for settings in seen.settings:
        for node in nodes:
            if labels_of(node).get(names.LIFECYCLE_PHASE) == names.LIFECYCLE_PHASE_TERMINABLE:
                causes.add("label")
            if _is_unhealthy(seen, node, settings):
                causes.add("health")
            group = group_of(settings, labels_of(node))
            text = None if group is None else group.expire_after
            if text not in (None, names.NEVER) and _is_older(seen, node, parse_seconds(str(text)) * 0.9):
                causes.add("age")
    if any(_has_expired(seen, claim) for claim in claims):
        causes.add("age")
    return causes


def is_terminated_by_campaign(seen: Observer, node: JsonObject) -> bool:
    """Whether a campaign that terminates its nodes has begun with this one, and is there."""
    name, *_ = annotations_of(node).get(names.NODE_DRAIN, "").split("/")
    drain = seen.stage.server.store.table("nodedrains.gracectl.io").get("", name) if name else None
    return drain is not None and drain["spec"]["action"] == "Terminate"


def _is_unhealthy(seen: Observer, node: JsonObject, settings: Settings) -> bool:
    for each in settings.health.conditions:
        shown = condition(node, each.type)
        if not shown and (each.type, each.status) == (names.READY, names.UNKNOWN):
            since = node["metadata"]["creationTimestamp"]
        elif shown.get("status") != each.status:
            continue
        else:
            is_first = shown.get("reason") == names.NEVER_REPORTED
            since = node["metadata"]["creationTimestamp"] if is_first else shown["lastTransitionTime"]
        if seen.instant(since) + each.toleration_seconds <= seen.ahead + SECOND:
            return True
    return False


def _has_expired(seen: Observer, claim: JsonObject) -> bool:
    text = claim["spec"].get("expireAfter")
    try:
        return text not in (None, names.NEVER) and _is_older(seen, claim, parse_seconds(text))
    except ValueError:
        return False


def is_going_soon(seen: Observer, node: JsonObject) -> bool:
    """Whether a notice about its machine may be urgent, under any settings and by any clock."""
    now = seen.unix + seen.terms.clock_error
    return any(is_urgent(node, now, settings) for settings in seen.settings)


def _is_older(seen: Observer, thing: JsonObject, seconds: float) -> bool:
    return seen.unix + seen.terms.clock_error + SECOND >= parse_time(thing["metadata"]["creationTimestamp"]) + seconds


class Pace(Rule):
    """A voluntary termination begins only in a free slot, and for health only while few nodes are unhealthy."""

    name = "pace"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._displaced: dict[str, set[str]] = {}  # by uid of a node that is being deleted, uids of controllers

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        owner = controller_of(deed.object)
        node = self.seen.named(facts.node)
        if node is not None and node.deleted < NEVER and owner is not None and not is_daemon(deed.object):
            self._displaced.setdefault(node.uid, set()).add(owner["uid"])

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        if deed.new is not None and is_deleted(deed.new) and not is_deleted(deed.old):
            owners = (controller_of(pod.object) for pod in self.seen.pods_on(facts.name) if not is_daemon(pod.object))
            self._displaced[facts.uid] = {owner["uid"] for owner in owners if owner is not None}
        claims = [self.seen.claims[uid] for uid in facts.claims]
        if is_voluntary(deed, claims):
            self._judge(deed, facts, [facts.object], [claim.object for claim in claims])

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        nodes = [each for each in self.seen.nodes.values() if facts.uid in each.claims]
        if is_voluntary(deed, nodes):
            self._judge(deed, facts, [node.object for node in nodes], [facts.object])

    def _judge(self, deed: Deed, facts: ThingFacts, nodes: Sequence[JsonObject], claims: Sequence[JsonObject]) -> None:
        if any(is_going_soon(self.seen, node) or is_terminated_by_campaign(self.seen, node) for node in nodes):
            return  # a campaign has its slot since it began: see Begins
        managed = self._managed()
        maximum = self.maximum()
        taken = self.in_progress(deed.sender, facts)
        if not any(map(is_ready, nodes)):
            taken -= self._maybe_blocked()
        if len(taken) >= maximum:
            listed = ", ".join(sorted(taken))
            self.violated(f"{facts.name} was deleted voluntarily beside {listed}: {maximum} at once")
        if causes_of(self.seen, nodes, claims) == {"health"}:
            sick = [node.name for node in managed if not is_ready(node.object) and not self._is_excused(node)]
            shares = [each.health.maximum_unhealthy for each in self.seen.settings]
            allowed = max(scaled_value(each, len(managed), round_up=True) for each in shares)
            if len(sick) > allowed and self._has_been_seen(deed.sender, sick):
                self.violated(f"{facts.name} was deleted for its health while {len(sick)} are unhealthy: {allowed} may")

    def maximum(self) -> int:
        """How many terminations may be in progress before a voluntary one begins, by the settings that allow most."""
        limits = [each.voluntary.maximum_at_once for each in self.seen.settings]
        return max(max(1, scaled_value(each, len(self._managed()), round_up=False)) for each in limits)

    def _maybe_blocked(self) -> set[str]:
        """Nodes of terminations that may be blocked for so long that they do not count for nodes that are not Ready."""
        patience = min(parse_seconds(each.voluntary.pending_patience) for each in self.seen.settings)
        return {node.name for node in self._managed() if node.deleted + patience - SECOND <= self.seen.now}

    def _is_excused(self, node: ThingFacts) -> bool:
        """Whether it does not count as unhealthy: it is being deleted, or in maintenance."""
        return is_deleted(node.object) or names.CORDONED in annotations_of(node.object) or self.seen.is_kept(node)

    def _has_been_seen(self, sender: str, sick: list[str]) -> bool:
        turns = [condition(node.object, names.READY).get("lastTransitionTime") for node in self._managed()]
        return all(turn is None or self.seen.must_know(sender, self.seen.instant(turn) + SECOND) for turn in turns)

    def _managed(self) -> list[ThingFacts]:
        return [each for each in self.seen.living_nodes() if is_managed(self.seen.settings[-1], labels_of(each.object))]

    def in_progress(self, sender: str, candidate: ThingFacts) -> set[str]:
        """Terminations that take a slot, and of which the process must know."""
        taken: set[str] = set()
        counted = {candidate.uid, *candidate.claims}
        for node in self._managed():
            is_known = node.deleted_by == sender or self.seen.must_know(sender, node.deleted)
            if node.deleted < NEVER and is_known and has_finalizer(node.object) and node.uid not in counted:
                if candidate.uid not in node.claims:
                    taken.add(node.name)
                counted |= node.claims
        for node in self.seen.nodes.values():
            if node.gone < NEVER and node.deleted_by and self._is_replacing(sender, node):
                taken.add(f"{node.name} (replacing)")
        return taken

    def _is_replacing(self, sender: str, node: ThingFacts) -> bool:
        """Whether pods of a node that is gone are not Ready elsewhere, for the settings that wait for that."""
        owners = self._displaced.get(node.uid, set())
        since_gone = self.seen.now - node.gone
        for settings in self.seen.settings:
            if not settings.voluntary.wait_for_replacement or not owners:
                return False
            if since_gone > parse_seconds(settings.voluntary.pending_patience) - SECOND:
                return False
        if CALM_LAG < since_gone < CREATED - SECOND:
            # One that has led before, and lost its Lease meanwhile, no longer knows which pods the node had.
            return node.deleted_by == sender and not self.seen.terms.elects
        starting = (
            pod
            for pod in self.seen.pods.values()
            if not is_ready(pod.object) and not is_deleted(pod.object) and pod.over == NEVER
        )
        return any(
            (owner := controller_of(pod.object)) is not None
            and owner["uid"] in owners
            and self.seen.instant(pod.object["metadata"]["creationTimestamp"]) > node.deleted + SECOND
            and self.seen.must_know(sender, self.seen.instant(pod.object["metadata"]["creationTimestamp"]) + SECOND)
            for pod in starting
        )


class NodeBudgets(Rule):
    """No DELETE of a node by a controller leaves a NodeDisruptionBudget short, but for the deadline of its claim or the
    end of its machine; and none is admitted by a budget whose status allows none, which is the word that counts among
    several writers."""

    name = "node budget"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self._deadlines = deadlines
        self._changed: dict[str, float] = {}
        follow(observer.stage, BUDGETS, self._budget)

    def _budget(self, deed: Deed) -> None:
        """A controller that enters a node into a budget that allows none."""
        if deed.request is None or deed.new is None or (deed.old or {}).get("status", {}).get("disruptionsAllowed"):
            return
        entered, before = (
            ((each or {}).get("status", {}).get("disruptedNodes") or {}) for each in (deed.new, deed.old)
        )
        for name in entered.keys() - before.keys():
            node = self.seen.named(name)
            if node is None or not is_ready(node.object) or self._deadlines.earliest(node) < NEVER:
                continue
            if is_going_soon(self.seen, node.object):
                continue  # it is only counted
            if self.seen.must_know(deed.sender, self._changed.get(node.uid, -NEVER)):  # that it is available
                self.violated(f"node {name} was admitted by {deed.object['metadata']['name']}, which allows none")

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        changed = self._changed.get(facts.uid, -NEVER)
        if deed.new is None or is_ready(deed.old) != is_ready(deed.new):
            self._changed[facts.uid] = self.seen.now
        if deed.request is None or not deed.is_by("delete", "nodes") or not is_ready(deed.old):
            return
        if self._deadlines.earliest(facts) < NEVER or is_going_soon(self.seen, deed.object):
            return  # its claim's deadline may demand it, or its machine goes anyway
        if self.seen.now - changed <= CALM_LAG:
            return  # one that was not Ready when it was admitted
        for budget in self.seen.stage.server.store.table(BUDGETS):
            selector = budget["spec"].get("selector") or {}
            if any(selector.values()) and selector_matches(selector, labels_of(deed.object)):
                self._judge(deed, facts, budget)

    def _judge(self, deed: Deed, facts: ThingFacts, budget: JsonObject) -> None:
        selector, spec = budget["spec"]["selector"], budget["spec"]
        nodes = [each for each in self.seen.living_nodes() if selector_matches(selector, labels_of(each.object))]
        if spec.get("minAvailable") is not None:
            needed = scaled_value(spec["minAvailable"], len(nodes), round_up=True)
        else:
            needed = len(nodes) - scaled_value(spec.get("maxUnavailable", 0), len(nodes), round_up=True)
        others = [each for each in nodes if each.uid != facts.uid]
        # What has changed just now may not be counted yet.
        late = [each for each in others if self.seen.now - self._changed.get(each.uid, -NEVER) <= CALM_LAG]
        available = sum(is_ready(each.object) for each in others if each not in late) + len(late)
        if available < needed:
            name = budget["metadata"]["name"]
            self.violated(f"node {facts.name} was deleted: {name} keeps {needed}, {available} are left")


def is_voluntary(deed: Deed, partners: Sequence[ThingFacts]) -> bool:
    """Whether a controller begins to delete this node or claim, and none of its claims or nodes is being deleted."""
    is_ours = deed.is_by("delete", "nodes") or deed.is_by("delete", "nodeclaims")
    begins = is_ours and deed.old is not None and not is_deleted(deed.old)
    return begins and all(partner.deleted == NEVER for partner in partners)
