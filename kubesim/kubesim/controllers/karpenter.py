"""Karpenter as far as it terminates nodes: a model of release 1.15, with its pace and its lateness.

A deleted claim gets its deadline, and its node is deleted. A deleted node is tainted and drained: every second the
first group that is not empty goes to a queue, in which each pod is evicted, or deleted for the deadline, with a backoff
of its own up to 10 s. Then volumes detach, the instance ends, and the finalizers go. Sources:
pkg/controllers/node/termination, its `terminator` and pkg/controllers/nodeclaim/lifecycle. It launches nothing and
disrupts nothing by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from kubesim.controllers.attachments import claims_of
from kubesim.controllers.client import MERGE, ApiClient, Disconnected, Refused, ask
from kubesim.controllers.cloud import PREFIX
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informer, Informers
from kubesim.controllers.nodeclaims import NODE_CLAIMS, ClaimSpec
from kubesim.controllers.objects import (
    Key,
    annotations_of,
    condition_of,
    is_finished,
    is_ready,
    is_terminating,
    is_tolerated,
    key_of,
    labels_of,
    node_of,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import ATTACHMENTS, CLAIMS, LEASES, NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim.values import format_micro_time, format_time, parse_seconds, parse_time

FINALIZER: Final = "karpenter.sh/termination"
DEADLINE: Final = "karpenter.sh/nodeclaim-termination-timestamp"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
NODE_POOL: Final = "karpenter.sh/nodepool"
TAINT: Final = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
CLASS_GROUP, CLASS_KIND = "karpenter.kwok.sh", "KWOKNodeClass"
CLASS_LABEL: Final = f"{CLASS_GROUP}/{CLASS_KIND.lower()}"
"""Label that Karpenter puts on the nodes of its node class."""
EXCLUDED: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
CRITICAL: Final = ("system-cluster-critical", "system-node-critical")
LEASE: Final = "karpenter-leader-election"
LEASE_NAMESPACE: Final = "kube-system"

POLL_SECONDS: Final = 1.0
MIN_DRAIN_SECONDS: Final = 5.0
INSTANCE_SECONDS: Final = 5.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 10.0
STUCK_SECONDS: Final = 60.0
ORDINARY: Final = ("AwaitingVolumeDetachment", "Disrupted", "Evicted")
SAID_AGAIN_SECONDS: Final = 120.0
"""An Event with the same reason about the same object is not repeated for so long, even if its text differs."""
LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10.0, 2.0
RESTART_SECONDS: Final = 2.0


def karpenters(**more: Any) -> ClaimSpec:
    """A NodeClaim for a node that is this Karpenter's; `more` as for ClaimSpec."""
    reference = {"group": CLASS_GROUP, "kind": CLASS_KIND, "name": "default"}
    return ClaimSpec(node_pool="default", labels={CLASS_LABEL: "default"}, spec={"nodeClassRef": reference}, **more)


class Karpenter:
    """See the module. `kill` ends its process without a word; another one begins some seconds later."""

    def __init__(self, api: ApiClient, pace: Pace, *, namespace: str = LEASE_NAMESPACE, events: bool = True) -> None:
        """`namespace`: of its Lease."""
        self.lives = 0
        """How many of its processes have begun."""
        self._namespace = namespace
        self._api = api
        self._pace = pace
        self._events = events
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Live, and live again after each death, until cancelled."""
        while True:
            self.lives += 1
            with anyio.CancelScope() as self._scope:
                await _Process(self._api, self._pace, self.lives, self._namespace, events=self._events).run()
            await self._pace.sleep(RESTART_SECONDS)

    def kill(self) -> None:
        """End its process, as by SIGKILL: what it knew of its queue is lost."""
        self._scope.cancel()


class _Process:
    """One process of it. Invariant: at most one task for each node, each claim and each pod of the queue."""

    def __init__(self, api: ApiClient, pace: Pace, life: int, namespace: str, *, events: bool) -> None:
        self.api = api
        self.pace = pace
        self.events = Recorder(api, pace, "karpenter", enabled=events)
        self._namespace = namespace
        self._identity = f"karpenter-{life}_{pace.chance('karpenter', life).getrandbits(64):016x}"
        self._views = Informers(api, pace.clock)
        self.nodes, self.pods, self.claims = (self._views.of(path) for path in (NODES, PODS, NODE_CLAIMS))
        self.attachments, self.volume_claims = self._views.of(ATTACHMENTS), self._views.of(CLAIMS)
        self.pods.index("node", lambda pod: (node_of(pod),))
        self._busy: set[tuple[str, Key]] = set()
        self._queue: dict[str, float | None] = {}
        """The deadline of each pod in the queue, by uid."""
        self._said: dict[tuple[str, str], float] = {}
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """Return when its Lease is lost, as the real process exits."""
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._views.run)
            await self._acquire()
            for view in (self.nodes, self.pods, self.claims, self.attachments, self.volume_claims):
                await view.synced.wait()
            self._follow("node", self.nodes, self._node_step)
            self._follow("claim", self.claims, self._claim_step)
            await self._hold()
            self._group.cancel_scope.cancel()

    # -- leadership ----------------------------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        while not await self._renew():
            await self.pace.sleep(RETRY_SECONDS)

    async def _hold(self) -> None:
        """Renew the Lease until that has failed for too long."""
        renewed = self.now
        while self.now - renewed < self.pace.real(RENEW_SECONDS):
            await self.pace.sleep(RETRY_SECONDS)
            if await self._renew():
                renewed = self.now

    async def _renew(self) -> bool:
        """Whether it leads: the Lease is its own, new, or has run out."""
        path = path_of(LEASES, self._namespace, LEASE)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format_micro_time(self.now),
        }
        try:
            status, lease = await ask(self.api, "GET", path, allow=(404,))
            if status == 404:
                new = {"metadata": {"name": LEASE}, "spec": {**spec, "acquireTime": spec["renewTime"]}}
                await ask(self.api, "POST", path_of(LEASES, self._namespace), new)
                return True
            held = lease["spec"]
            if held.get("holderIdentity") not in ("", None, self._identity):
                if self.now < parse_time(held["renewTime"]) + self.pace.real(held["leaseDurationSeconds"]):
                    return False
                spec["acquireTime"] = spec["renewTime"]
            await self._patch(path, lease, {"spec": spec})
        except (Refused, Disconnected):
            return False
        return True

    # -- tasks ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.pace.clock.now()

    def _follow(self, kind: str, view: Informer, step: Callable[[JsonObject], Awaitable[float | None]]) -> None:
        def changed(_: JsonObject | None, new: JsonObject | None) -> None:
            if new is not None and _is_ours(new) and (kind, key_of(new)) not in self._busy:
                self._start(kind, key_of(new), lambda: self._repeat(view, key_of(new), step))

        view.subscribe(changed)

    def _start(self, kind: str, key: Key, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            finally:
                self._busy.discard((kind, key))

        assert self._group is not None
        self._busy.add((kind, key))
        self._group.start_soon(run)

    async def _repeat(self, view: Informer, key: Key, step: Callable[[JsonObject], Awaitable[float | None]]) -> None:
        """Take steps until there is nothing to do; the seconds to the next are the step's, or a backoff's."""
        pause = FIRST_BACKOFF
        while (object_ := view.get(*key)) is not None:
            try:
                seconds = await step(object_)
            except (Refused, Disconnected, ValueError):
                seconds, pause = pause, min(2 * pause, LONGEST_BACKOFF)
            else:
                pause = FIRST_BACKOFF
            if seconds is None:
                return
            await self.pace.sleep(seconds)

    async def _patch(self, path: str, old: JsonObject, patch: JsonObject) -> JsonObject:
        """Change what was read, and nothing newer (409)."""
        version = {"resourceVersion": old["metadata"]["resourceVersion"]}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        _, answer = await ask(self.api, "PATCH", path, body, content_type=MERGE)
        changed: JsonObject = answer
        return changed

    async def _say(self, kind: str, about: JsonObject, reason: str, message: str) -> None:
        # The items of a list have no kind.
        version = "karpenter.sh/v1" if kind == "NodeClaim" else "v1"
        said = about["metadata"]["uid"], reason
        if self.now >= self._said.get(said, 0.0) + self.pace.real(SAID_AGAIN_SECONDS):
            self._said[said] = self.now
            say = self.events.normal if reason in ORDINARY else self.events.warn
            await say({**about, "kind": kind, "apiVersion": version}, reason, message)

    # -- claims --------------------------------------------------------------------------------------------------------

    async def _claim_step(self, claim: JsonObject) -> float | None:
        path, metadata = path_of(NODE_CLAIMS, name=key_of(claim)[1]), claim["metadata"]
        if not is_terminating(claim):
            if FINALIZER not in metadata.get("finalizers", ()):
                await self._set_finalizers(self.claims, path, claim, add=True)
            return None
        if FINALIZER not in metadata.get("finalizers", ()):
            return None
        period = claim["spec"].get("terminationGracePeriod")
        if period is not None and DEADLINE not in annotations_of(claim):
            at = format_time(parse_time(metadata["deletionTimestamp"]) + parse_seconds(period))
            self.claims.remember(await self._patch(path, claim, {"metadata": {"annotations": {DEADLINE: at}}}))
            await self._say("NodeClaim", claim, "TerminationGracePeriodExpiring", f"All pods will be deleted by {at}")
            return 0.0
        nodes = [node for node in self.nodes.values() if _belongs(node, claim)]
        for node in nodes:
            if not is_terminating(node):
                await ask(self.api, "DELETE", path_of(NODES, name=key_of(node)[1]), allow=(404,))
        if nodes:
            return POLL_SECONDS / 10  # the real one is woken by an event of the node
        if (provider_id := (claim.get("status") or {}).get("providerID")) and not await self._end_instance(provider_id):
            return INSTANCE_SECONDS
        await self._set_finalizers(self.claims, path, claim, add=False)
        return None

    async def _set_finalizers(self, view: Informer, path: str, old: JsonObject, *, add: bool) -> None:
        others = [each for each in old["metadata"].get("finalizers", ()) if each != FINALIZER]
        finalizers = [*others, FINALIZER] if add else others
        changed = await self._patch(path, old, {"metadata": {"finalizers": finalizers}})
        if add:
            view.remember(changed)

    async def _end_instance(self, provider_id: str) -> bool:
        """Whether the instance has ended; else it is asked to."""
        status, answer = await ask(self.api, "DELETE", PREFIX + provider_id.rsplit("/", 1)[-1], allow=(404,))
        return status == 404 or bool(answer["state"] == "terminated")

    async def _set_condition(self, claim: JsonObject | None, type_: str, status: str, reason: str) -> None:
        claim = None if claim is None else self.claims.get(*key_of(claim))
        known = None if claim is None else condition_of(claim, type_)
        if claim is None or (known is not None and (known["status"], known["reason"]) == (status, reason)):
            return
        new = {"type": type_, "status": status, "reason": reason, "message": "" if status == "True" else reason}
        others = [each for each in claim["status"].get("conditions", ()) if each["type"] != type_]
        patch = {"status": {"conditions": [*others, {**new, "lastTransitionTime": format_time(self.now)}]}}
        path = path_of(NODE_CLAIMS, name=key_of(claim)[1], subresource="status")
        self.claims.remember(await self._patch(path, claim, patch))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def _node_step(self, node: JsonObject) -> float | None:
        path, metadata = path_of(NODES, name=key_of(node)[1]), node["metadata"]
        if not is_terminating(node):
            if FINALIZER not in metadata.get("finalizers", ()):
                await self._set_finalizers(self.nodes, path, node, add=True)
            return None
        if FINALIZER not in metadata.get("finalizers", ()):
            return None
        claim = next((each for each in self.claims.values() if _belongs(node, each)), None)
        if claim is not None and not is_terminating(claim):
            await ask(self.api, "DELETE", path_of(NODE_CLAIMS, name=key_of(claim)[1]), allow=(404,))
        if not is_ready(node) and await self._has_ended(node["spec"].get("providerID", "")):
            await self._set_finalizers(self.nodes, path, node, add=False)
            return None
        at = None if claim is None else annotations_of(claim).get(DEADLINE)
        if at is not None:
            await self._say("Node", node, "TerminationGracePeriodExpiring", f"All pods will be deleted by {at}")
        deadline = None if at is None else parse_time(at)  # ValueError: it is tried again, and nothing begins
        node = await self._tainted(node, path)
        if (seconds := await self._drain(node, claim, deadline)) is not None:
            return seconds
        if not await self._are_volumes_detached(node, claim, deadline):
            return POLL_SECONDS
        if claim is not None:
            has_ended = await self._end_instance(node["spec"].get("providerID", ""))
            await self._set_condition(claim, "InstanceTerminating", "True", "InstanceTerminating")
            if not has_ended:
                return INSTANCE_SECONDS
        await self._set_finalizers(self.nodes, path, self.nodes.get(*key_of(node)) or node, add=False)
        return None

    async def _tainted(self, node: JsonObject, path: str) -> JsonObject:
        taints = node["spec"].get("taints") or ()
        if any(TAINT.items() <= taint.items() for taint in taints):
            return node
        others = [each for each in taints if each["key"] != TAINT["key"]]
        patch = {"metadata": {"labels": {EXCLUDED: "karpenter"}}, "spec": {"taints": [*others, dict(TAINT)]}}
        node = await self._patch(path, node, patch)
        self.nodes.remember(node)
        return node

    async def _are_volumes_detached(self, node: JsonObject, claim: JsonObject | None, deadline: float | None) -> bool:
        """Whether nothing waits for volumes any longer."""
        waiting = self._waiting_volumes(node)
        if not waiting:
            await self._set_condition(claim, "VolumesDetached", "True", "VolumesDetached")
            return True
        if deadline is not None and self.now > deadline:
            reason = "TerminationGracePeriodElapsed"
            await self._set_condition(claim, "VolumesDetached", "False", reason)
            return True
        listed = ", ".join(each["metadata"]["name"] for each in waiting[:5])
        message = f"Awaiting deletion of bound volumeattachments ({listed})"
        await self._say("Node", node, "AwaitingVolumeDetachment", message)
        await self._set_condition(claim, "VolumesDetached", "Unknown", "AwaitingVolumeDetachment")
        return False

    async def _has_ended(self, provider_id: str) -> bool:
        status, answer = await ask(self.api, "GET", PREFIX + provider_id.rsplit("/", 1)[-1], allow=(404,))
        return status == 404 or bool(answer["state"] == "terminated")

    async def _drain(self, node: JsonObject, claim: JsonObject | None, deadline: float | None) -> float | None:
        """Seconds to wait; None: drained."""
        drained = None if claim is None else condition_of(claim, "Drained")
        if claim is not None and drained is None:
            await self._set_condition(claim, "Drained", "Unknown", "Draining")
            drained = condition_of(self.claims.get(*key_of(claim)) or claim, "Drained")
        waiting = [pod for pod in self.pods.by("node", key_of(node)[1]) if self._is_waited_for(pod)]
        late = [pod for pod in waiting if self._must_be_deleted(pod, deadline)]
        groups: list[list[JsonObject]] = [[], [], [], []]
        for pod in waiting:
            if pod not in late:
                groups[group_of(pod)].append(pod)
        for pod in (*late, *next(filter(None, groups), ())):
            self._enqueue(pod, deadline)
        if waiting:
            message = f"Failed to drain node, {len(waiting)} pods are waiting to be evicted"
            await self._say("Node", node, "FailedDraining", message)
            return POLL_SECONDS
        if drained is not None and drained["status"] != "True":
            if self.now - parse_time(drained["lastTransitionTime"]) < self.pace.real(MIN_DRAIN_SECONDS):
                return POLL_SECONDS
            await self._set_condition(claim, "Drained", "True", "Drained")
        return None

    def _is_waited_for(self, pod: JsonObject) -> bool:
        return not is_finished(pod) and _can_be_drained(pod, self.now, self.pace.real(STUCK_SECONDS))

    def _must_be_deleted(self, pod: JsonObject, deadline: float | None) -> bool:
        if deadline is None:
            return False
        if is_terminating(pod):
            return parse_time(pod["metadata"]["deletionTimestamp"]) > deadline
        return self.now > deadline - self.pace.real(pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _waiting_volumes(self, node: JsonObject) -> list[JsonObject]:
        """Attachments of the node, without those of pods that stay."""
        stay = [
            pod
            for pod in self.pods.by("node", key_of(node)[1])
            if not _can_be_drained(pod, self.now, self.pace.real(STUCK_SECONDS))
        ]
        claims = (self.volume_claims.get(key_of(pod)[0], name) for pod in stay for name in claims_of(pod))
        kept = {claim["spec"].get("volumeName") for claim in claims if claim is not None}
        found = [each for each in self.attachments.values() if each["spec"]["nodeName"] == key_of(node)[1]]
        volumes = ((each, each["spec"]["source"].get("persistentVolumeName")) for each in found)
        return [each for each, volume in volumes if volume is not None and volume not in kept]

    # -- the eviction queue --------------------------------------------------------------------------------------------

    def _enqueue(self, pod: JsonObject, deadline: float | None) -> None:
        """A deadline may come earlier, but not later."""
        uid, key = pod["metadata"]["uid"], key_of(pod)
        known = self._queue.get(uid)
        self._queue[uid] = deadline if known is None else known if deadline is None else min(known, deadline)
        if ("pod", key) not in self._busy:
            self._start("pod", key, lambda: self._evict_until_gone(key))

    async def _evict_until_gone(self, key: Key) -> None:
        """The backoff begins anew only when the pod has left the queue, or another pod has its name."""
        pause = FIRST_BACKOFF
        while (pod := self.pods.get(*key)) is not None and pod["metadata"]["uid"] in self._queue:
            try:
                if await self._is_completed(pod, self._queue[pod["metadata"]["uid"]]):
                    self._queue.pop(pod["metadata"]["uid"], None)
                    return
            except (Refused, Disconnected):
                pass
            await self.pace.sleep(pause)
            pause = min(2 * pause, LONGEST_BACKOFF)

    async def _is_completed(self, pod: JsonObject, deadline: float | None) -> bool:
        path, uid = path_of(PODS, *key_of(pod)), pod["metadata"]["uid"]
        if deadline is not None and self._must_be_deleted(pod, deadline):
            seconds = max(int((deadline - self.now) * self.pace.speed), 1)
            await self._say("Pod", pod, "Disrupted", "Deleting the pod to accommodate the terminationTime of the node")
            options = {"gracePeriodSeconds": seconds, "preconditions": {"uid": uid}}
            await ask(self.api, "DELETE", path, options, allow=(404,))
            return True
        if is_terminating(pod) or is_finished(pod):
            return True
        if not _is_evictable(pod, self.now, self.pace):
            return False
        namespace, name = key_of(pod)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        status, _ = await ask(self.api, "POST", f"{path}/eviction", eviction, allow=(404, 409, 429, 500))
        if status in (404, 409):
            return True
        if status >= 400:
            if (node := self.nodes.get("", node_of(pod))) is not None:
                message = f"Failed to drain node, evicting pod violates a PDB (Pod={namespace}/{name})"
                await self._say("Node", node, "FailedDraining", message)
            return False
        await self._say("Pod", pod, "Evicted", "Evicted pod: Forceful Termination")
        return True


def _is_ours(thing: JsonObject) -> bool:
    """Whether a node or claim is of one of its NodePools, or of its node class."""
    reference = thing["spec"].get("nodeClassRef") or {}
    return not {NODE_POOL, CLASS_LABEL}.isdisjoint(labels_of(thing)) or reference.get("group") == CLASS_GROUP


def _belongs(node: JsonObject, claim: JsonObject) -> bool:
    provider_id = node["spec"].get("providerID")
    return bool(provider_id) and (claim.get("status") or {}).get("providerID") == provider_id


def group_of(pod: JsonObject) -> int:
    """Which of the four groups, in which pods leave, is a pod's."""
    is_critical = pod["spec"].get("priorityClassName") in CRITICAL
    is_daemon = _is_owned_by(pod, "DaemonSet")
    return 2 * is_critical + is_daemon


def _is_owned_by(pod: JsonObject, kind: str) -> bool:
    return any(owner["kind"] == kind for owner in pod["metadata"].get("ownerReferences") or ())


def _can_be_drained(pod: JsonObject, now: float, stuck: float) -> bool:
    is_stuck = is_terminating(pod) and now - parse_time(pod["metadata"]["deletionTimestamp"]) > stuck
    return not (is_stuck or _tolerates(pod) or _is_owned_by(pod, "Node"))


def _tolerates(pod: JsonObject) -> bool:
    return is_tolerated(TAINT, pod["spec"].get("tolerations") or [])


def _is_evictable(pod: JsonObject, now: float, pace: Pace) -> bool:
    return not (_tolerates(pod) or _is_owned_by(pod, "Node") or is_protected(pod, now, pace))


def is_protected(pod: JsonObject, now: float, pace: Pace) -> bool:
    """Whether do-not-disrupt is in force: "true", or a duration that counts from the pod's start."""
    value = annotations_of(pod).get(DO_NOT_DISRUPT)
    if value is None or value == "true":
        return value == "true"
    try:
        seconds = parse_seconds(value)
    except ValueError:
        return False
    started = (pod.get("status") or {}).get("startTime")
    return seconds > 0 and (started is None or now - parse_time(started) < pace.real(seconds))
