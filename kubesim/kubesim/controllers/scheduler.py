"""The scheduler: binds pods to nodes by priority, as soon as there is room.

Invariants: a pod counts on its node from the binding request on; the cost of a change of one node does not grow with
the number of nodes. In large clusters only some nodes are examined per pod. Preempts no pod.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Mapping

from kubesim.controllers.client import STRATEGIC
from kubesim.controllers.controller import Controller
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.nodefit import fits as fits
from kubesim.controllers.nodefit import offer_of, preference, refusal, wish_of
from kubesim.controllers.nodefit import room_of as room_of
from kubesim.controllers.objects import (
    Key,
    condition_of,
    controller_uid,
    is_finished,
    is_terminating,
    key_of,
    label_keys,
    labels_of,
    node_of,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.controllers.podaffinity import PodAffinity, has_rules, terms_of
from kubesim.controllers.quantities import Amounts, requests_of
from kubesim.controllers.schedulercache import SchedulerCache
from kubesim.server.api import JsonObject
from kubesim.server.selectors import LabelSelector
from kubesim.values import format_time

NAME = "default-scheduler"
REMEMBERED_WISHES = 256


def enough(nodes: int) -> int:
    """Number of fitting nodes that ends the search: a hundred, or a twentieth of all nodes if that is more."""
    return min(nodes, max(100, nodes // 20))


class Scheduler(Controller[Key]):
    """Binds pods of `default-scheduler` (or no scheduler). Keys: pods. Considers cordon, taints, Ready, nodeSelector,
    node affinity, pod (anti-)affinity, topology spread, requests (cpu, memory, ephemeral storage) and the pod limit.
    Prefers the pod's preferred node, fewest pods of the same controller, fewest pods, first name."""

    # One after another: each choice depends on the one before.
    workers = 1

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, NODES, PODS)
        self._events = Recorder(informers.api, pace, NAME, enabled=events)
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._cache = SchedulerCache()
        self._by_name: dict[str, JsonObject] = {}
        self._wishes: OrderedDict[bytes, _Wish] = OrderedDict()
        self._order = itertools.count()
        self._pending: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._waiting: dict[Key, None] = {}
        self._changes = 0
        self._hopeless: dict[tuple[bytes, Amounts], tuple[int, str]] = {}
        self._pods.index("labels", label_keys)
        self._pods.index("repellent", lambda pod: ("",) if terms_of(pod, "podAntiAffinity") else ())
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    # -- what changes --------------------------------------------------------------------------------------------------

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        node = new if new is not None else old
        if node is None:
            return
        name = node["metadata"]["name"]
        if new is None:
            self._by_name.pop(name, None)
        else:
            self._by_name[name] = new
        if old is None or new is None or offer_of(old) != offer_of(new):
            self._cache.offer(name, new)
            for wish in self._wishes.values():
                wish.offer(name, new)
            self._retry()

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is not None and node_of(new) and not is_finished(new):
            if self._cache.take(new, node_of(new)):
                self._retry_sociable()
        elif (gone := new if new is not None else old) is not None and (new is None or is_finished(new)):
            self._waiting.pop(key_of(gone), None)
            if self._cache.release(gone["metadata"]["uid"]):
                self._retry()
        if new is not None and _is_ours(new):
            self._enqueue(new)

    def _enqueue(self, pod: JsonObject) -> None:
        key = key_of(pod)
        if key not in self._pending:
            self._pending[key] = order = next(self._order)
            heapq.heappush(self._heap, (-int(pod["spec"].get("priority") or 0), order, key))
        self.queue.add(key)

    def _retry(self) -> None:
        self._changes += 1
        for key in self._waiting:
            pod = self._pods.get(*key)
            if pod is not None:
                self._enqueue(pod)

    def _retry_sociable(self) -> None:
        """A pod has come somewhere: those that wait for company look again."""
        for key in self._waiting:
            pod = self._pods.get(*key)
            if pod is not None and has_rules(pod):
                self._enqueue(pod)

    # -- scheduling ----------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile. Not the pod of this key, but the most important one that waits is looked at."""
        if not self._heap:
            return
        _, _, key = heapq.heappop(self._heap)
        del self._pending[key]
        pod = self._pods.get(*key)
        if pod is None or not _is_ours(pod) or self._cache.of(pod["metadata"]["uid"]):
            self._waiting.pop(key, None)
            return
        is_done = False
        try:
            await self._schedule(pod)
            is_done = True
        finally:
            if not is_done:
                self._enqueue(pod)

    async def _schedule(self, pod: JsonObject) -> None:
        key = key_of(pod)
        node, why = self._choose(pod)
        if not node:
            self._waiting[key] = None
            await self._say_unschedulable(pod, why)
            return
        self._waiting.pop(key, None)
        self._cache.take(pod, node)
        is_bound = False
        try:
            is_bound = await self._bind(pod, node)
        finally:
            # Unless the watch shows meanwhile that another scheduler has bound it.
            uid = pod["metadata"]["uid"]
            if not is_bound and self._cache.of(uid) == node:
                self._cache.release(uid)
        if is_bound:
            await self._events.normal(pod, "Scheduled", f"Successfully assigned {'/'.join(key)} to {node}")

    def _choose(self, pod: JsonObject) -> tuple[str, str]:
        """(the node for the pod, ""), or ("", why there is none)."""
        wish, requests = wish_of(pod), requests_of(pod)
        repellent = self._pods.by("repellent", "") if self._pods.count("repellent", "") else []
        neighbours = self._affinity(pod, repellent) if repellent or has_rules(pod) else None
        if neighbours is None:
            known = self._hopeless.get((wish, requests))
            if known is not None and known[0] == self._changes:
                return "", known[1]
        best = self._search(pod, wish, requests, neighbours)
        if best:
            return best, ""
        why = self._why_not(pod, requests, neighbours)
        if neighbours is None:
            if len(self._hopeless) > REMEMBERED_WISHES:
                self._hopeless.clear()
            self._hopeless[wish, requests] = (self._changes, why)
        return "", why

    def _search(self, pod: JsonObject, wish: bytes, requests: Amounts, neighbours: PodAffinity | None) -> str:
        """The best of the first nodes that will do, beginning where the last search ended."""
        kept = self._wish(pod, wish)
        names, liking = kept.names(), kept.fitting
        limit, start = enough(len(names)), kept.start if len(names) > enough(len(names)) else 0
        siblings, cache = self._cache.siblings(controller_uid(pod)), self._cache
        best: tuple[int, int, int, int, str] | None = None
        found = seen = 0
        for index in range(start, start + len(names)):
            name = names[index % len(names)]
            seen += 1
            if not cache.has_room(name, requests):
                continue
            crowd = 0
            if neighbours is not None:
                if neighbours.refusal(self._by_name[name]):
                    continue
                crowd = neighbours.crowd(self._by_name[name])
            score = (-liking[name], crowd, siblings.get(name, 0), cache.load(name), name)
            if best is None or score < best:
                best = score
            found += 1
            # In a sample, an empty node is as good as any that might still come.
            if found >= limit or (limit < len(names) and not any(score[:-1])):
                break
        kept.start = (start + seen) % max(1, len(names))
        return best[-1] if best is not None else ""

    def _wish(self, pod: JsonObject, wish: bytes) -> _Wish:
        """What is known of all pods with the same wish, worked out once for all of them."""
        kept = self._wishes.get(wish)
        if kept is None:
            kept = self._wishes[wish] = _Wish(pod, self._by_name)
            if len(self._wishes) > REMEMBERED_WISHES:
                self._wishes.popitem(last=False)
        else:
            self._wishes.move_to_end(wish)
        return kept

    def _affinity(self, pod: JsonObject, repellent: list[JsonObject]) -> PodAffinity:
        return PodAffinity(pod, self._by_name, self._selected, self._place_of, repellent)

    def _place_of(self, pod: JsonObject) -> str:
        return self._cache.of(pod["metadata"]["uid"])

    def _selected(self, namespace: str, selector: LabelSelector) -> list[JsonObject]:
        label = next((f"{key}={value}" for key, value in selector.match_labels.items()), "")
        candidates = self._pods.by("labels", f"{namespace}/{label}")
        return [pod for pod in candidates if selector.matches(labels_of(pod))]

    def _why_not(self, pod: JsonObject, requests: Amounts, neighbours: PodAffinity | None) -> str:
        if not self._by_name:
            return "no nodes available to schedule pods"
        reasons: Counter[str] = Counter()
        for name, node in self._by_name.items():
            found = refusal(pod, node)
            if found:
                reasons[found] += 1
            elif lacking := self._cache.lacking(name, requests):
                reasons.update(lacking)
            elif neighbours is not None:
                reasons[neighbours.refusal(node)] += 1
        total = len(self._by_name)
        counts = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return f"0/{total} nodes are available: {counts}."

    async def _bind(self, pod: JsonObject, node: str) -> bool:
        namespace, name = key_of(pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = path_of(PODS, namespace, name, "binding")
        status, _ = await self.ask("POST", path, binding, allow=(404, 409))
        return status < 400

    async def _say_unschedulable(self, pod: JsonObject, message: str) -> None:
        before = condition_of(pod, "PodScheduled")
        if before is not None and before.get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": format_time(self.pace.clock.now()),
        }
        patch = {"status": {"conditions": [condition]}}
        path = path_of(PODS, *key_of(pod), "status")
        await self.ask("PATCH", path, patch, content_type=STRATEGIC, allow=(404, 409))
        await self._events.warn(pod, "FailedScheduling", message)


class _Wish:
    """The nodes that pods of one wish fit, how much they like each, and where their next search begins."""

    def __init__(self, sample: JsonObject, nodes: Mapping[str, JsonObject]) -> None:
        self.sample = sample
        self.fitting = {name: preference(sample, node) for name, node in nodes.items() if not refusal(sample, node)}
        self.start = 0
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """The nodes that fit, in the order in which they came to do so."""
        if self._names is None:
            self._names = list(self.fitting)
        return self._names

    def offer(self, name: str, node: JsonObject | None) -> None:
        """A node is not what it was (None: it is gone)."""
        self._names = None
        self.fitting.pop(name, None)
        if node is not None and not refusal(self.sample, node):
            self.fitting[name] = preference(self.sample, node)


def _is_ours(pod: JsonObject) -> bool:
    return (
        not node_of(pod)
        and not is_terminating(pod)
        and not is_finished(pod)
        and not pod["spec"].get("schedulingGates")
        and pod["spec"].get("schedulerName", NAME) == NAME
    )
