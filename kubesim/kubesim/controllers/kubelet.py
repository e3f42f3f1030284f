"""The hollow kubelet: one process plays the kubelets of many nodes, without containers.

It watches pods and writes as a real kubelet does (status with the pod's uid, a last DELETE with grace 0), so it runs
against any API server. Invariants: a pod is identified by uid; a grace period starts when the kubelet sees it and only
gets shorter; a node that is down is silent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from kubesim.controllers import podstatus
from kubesim.controllers.behaviour import Behaviours, PodBehaviour, Stage
from kubesim.controllers.client import STRATEGIC
from kubesim.controllers.controller import Controller
from kubesim.controllers.heartbeats import Heartbeats
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    is_finished,
    is_mirror,
    is_ready,
    is_terminating,
    key_of,
    node_of,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.controllers.staticpods import StaticPods
from kubesim.controllers.volumemounts import Mounts
from kubesim.server.api import JsonObject

INSTANT = 1e-6
"""Seconds below which an instant has come: floating-point noise of adding delays to the time of day."""

FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 300.0
"""Simulated seconds before a crashed container starts again, doubled each time (a real kubelet's CrashLoopBackOff)."""

BACKOFF_FORGOTTEN = 600.0
"""Simulated seconds of running after which earlier crashes no longer count."""

UNSTARTED_SECONDS = 0.5
"""Simulated seconds after which a pod that was deleted before it has started is let go of at the earliest, counted from
when the kubelet met it: a real one is not faster either. Without, a pod that is deleted as often as it is made would be
created forever at one instant."""

GONE = (404, 409, 422)
"""Answers to a write that names a uid, when that pod is gone or replaced (a patch says 422, a DELETE 409)."""


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`behaviours`: the first matching stage wins. Simulated seconds: `heartbeat_seconds` between heartbeats,
    `status_seconds` between writes of an unchanged status; both grow beyond 200 nodes (nodestatus.stretch). `leases`:
    heartbeats renew Leases in kube-node-lease instead of writing the status. `volumes`: a pod starts when its volumes
    are attached."""

    behaviours: tuple[Stage, ...] = ()
    heartbeat_seconds: float = 10.0
    status_seconds: float = 300.0
    leases: bool = True
    volumes: bool = True


class _Life:
    """What the kubelet knows of one pod. Instants on the clock's monotonic time."""

    def __init__(self, pod: JsonObject, behaviour: PodBehaviour, now: float, ip: str) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.behaviour = behaviour
        self.seen = self.met = now
        self.ip = ip
        self.started: float | None = now if podstatus.is_running(pod) else None  # An earlier kubelet has started it.
        self.mounted: float | None = None
        self.restarts = podstatus.restarts_of(pod)
        self.crashes_in_a_row = 0
        self.backing_off_until: float | None = None
        self.grace: float | None = None
        self.stops_at = 0.0
        self.let_go = False
        self.is_lost = False


_Step = Callable[[JsonObject, _Life], Awaitable[None]]


class HollowKubelet(Controller[tuple[Literal["node", "pod", "static"], str, str]]):
    """Kubelets of the nodes that `manages` accepts. Keys: ("node", "", name), ("pod", namespace, name), ("static",
    node, name)."""

    def __init__(
        self,
        informers: Informers,
        pace: Pace,
        settings: KubeletSettings | None = None,
        manages: Callable[[JsonObject], bool] = lambda node: True,
    ) -> None:
        super().__init__(informers, pace, NODES, PODS)
        self._settings = settings or KubeletSettings()
        self._behaviours = Behaviours(self._settings.behaviours, pace)
        self._manages = manages
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._known: set[str] = set()
        self._down: set[str] = set()
        self._dead: set[str] = set()
        self._lives: dict[tuple[str, str], _Life] = {}
        self._addresses = 0
        self._heartbeats = Heartbeats(
            informers.api,
            self._nodes,
            pace,
            period=self._settings.heartbeat_seconds,
            status_period=self._settings.status_seconds,
        )
        self._mounts = Mounts(informers, self._look_at_pod) if self._settings.volumes else None
        self.static_pods = StaticPods(informers, self.is_up, lambda node, name: self.queue.add(("static", node, name)))
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._nodes.subscribe(self._node_changed)
        self._pods.subscribe(self._pod_changed)

    def is_up(self, node: str) -> bool:
        """Does the kubelet of this node belong to us, live, and reach the server?"""
        return node in self._known and node not in self._down and node not in self._dead

    def kill(self, node: str) -> None:
        """The machine has ended, or crashed: its processes are gone and its kubelet does not speak."""
        self._dead.add(node)
        for pod in self._pods.by("node", node):
            self._life(pod).is_lost = True

    def revive(self, node: str) -> None:
        """A machine runs under this name (again): what was bound to the node is started anew."""
        self._dead.discard(node)
        self._wake(node)

    def restart(self, node: str) -> None:
        """The kubelet alone starts again: containers run on, but what it had counted (back-off, grace) is forgotten."""
        for pod in self._pods.by("node", node):
            life = self._lives.get(key_of(pod))
            if life is not None and not life.is_lost:
                del self._lives[key_of(pod)]
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
            if self._has_work(pod):
                self.queue.add(("pod", *key_of(pod)))
        self.static_pods.wake(node)

    def _has_work(self, pod: JsonObject) -> bool:
        """Whether a pod may need a step: not one that was found Ready, until it changes."""
        if key_of(pod) in self._lives or is_terminating(pod) or not (is_ready(pod) and podstatus.is_running(pod)):
            return True
        behaviour = self._behaviours.of(pod)
        return behaviour.crashes_after is not None or behaviour.exits_after is not None

    def _look_at_pod(self, key: Key) -> None:
        self.queue.add(("pod", *key))

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
            if old is not None or self._has_work(pod):
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
        if node is not None and self.is_up(name):
            pause = await self._heartbeats.beat(node, len(self._nodes), leases=self._settings.leases)
            self.after(("node", "", name), pause)

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
            life = self._life(pod)
        if life.is_lost and await self._pick_up(pod, life):
            return  # Its new status brings it back here.
        if is_terminating(pod):
            if not is_mirror(pod):
                await self._stop(pod, life)
        elif not is_finished(pod):
            await self._run_on(pod, life)

    def _life(self, pod: JsonObject) -> _Life:
        if (life := self._lives.get(key_of(pod))) is not None:
            return life
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        address = (pod.get("status") or {}).get("podIP") or f"10.{128 + high // 250}.{high % 250}.{low + 1}"
        life = _Life(pod, self._behaviours.of(pod), self.pace.clock.monotonic(), address)
        return self._lives.setdefault(key_of(pod), life)

    async def _pick_up(self, pod: JsonObject, life: _Life) -> bool:
        """Whether the status must change: the machine has rebooted, and the containers of the pod are lost."""
        life.is_lost = False
        now, instant = self.pace.clock.monotonic(), self.pace.clock.now()
        had_run = life.started is not None
        life.started = life.mounted = life.backing_off_until = None
        life.seen = life.stops_at = now
        if not had_run or is_finished(pod) or is_terminating(pod):
            return False
        life.restarts += 1
        if pod["spec"].get("restartPolicy") == "Never":
            return await self._patch(pod, podstatus.ended(pod, phase="Failed", exit_code=255, now=instant))
        return await self._patch(pod, podstatus.crashed(pod, restarts=life.restarts, exit_code=255, now=instant))

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
            if life.mounted is None:
                if self._mounts is not None and not self._mounts.are_there(pod):
                    return None
                life.mounted = self.pace.clock.monotonic()
            return life.mounted + self.pace.real(behaviour.start_delay), self._start
        if life.backing_off_until is not None:
            return life.backing_off_until, self._start
        steps: list[tuple[float, _Step]] = []
        may_crash = behaviour.crash_times is None or life.restarts < behaviour.crash_times
        if behaviour.crashes_after is not None and may_crash:
            steps.append((life.started + self.pace.real(behaviour.crashes_after), self._crash))
        if behaviour.exits_after is not None:
            steps.append((life.started + self.pace.real(behaviour.exits_after), self._complete))
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
        await self._exit(pod, life, int(life.behaviour.exit_code))

    async def _complete(self, pod: JsonObject, life: _Life) -> None:
        await self._exit(pod, life, 0)

    async def _exit(self, pod: JsonObject, life: _Life, code: int) -> None:
        """The containers have ended by themselves: they start again after a while, or never, as their pod says."""
        now, instant = self.pace.clock.monotonic(), self.pace.clock.now()
        policy = pod["spec"].get("restartPolicy")
        if policy == "Never" or (policy == "OnFailure" and code == 0):
            phase = "Failed" if code else "Succeeded"
            await self._patch(pod, podstatus.ended(pod, phase=phase, exit_code=code, now=instant))
            return
        if life.started is not None and now - life.started >= self.pace.real(BACKOFF_FORGOTTEN):
            life.crashes_in_a_row = 0
        restarts = life.restarts + 1
        if await self._patch(pod, podstatus.crashed(pod, restarts=restarts, exit_code=code, now=instant)):
            wait = min(FIRST_BACKOFF * 2**life.crashes_in_a_row, LONGEST_BACKOFF)
            life.restarts, life.crashes_in_a_row = restarts, life.crashes_in_a_row + 1
            life.backing_off_until = now + self.pace.real(wait)

    async def _stop(self, pod: JsonObject, life: _Life) -> None:
        """SIGTERM at first sight of the deletion, SIGKILL when the grace period is over, then let go of the object."""
        if life.behaviour.never_stops:
            return
        now = self.pace.clock.monotonic()
        grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        is_running = life.started is not None and life.backing_off_until is None and not is_finished(pod)
        behaviour = life.behaviour
        if life.grace is None:
            wait = grace if behaviour.ignores_sigterm else min(behaviour.stop_delay, grace)
            unstarted = max(now, life.met + self.pace.real(UNSTARTED_SECONDS))
            life.grace, life.stops_at = grace, now + self.pace.real(wait) if is_running else unstarted
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
