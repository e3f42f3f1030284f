"""The hollow kubelet: one process that plays the kubelets of many nodes, without containers.

It knows a pod from the watch alone, speaks to the server as a real kubelet does (status through /status by strategic
merge with the pod's uid, the last DELETE with grace 0 and the uid as precondition), and therefore runs against any API
server. Invariants: a pod is a uid, never a name; a grace period counts from when the kubelet sees it and can only get
shorter; a node that is down says nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from gracectl.sim.server.api import JsonObject
from gracectl.sim.world import podstatus
from gracectl.sim.world.behaviour import Behaviours, PodBehaviour, Stage
from gracectl.sim.world.client import MERGE, STRATEGIC
from gracectl.sim.world.controller import Controller
from gracectl.sim.world.mirror import StaticPods
from gracectl.sim.world.nodestatus import heartbeat, lease
from gracectl.sim.world.objects import (
    is_finished,
    is_mirror,
    is_ready,
    is_terminating,
    key_of,
    node_of,
    phase_of,
)
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import LEASES, NODES, PODS, path_of
from gracectl.sim.world.view import Views

INSTANT = 1e-6
"""Seconds below which an instant has come: floating-point noise of adding delays to the time of day."""

FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 300.0
"""Simulated seconds before a crashed container starts again, doubled each time (a real kubelet's CrashLoopBackOff)."""

GONE = (404, 409, 422)
"""Answers to a write that names a uid, when that pod is gone or replaced (a patch says 422, a DELETE 409)."""


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`behaviours`: first stage that takes a pod wins. `heartbeat_seconds`: between two reports of a node (simulated).

    `leases`: also renew the node's Lease in kube-node-lease, as real kubelets do.
    """

    behaviours: tuple[Stage, ...] = ()
    heartbeat_seconds: float = 10.0
    leases: bool = False


class _Life:
    """What the kubelet knows of one pod. Instants on the clock's monotonic time."""

    def __init__(self, uid: str, behaviour: PodBehaviour, now: float, ip: str) -> None:
        self.uid = uid
        self.behaviour = behaviour
        self.seen = now
        self.ip = ip
        self.started: float | None = None
        self.restarts = 0
        self.backing_off_until: float | None = None
        self.grace: float | None = None
        self.stops_at = 0.0
        self.let_go = False


_Step = Callable[[JsonObject, _Life], Awaitable[None]]


class HollowKubelet(Controller[tuple[Literal["node", "pod", "static"], str, str]]):
    """The kubelets of all nodes that `manages` takes (a predicate over Node objects).

    Keys: ("node", "", name), ("pod", namespace, name), ("static", node, name).
    """

    def __init__(
        self,
        views: Views,
        pace: Pace,
        settings: KubeletSettings | None = None,
        manages: Callable[[JsonObject], bool] = lambda node: True,
    ) -> None:
        super().__init__(views, pace, NODES, PODS)
        self._settings = settings or KubeletSettings()
        self._behaviours = Behaviours(self._settings.behaviours, pace)
        self._manages = manages
        self._nodes = views.of(NODES)
        self._pods = views.of(PODS)
        self._known: set[str] = set()
        self._down: set[str] = set()
        self._dead: set[str] = set()
        self._lives: dict[tuple[str, str], _Life] = {}
        self._addresses = 0
        self.static_pods = StaticPods(views, self.is_up, lambda node, name: self.queue.add(("static", node, name)))
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    def is_up(self, node: str) -> bool:
        """Does the kubelet of this node belong to us, live, and reach the server?"""
        return node in self._known and node not in self._down and node not in self._dead

    def kill(self, node: str) -> None:
        """The machine has ended: its processes are gone and its kubelet never speaks again."""
        self._dead.add(node)
        for pod in self._pods.by("node", node):
            self._lives.pop(key_of(pod), None)

    def revive(self, node: str) -> None:
        """A new machine runs under this name."""
        self._dead.discard(node)
        self._wake(node)

    def partition(self, node: str) -> None:
        """The kubelet no longer reaches the server; its pods run on."""
        self._down.add(node)

    def heal(self, node: str) -> None:
        """The kubelet reaches the server again, and catches up."""
        self._down.discard(node)
        self._wake(node)

    def _wake(self, node: str) -> None:
        self.queue.add(("node", "", node))
        for pod in self._pods.by("node", node):
            self.queue.add(("pod", *key_of(pod)))
        self.static_pods.wake(node)

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None:
            return
        name = new["metadata"]["name"]
        if name not in self._known and self._manages(new):
            self._known.add(name)
            self._wake(name)
        elif old is None or old["metadata"]["uid"] != new["metadata"]["uid"]:
            self._wake(name)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        pod = new if new is not None else old
        if pod is not None and node_of(pod):
            self.queue.add(("pod", *key_of(pod)))
            if is_mirror(pod):
                self.static_pods.wake(node_of(pod))

    async def reconcile(self, key: tuple[Literal["node", "pod", "static"], str, str]) -> None:
        """See Controller.reconcile."""
        kind, first, second = key
        if kind == "node":
            await self._report(second)
        elif kind == "static":
            await self.static_pods.reconcile(first, second)
        else:
            await self._live(first, second)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def _report(self, name: str) -> None:
        node = self._nodes.get("", name)
        if node is None or not self.is_up(name):
            return
        now = self.pace.clock.now()
        patch = {"status": {"conditions": [heartbeat(node, now)]}}
        path = path_of(NODES, name=name, subresource="status")
        status, answer = await self.ask("PATCH", path, patch, content_type=STRATEGIC, allow=(404,))
        if status == 200:
            self._nodes.remember(answer)
        if self._settings.leases:
            await self._renew(name, node, now)
        self.after(("node", "", name), self._settings.heartbeat_seconds)

    async def _renew(self, name: str, node: JsonObject, now: float) -> None:
        body = lease(node, now)
        path = path_of(LEASES, "kube-node-lease", name)
        status, _ = await self.ask("PATCH", path, {"spec": body["spec"]}, content_type=MERGE, allow=(404,))
        if status == 404:
            # 404 again where nobody has made the namespace; 409 if another heartbeat was faster.
            await self.ask("POST", path_of(LEASES, "kube-node-lease"), body, allow=(404, 409))

    # -- pods ----------------------------------------------------------------------------------------------------------

    async def _live(self, namespace: str, name: str) -> None:
        pod = self._pods.get(namespace, name)
        life = self._lives.get((namespace, name))
        if pod is None or (life is not None and life.uid != pod["metadata"]["uid"]):
            self._lives.pop((namespace, name), None)
            life = None
        if pod is None or not self.is_up(node_of(pod)):
            return
        if life is None:
            life = self._lives[namespace, name] = self._accepted(pod)
        if is_terminating(pod):
            if not is_mirror(pod):
                await self._stop(pod, life)
        elif not is_finished(pod):
            await self._run_on(pod, life)

    def _accepted(self, pod: JsonObject) -> _Life:
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        address = (pod.get("status") or {}).get("podIP") or f"10.{128 + high // 250}.{high % 250}.{low + 1}"
        now = self.pace.clock.monotonic()
        life = _Life(pod["metadata"]["uid"], self._behaviours.of(pod), now, address)
        if phase_of(pod) == "Running":  # An earlier kubelet has started it.
            life.started = now
        return life

    async def _run_on(self, pod: JsonObject, life: _Life) -> None:
        """Take the next step of a pod that is to run, if its instant has come: start, readiness, crash, restart."""
        step = self._next_step(pod, life)
        if step is not None:
            due, take = step
            if not self._is_later(pod, due):
                await take(pod, life)

    def _next_step(self, pod: JsonObject, life: _Life) -> tuple[float, _Step] | None:
        behaviour = life.behaviour
        if life.started is None:
            return life.seen + self.pace.real(behaviour.start_delay), self._start
        if life.backing_off_until is not None:
            return life.backing_off_until, self._start
        steps: list[tuple[float, _Step]] = []
        if behaviour.crashes_after is not None:
            steps.append((life.started + self.pace.real(behaviour.crashes_after), self._crash))
        if not is_ready(pod) and not behaviour.never_ready:
            steps.append((life.started + self.pace.real(behaviour.ready_delay), self._become_ready))
        return min(steps, key=lambda step: step[0], default=None)

    async def _start(self, pod: JsonObject, life: _Life) -> None:
        behaviour, now, instant = life.behaviour, self.pace.clock.monotonic(), self.pace.clock.now()
        is_ready_at_once = not behaviour.never_ready and behaviour.ready_delay <= 0
        accepted = instant - (now - life.seen)
        status = podstatus.running(pod, accepted=accepted, ip=life.ip, ready=is_ready_at_once, now=instant)
        if await self._patch(pod, status):
            life.started, life.backing_off_until = now, None

    async def _become_ready(self, pod: JsonObject, life: _Life) -> None:
        await self._patch(pod, podstatus.readiness(pod, ready=True, now=self.pace.clock.now()))

    async def _crash(self, pod: JsonObject, life: _Life) -> None:
        instant = self.pace.clock.now()
        if pod["spec"].get("restartPolicy") == "Never":
            await self._patch(pod, podstatus.ended(pod, phase="Failed", exit_code=1, now=instant))
            return
        restarts = life.restarts + 1
        if await self._patch(pod, podstatus.crashed(pod, restarts=restarts, now=instant)):
            wait = min(FIRST_BACKOFF * 2**life.restarts, LONGEST_BACKOFF)
            life.restarts, life.backing_off_until = restarts, self.pace.clock.monotonic() + self.pace.real(wait)

    async def _stop(self, pod: JsonObject, life: _Life) -> None:
        """SIGTERM at first sight of the deletion, SIGKILL when the grace period is over, then let go of the object."""
        now = self.pace.clock.monotonic()
        grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        is_running = life.started is not None and life.backing_off_until is None and not is_finished(pod)
        behaviour = life.behaviour
        if life.grace is None:
            wait = grace if behaviour.ignores_sigterm else min(behaviour.stop_delay, grace)
            life.grace, life.stops_at = grace, now + (self.pace.real(wait) if is_running else 0.0)
        elif grace < life.grace:
            life.grace, life.stops_at = grace, min(life.stops_at, now + self.pace.real(grace))
        if life.let_go or self._is_later(pod, life.stops_at):
            return
        if is_running and grace > 0:
            # Killed if it would have gone on beyond the end of its grace.
            killed = behaviour.ignores_sigterm or behaviour.stop_delay > life.grace
            phase, code = ("Failed", 137) if killed else ("Succeeded", 0)
            status = podstatus.ended(pod, phase=phase, exit_code=code, now=self.pace.clock.now())
            if not await self._patch(pod, status):
                return
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": life.uid},
        }
        await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=GONE)
        life.let_go = True

    def _is_later(self, pod: JsonObject, due: float) -> bool:
        """Is this instant still to come? Then the pod is looked at again when it has."""
        left = due - self.pace.clock.monotonic()
        if left <= INSTANT:
            return False
        self.queue.add_after(("pod", *key_of(pod)), left)
        return True

    async def _patch(self, pod: JsonObject, status: JsonObject) -> bool:
        """Write a pod's status; False if the pod is no longer there."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        path = path_of(PODS, *key_of(pod), "status")
        code, answer = await self.ask("PATCH", path, body, content_type=STRATEGIC, allow=GONE)
        if code != 200:
            return False
        self._pods.remember(answer)
        return True
