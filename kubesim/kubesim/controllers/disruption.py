"""The disruption controller: writes into every PodDisruptionBudget how many disruptions it allows.

Arithmetic of kube-controller-manager's `disruption.go` (recordings pdb-status, eviction-of-another-uid). Invariant: the
status is written at the version that was read, because evictions decrement it concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubesim.controllers.controller import Controller, enqueue_own
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    condition_of,
    controller_of,
    controller_uid,
    is_ready,
    is_terminating,
    key_of,
    label_keys,
    labels_of,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import (
    BUDGETS,
    DEPLOYMENTS,
    EVENTS,
    KINDS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    path_of,
)
from kubesim.server.api import JsonObject
from kubesim.server.goformat import go_text
from kubesim.server.selectors import LabelSelector, read_selector, selects
from kubesim.values import format_micro_time, format_time, parse_time, scaled_value

DELETION_TIMEOUT = 120.0
"""Seconds (simulated) for which an evicted pod counts as disrupted although it was not deleted."""

SCALED = (REPLICA_SETS, REPLICATION_CONTROLLERS, DEPLOYMENTS, STATEFUL_SETS)
"""The kinds that say how many pods they want."""

CONDITION = "DisruptionAllowed"
UNMANAGED = (
    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of "
    "the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please "
    'set ".spec.minAvailable" field of the PDB to an integer value.'
)


class ScaleUnknownError(Exception):
    """The number of expected pods is unknown; the message becomes the message of the condition SyncFailed."""


class Expected(msgspec.Struct, frozen=True):
    """`pods`: how many there should be; `healthy`: how many of them must be."""

    pods: int
    healthy: int


class Scales:
    """How many pods a pod's controller wants, by following owner references as the real controller does."""

    def __init__(self, informers: Informers) -> None:
        self._informers = {
            "ReplicaSet": informers.of(REPLICA_SETS),
            "ReplicationController": informers.of(REPLICATION_CONTROLLERS),
            "Deployment": informers.of(DEPLOYMENTS),
            "StatefulSet": informers.of(STATEFUL_SETS),
        }

    def of(self, pod: JsonObject) -> tuple[str, int] | None:
        """The uid and the replicas of a pod's controller; None if there is none. Raises ScaleUnknownError."""
        reference = controller_of(pod)
        if reference is None:
            return None
        namespace = pod["metadata"].get("namespace", "")
        owner = self._find(reference, namespace)
        if owner is None and reference["kind"] in self._informers:
            raise ScaleUnknownError(f'found no controllers for pod "{pod["metadata"]["name"]}"')
        if owner is None:
            raise ScaleUnknownError(f"{_resource(reference)} does not implement the scale subresource")
        if reference["kind"] == "ReplicaSet":
            above = controller_of(owner)
            if above is not None and above["kind"] == "Deployment":
                # A ReplicaSet has a scale also after its Deployment is gone.
                owner = self._find(above, namespace) or owner
        return owner["metadata"]["uid"], owner["spec"].get("replicas", 1)

    def _find(self, reference: JsonObject, namespace: str) -> JsonObject | None:
        informer = self._informers.get(reference["kind"])
        owner = informer.get(namespace, reference["name"]) if informer else None
        return owner if owner is not None and owner["metadata"]["uid"] == reference["uid"] else None


class Disruption(Controller[Key]):
    """Keys: PodDisruptionBudgets."""

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, BUDGETS, PODS, *SCALED)
        self._events = Recorder(informers.api, pace, "controllermanager", enabled=events)
        self._budgets = informers.of(BUDGETS)
        self._pods = informers.of(PODS)
        self._scales = Scales(informers)
        self._selectors: dict[Key, tuple[JsonObject | None, LabelSelector | None]] = {}
        self._budgets.index("namespace", lambda budget: (budget["metadata"]["namespace"],))
        self._pods.index("labels", label_keys)
        enqueue_own(self._budgets, self.queue.add)
        self._pods.subscribe(self._pod_changed)
        for path in SCALED:
            informers.of(path).subscribe(self._scale_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        pod = new if new is not None else old
        if pod is None:
            return
        for budget in self._budgets.by("namespace", pod["metadata"]["namespace"]):
            selector = self._selector(budget)
            if any(each is not None and selects(selector, labels_of(each)) for each in (old, new)):
                self.queue.add(key_of(budget))

    def _scale_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is None or new is None or old["spec"].get("replicas") != new["spec"].get("replicas"):
            changed = new if new is not None else old
            if changed is not None:
                for budget in self._budgets.by("namespace", changed["metadata"]["namespace"]):
                    self.queue.add(key_of(budget))

    def _selector(self, budget: JsonObject) -> LabelSelector | None:
        """The budget's selector, read once for as long as it stays the same."""
        raw = budget["spec"].get("selector")
        kept = self._selectors.get(key_of(budget))
        if kept is None or kept[0] != raw:
            kept = self._selectors[key_of(budget)] = (raw, read_selector(raw))
        return kept[1]

    def _selected(self, namespace: str, selector: LabelSelector | None) -> list[JsonObject]:
        if selector is None:
            return []
        label = next((f"{key}={value}" for key, value in selector.match_labels.items()), "")
        candidates = self._pods.by("labels", f"{namespace}/{label}")
        if len(selector.match_labels) == 1 and not selector.has_expressions:
            return candidates  # The index has said it all.
        return [pod for pod in candidates if selector.matches(labels_of(pod))]

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        budget = self._budgets.get(*key)
        if budget is None:
            self._selectors.pop(key, None)
            return
        selector = self._selector(budget)
        pods = self._selected(key[0], selector)
        now = self.pace.clock.now()
        try:
            expected = expectation(budget["spec"], pods, self._scales)
        except ScaleUnknownError as error:
            await self._write(budget, self._failed(budget, str(error), now))
            return
        if not isinstance(budget["spec"].get("minAvailable"), int) and not all(map(controller_uid, pods)):
            await self._events.warn(budget, "UnmanagedPods", UNMANAGED.format(_in_go(budget["spec"]["selector"])))
        disrupted = await self._disrupted(budget, pods, now)
        healthy = sum(
            1 for pod in pods if not is_terminating(pod) and pod["metadata"]["name"] not in disrupted and is_ready(pod)
        )
        allowed = max(0, healthy - expected.healthy) if expected.pods > 0 else 0
        status = {
            "observedGeneration": budget["metadata"].get("generation", 1),
            **({"disruptedPods": disrupted} if disrupted else {}),
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": expected.healthy,
            "expectedPods": expected.pods,
        }
        reason = "SufficientPods" if allowed else "InsufficientPods"
        await self._write(budget, {**status, "conditions": [_condition(budget, reason, "", now)]})

    async def _disrupted(self, budget: JsonObject, pods: list[JsonObject], now: float) -> Mapping[str, str]:
        """Which evicted pods still wait for their deletion; looks again when the first of them has waited too long."""
        evicted: Mapping[str, str] = (budget.get("status") or {}).get("disruptedPods") or {}
        timeout = self.pace.real(DELETION_TIMEOUT)
        waiting: dict[str, str] = {}
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in evicted or is_terminating(pod):
                continue
            left = parse_time(evicted[name]) + timeout - now
            if left < 0:
                await self._say_not_deleted(budget, pod)
            else:
                waiting[name] = evicted[name]
                # A little later than exactly then: at the very instant it still counts.
                self.queue.add_after(key_of(budget), left + 0.001)
        return waiting

    async def _write(self, budget: JsonObject, status: JsonObject) -> None:
        before = {"disruptedPods": {}, **(budget.get("status") or {})}
        if before == {"disruptedPods": {}, **status}:
            return
        path = path_of(BUDGETS, *key_of(budget), "status")
        # 409: another client (an eviction) wrote first; the event of that write brings the key back.
        code, answer = await self.ask("PUT", path, {**budget, "status": status}, allow=(404, 409))
        if code == 200:
            self._budgets.remember(answer)

    def _failed(self, budget: JsonObject, message: str, now: float) -> JsonObject:
        """Fail-safe: nothing is allowed, the other numbers stay as they were (recording pdb-status)."""
        return {
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
            **(budget.get("status") or {}),
            "disruptionsAllowed": 0,
            "conditions": [_condition(budget, "SyncFailed", message, now)],
        }

    async def _say_not_deleted(self, budget: JsonObject, pod: JsonObject) -> None:
        namespace, _ = key_of(budget)
        now = self.pace.clock.now()
        metadata = pod["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning",
            "reason": "NotDeleted",
            # The real controller says the namespace twice, and never the budget's name.
            "message": f"Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't",
            "source": {"component": "controllermanager"},
            "firstTimestamp": format_time(now),
            "lastTimestamp": format_time(now),
            "eventTime": format_micro_time(now),
            "reportingComponent": "controllermanager",
            "reportingInstance": "sim",
            "action": "NotDeleted",
            "count": 1,
        }
        await self.ask("POST", path_of(EVENTS, namespace), event, allow=(403, 404, 409, 422))


def expectation(spec: JsonObject, pods: list[JsonObject], scales: Scales) -> Expected:
    """Pods that a budget expects (`getExpectedPodCount`). Percentages round up. An integer minAvailable counts the
    pods; other bounds use the scale of their controllers and ignore pods without one. Raises ScaleUnknownError."""
    minimum, maximum = spec.get("minAvailable"), spec.get("maxUnavailable")
    if maximum is not None:
        total = _scale_of(pods, scales)
        return Expected(total, max(0, total - scaled_value(maximum, total, round_up=True)))
    if isinstance(minimum, int):
        return Expected(len(pods), minimum)
    if minimum is not None:
        total = _scale_of(pods, scales)
        return Expected(total, scaled_value(minimum, total, round_up=True))
    return Expected(0, 0)


def _scale_of(pods: list[JsonObject], scales: Scales) -> int:
    one_of_each = {controller_uid(pod): pod for pod in pods}
    return sum(dict(scale for pod in one_of_each.values() if (scale := scales.of(pod)) is not None).values())


def _condition(budget: JsonObject, reason: str, message: str, now: float) -> JsonObject:
    status = "True" if reason == "SufficientPods" else "False"
    before = condition_of(budget, CONDITION)
    # A failed sync has observed nothing: the real controller repeats the generation of its last success.
    observed = (budget.get("status") or {}).get("observedGeneration", 0)
    is_same = before is not None and before["status"] == status
    return {
        "type": CONDITION,
        "status": status,
        "observedGeneration": observed if reason == "SyncFailed" else budget["metadata"].get("generation", 1),
        "lastTransitionTime": before["lastTransitionTime"] if before and is_same else format_time(now),
        "reason": reason,
        "message": message,
    }


def _in_go(selector: JsonObject) -> str:
    """A LabelSelector as its generated `String()` prints it."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    terms = ""
    for term in selector.get("matchExpressions") or ():
        values = go_text(term.get("values") or [])
        terms += f"LabelSelectorRequirement{{Key:{term['key']},Operator:{term['operator']},Values:{values},}},"
    parts = f"MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{terms}}},"
    return f"&LabelSelector{{{parts}}}"


def _resource(reference: JsonObject) -> str:
    """`replicasets.apps`, as the real controller's message names it."""
    path = KINDS.get(reference["kind"])
    plural = path.rsplit("/", 1)[1] if path else f"{reference['kind'].lower()}s"
    group = reference["apiVersion"].rpartition("/")[0]
    return f"{plural}.{group}" if group else plural
