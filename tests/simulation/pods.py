"""Rules about single pods: evictions and deletions that controllers request, judged when the server stores them."""

from __future__ import annotations

from collections import Counter, defaultdict
from http import HTTPStatus
from math import ceil
from typing import Final

import anyio
import anyio.abc
from kubesim.server.api import JsonObject
from kubesim.server.selectors import selector_matches
from kubesim.values import parse_time
from kubesim.verifier.verifier import Verifier
from support.clients import Deed, follow, options_of
from support.inprocess import Arrived, Executed, uid_of

from gracectl.kube.transport import Request
from gracectl.model import names
from simulation.contract import (
    NEVER,
    blocks_node,
    is_daemon,
    is_deleted,
    is_ready,
    is_silent,
    labels_of,
    own_grace,
    protected_until,
    seconds_behind,
    wave_of,
)
from simulation.deadlines import COUNTING, Deadlines
from simulation.machines import volumes_on, waits_for_volumes
from simulation.observer import NOISE, Observer, PodFacts, Rule, ThingFacts

UNSEEN: Final = 60.0
"""Seconds for which a process may hold on to a decision whose cause has gone: a request may take as long."""


MARK_SECONDS: Final = 2.0
"""A pod has the condition DisruptionTarget for no longer than this before it is deleted."""


class Deletions(Rule):
    """A pod is deleted only for a deadline, not before its time, and with the grace that is owed to it."""

    name = "early deletion"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self.count = 0
        self._deadlines = deadlines
        self._asked: Counter[tuple[str, int]] = Counter()

    def request(self, arrived: Arrived, request: Request) -> None:
        operation = arrived.operation
        if (operation.verb, operation.resource) == ("delete", "pods"):
            uid, grace = uid_of(request), options_of(request).get("gracePeriodSeconds", -1)
            if not uid or grace < 1:
                self.violated(f"pod {operation.name}: DELETE with grace {grace} and uid {uid!r}")

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        if deed.is_by("delete", "pods"):
            self.count += 1
            self._judge(deed, facts)
        elif deed.is_by("patch", "pods/status"):
            self._judge_mark(deed, facts)
        elif deed.request is not None and not deed.is_by("create", "pods/eviction") and not deed.is_by("patch", "pods"):
            self.violated(f"pod {facts.name} was changed by {deed.request.method}")

    def _judge_mark(self, deed: Deed, facts: PodFacts) -> None:
        """The condition DisruptionTarget, shortly before a deletion for a deadline."""
        assert deed.old is not None
        if _unmarked(deed.old) != _unmarked(deed.new):
            self.violated(f"pod {facts.name}: its status was changed beyond DisruptionTarget")
        deadlines = [self._deadline_of(node, facts) for node in _hosts(self.seen, facts, deed.sender)]
        left = min(deadlines, default=(NEVER, NEVER))[0] - self.seen.now - own_grace(deed.old)
        if left > MARK_SECONDS + self.seen.terms.clock_error + NOISE:
            self.violated(f"pod {facts.name} was marked {left:.3f} s before its deletion is due")

    def _judge(self, deed: Deed, facts: PodFacts) -> None:
        pod, before = deed.object, deed.old
        assert before is not None
        is_first = "deletionTimestamp" not in before["metadata"]
        if deed.new is None and not is_first:
            return  # the second of the two changes by which a pod goes at once; the first was judged
        deadlines = [self._deadline_of(node, facts) for node in _hosts(self.seen, facts, deed.sender)]
        deadline, latest = min(deadlines, default=(NEVER, NEVER))
        if deadline == NEVER:
            self.violated(f"pod {facts.name} was deleted, and nothing says that node {facts.node!r} has a deadline")
            return
        error = self.seen.terms.clock_error
        left, own = deadline - self.seen.now, own_grace(before)
        rest = ceil(latest - self.seen.now) + 1
        granted = pod["metadata"].get("deletionGracePeriodSeconds", 0)
        if is_first:
            if left > own + error + NOISE:
                self.violated(f"pod {facts.name} was deleted {left - own:.3f} s before its time")
            most = max(1, min(own, rest))
        else:
            ends = self.seen.instant(parse_time(before["metadata"]["deletionTimestamp"]))
            if left > error + NOISE and ends + error <= deadline:
                self.violated(f"pod {facts.name}: its grace was cut though it ended {deadline - ends:.3f} s before")
            most = max(1, rest)
        least = max(1.0, min(float(own), left - error))
        had = own if is_first else before["metadata"].get("deletionGracePeriodSeconds", own)
        if not least - NOISE <= granted <= (most if self.seen.terms.fair else max(had, 1)):
            self.violated(f"pod {facts.name} (own grace {own}) was granted {granted} s when {left:.3f} s were left")
        self._asked[facts.uid, granted] += 1
        if self.seen.terms.fair and is_first and self._asked[facts.uid, granted] > 1:
            self.violated(f"pod {facts.name} was deleted twice with grace {granted}")

    def _deadline_of(self, node: ThingFacts, facts: PodFacts) -> tuple[float, float]:
        """The earliest deadline of a pod that may count (its node's, without the time of the waves behind it), and the
        latest."""
        if self.seen.terms.fair:
            due = self._deadlines.of_node(node)
            deadline = due.at if due else NEVER
        else:
            deadline = self._deadlines.earliest(node)
        behind = max(seconds_behind(wave_of(facts.object, ranges), ranges) for ranges in self.seen.ranges(node))
        return deadline - behind, deadline


def _unmarked(pod: JsonObject | None) -> JsonObject:
    """What of a pod no mark may change."""
    assert pod is not None
    kept = ("name", "uid", "labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp")
    metadata = {key: pod["metadata"].get(key) for key in kept}
    conditions = [each for each in pod["status"].get("conditions", ()) if each["type"] != names.DISRUPTION_TARGET]
    return {**pod, "metadata": metadata, "status": {**pod["status"], "conditions": conditions}}


class Evictions(Rule):
    """A pod is evicted only for its node, with its own grace, when nothing protects it, in its wave."""

    name = "eviction"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self._deadlines = deadlines
        self._protected: dict[str, float] = {}  # by pod uid, since when under every setting
        self._wanted_until: dict[str, float] = {}  # by node uid, when its maintenance was last requested

    def request(self, arrived: Arrived, request: Request) -> None:
        operation = arrived.operation
        if (operation.verb, operation.resource) == ("create", "pods/eviction") and not uid_of(request):
            self.violated(f"pod {operation.name}: an eviction without uid")

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        if self.seen.is_kept(facts):
            self._wanted_until[facts.uid] = self.seen.now

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        if not deed.is_by("create", "pods/eviction"):
            self._note_protection(facts.uid, deed)
            return
        pod = deed.old
        if pod is None or is_deleted(pod) or (deed.new is not None and not is_deleted(deed.new)):
            return  # one of several changes by which it goes, or it was terminating
        granted = deed.object["metadata"].get("deletionGracePeriodSeconds", own_grace(pod))
        if granted != own_grace(pod):
            self.violated(f"pod {facts.name} (own grace {own_grace(pod)}) was evicted with a grace of {granted} s")
        hosts = _hosts(self.seen, facts, deed.sender)
        node = next((each for each in hosts if self._is_to_be_drained(each, deed.sender)), None)
        if node is None:
            self.violated(f"pod {facts.name} was evicted from {facts.node!r}, which is not to be drained")
            return
        self._judge_protection(deed, facts)
        self._judge_order(deed, facts, node)
        self._judge_volumes(deed, facts, node)
        due = self._deadlines.of_node(node)
        if self.seen.terms.fair and due is not None and not self.seen.is_kept(node):
            late = self.seen.now - max(due.at - own_grace(pod), due.known)
            if late > COUNTING:
                self.violated(f"pod {facts.name} was evicted {late:.3f} s after it should have been deleted")

    def end(self, calm: bool) -> None:
        agreed: defaultdict[str, list[Executed]] = defaultdict(list)  # by pod uid
        times: Counter[str] = Counter()  # by pod uid, those by processes that knew of all before
        for each in self.seen.stage.evictions:
            if each.status == HTTPStatus.CREATED:
                uid = uid_of(each.request)
                times[uid] += self._is_knowing(each, agreed[uid])
                agreed[uid].append(each)
        for uid, count in times.items():
            if count > 1:
                name = self.seen.pods[uid].name if uid in self.seen.pods else uid
                self.violated(f"pod {name} was evicted {count} times")

    def _is_knowing(self, eviction: Executed, before: list[Executed]) -> bool:
        """Whether its process must have known of those before it: they are its own, or it has been shown them. A leader
        that has just taken over may be shown late what the last one did."""
        others = [each for each in before if each.sender != eviction.sender]
        return len(others) < len(before) or all(
            self.seen.must_know(eviction.sender, each.instant, eviction.instant) for each in others
        )

    def _is_to_be_drained(self, node: ThingFacts, sender: str) -> bool:
        if node.deleted < NEVER or self.seen.is_kept(node):
            return True
        until = self._wanted_until.get(node.uid, -NEVER)
        return until > -NEVER and self.seen.now - until <= UNSEEN and not self.seen.must_know(sender, until)

    def _until(self, facts: PodFacts) -> float:
        """Until when (monotonic) the pod is protected under every setting that has been in force."""
        stamps = [protected_until(facts.object, settings) for settings in self.seen.settings]
        return min(self.seen.instant(stamp) if stamp < NEVER else NEVER for stamp in stamps)

    def _note_protection(self, uid: str, deed: Deed) -> None:
        if deed.new is None:
            self._protected.pop(uid, None)
            return
        stamps = [protected_until(deed.new, settings) for settings in self.seen.settings]
        until = min(self.seen.instant(stamp) if stamp < NEVER else NEVER for stamp in stamps)
        if until > self.seen.now:
            self._protected.setdefault(uid, self.seen.now)
        else:
            self._protected.pop(uid, None)

    def _judge_protection(self, deed: Deed, facts: PodFacts) -> None:
        for other in (facts, *self.seen.pods_on(facts.node)):
            if (other is not facts and not blocks_node(other.object)) or other.waited == NEVER:
                continue
            if other is not facts and (other.asked < NEVER and self.seen.is_stuck(other, self.seen.ahead)):
                continue
            since, until = self._protected.get(other.uid, NEVER), self._until(other)
            if other.asked == NEVER and until > self.seen.ahead + NOISE and self.seen.must_know(deed.sender, since):
                whose = "it" if other is facts else f"{other.name} on its node"
                self.violated(f"pod {facts.name} was evicted, and {whose} is protected until {until:.3f}")

    def _judge_order(self, deed: Deed, facts: PodFacts, node: ThingFacts) -> None:
        orders, deadline = self.seen.ranges(node), self._deadlines.earliest(node)
        for other in self.seen.pods_on(facts.node):
            if other is facts or other.waited == NEVER or self.seen.is_stuck(other, self.seen.ahead):
                continue
            if self.seen.is_kept(node) and is_daemon(other.object):
                continue
            if waits_for_volumes(self.seen, other):
                continue
            if not self.seen.must_know(deed.sender, max(other.waited, node.since)):
                continue
            if all(self._is_before(other, facts, ranges, deadline) for ranges in orders):
                self.violated(f"pod {facts.name} was evicted before {other.name}, which is of an earlier wave")

    def _judge_volumes(self, deed: Deed, facts: PodFacts, node: ThingFacts) -> None:
        if not waits_for_volumes(self.seen, facts) or is_silent(node.object):
            return
        error = self.seen.terms.clock_error
        if left := volumes_on(self.seen, facts.node, error, lambda since: self.seen.must_know(deed.sender, since)):
            self.violated(f"pod {facts.name} of a DaemonSet was evicted with volume {left[0]} attached to its node")

    def _is_before(self, first: PodFacts, second: PodFacts, ranges: tuple[tuple[int, float], ...], end: float) -> bool:
        wave = wave_of(first.object, ranges)
        is_over = bool(ranges) and self.seen.ahead >= end - seconds_behind(wave, ranges) - NOISE
        return wave < wave_of(second.object, ranges) and not is_over


class Budgets(Rule):
    """No eviction leaves a budget short: the verifier of kubesim counts, from the pods alone.

    How many pods a workload should have is known from the beginning; where one is scaled, that is no longer so.
    """

    name = "budget"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._verifier = Verifier(observer.stage.cluster.api, observer.stage.cluster.server_clock)
        self._evicted: list[tuple[float, str, set[str]]] = []  # when, which pod, and the budgets that selected it
        self._left: list[tuple[float, str]] = []
        self._scaled: dict[str, float] = {}
        for table in ("deployments.apps", "statefulsets.apps"):
            follow(observer.stage, table, self._workload)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        await self._verifier.run(task_status=task_status)

    def _workload(self, deed: Deed) -> None:
        if deed.old is not None and (deed.new or {}).get("spec", {}).get("replicas") != deed.old["spec"]["replicas"]:
            self._scaled.setdefault(deed.object["metadata"]["namespace"], self.seen.unix)

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        if deed.is_by("create", "pods/eviction"):
            table = self.seen.stage.server.store.table("poddisruptionbudgets.policy").in_namespace(facts.namespace)
            labels = labels_of(deed.old or deed.object)
            matching = {name for name, each in table.items() if selector_matches(each["spec"].get("selector"), labels)}
            self._evicted.append((self.seen.unix, f"{facts.namespace}/{facts.name}", matching))
        elif is_ready(deed.old) and not is_ready(deed.new):
            self._left.append((self.seen.unix, facts.namespace))

    def end(self, calm: bool) -> None:
        for violation in self._verifier.findings().violations:
            at, namespace = violation.at, violation.pod.partition("/")[0]
            name = violation.budget.partition("/")[2]
            here = (found for when, pod, found in self._evicted if abs(when - at) < NOISE and pod == violation.pod)
            is_ours = any(name in found for found in here)
            # A server may not yet count a pod that has left otherwise.
            is_uncounted = any(where == namespace and at - COUNTING <= when <= at for when, where in self._left)
            if is_ours and not is_uncounted and at < self._scaled.get(namespace, NEVER):
                counts = f"with {violation.healthy} healthy pods, {violation.required} are needed"
                self.violated(f"the eviction of {violation.pod} left {violation.budget} {counts}")


def _hosts(seen: Observer, pod: PodFacts, sender: str) -> list[ThingFacts]:
    """The nodes on which a pod is, or was: what was requested for one that has gone may arrive later."""
    named = [each for each in seen.nodes.values() if each.name == pod.node and each.gone >= pod.bound]
    return [each for each in named if seen.now - each.gone <= UNSEEN and not seen.must_know(sender, each.gone)]
