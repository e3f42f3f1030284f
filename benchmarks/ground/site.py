"""What stands on a cluster for one trial: a namespace, nodes, Deployments, budgets, and the sight of their pods.

Everything bears the site's name, and is taken away at the end, however the trial ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import click
import msgspec

from benchmarks.ground.ground import LABEL, Ground, Kubelet, Pace
from benchmarks.ground.nodes import together, until_they_take_pods
from benchmarks.ground.waiting import LOOK, SHOWN, STILL, Waiting
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.http import HttpTransport
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import BUDGETS, LEASES, NODES, PODS, Resource, verbatim
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.names import DO_NOT_DISRUPT, REPLACE_FIRST
from gracectl.model.pod import Pod
from gracectl.runtime.clock import Clock, SystemClock

ROLE = f"{LABEL}-role"
"""On the nodes of a site: `old` ones lose their pods, `new` ones get them."""
OLD, NEW = "old", "new"
APP = f"{LABEL}-app"
GRACE = 6
"""Seconds that pods have to stop: more than they take."""
READY = "Ready"
NAMED = 3
"""Pods that are named when nothing moves any more."""
KUBELETS: Mapping[Kubelet, str] = {
    "embedded": "the embedded cluster runs their kubelets",
    "hollow": "a hollow kubelet of this run keeps their nodes",
    "kwok": "check that kwok runs, and manages nodes with the annotation kwok.x-k8s.io/node=fake",
}
"""Who starts and stops the pods."""

NAMESPACES: Resource[bytes] = Resource("", "v1", "namespaces", "Namespace", verbatim, namespaced=False)
DEPLOYMENTS: Resource[bytes] = Resource("apps", "v1", "deployments", "Deployment", verbatim)
RAW_BUDGETS: Resource[bytes] = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", verbatim)
RAW_PODS: Resource[bytes] = Resource("", "v1", "pods", "Pod", verbatim)


class App(msgspec.Struct, frozen=True):
    """A Deployment of so many replicas. `bound`: of its budget (`{"maxUnavailable": 1}`), None for none.
    `promise`: for so many seconds from their creation its pods are protected from disruption. `asks`: its pods ask to
    be replaced before their eviction."""

    name: str
    replicas: int
    bound: Mapping[str, int | str] | None = None
    promise: float | None = None
    asks: bool = False

    @property
    def annotations(self) -> Mapping[str, str]:
        """Of its pods."""
        promise = {} if self.promise is None else {DO_NOT_DISRUPT: f"{self.promise:g}s"}
        return {**promise, REPLACE_FIRST: "true"} if self.asks else promise


class Site:
    """See the module. Pods and budgets are those of its namespace. `way`: over which contenders are to go to it."""

    def __init__(self, ground: Ground, way: Ground, name: str, client: KubeClient, clock: Clock) -> None:
        self.ground = ground
        self.way = way
        self.name = name
        self.client = client
        self.clock = clock
        self.pods: Cache[Pod] = Cache("pods", {"app": lambda pod: (self.app_of(pod),)})
        self.budgets: Cache[PodDisruptionBudget] = Cache("budgets")
        self._nodes: list[str] = []
        self._news = anyio.Event()
        self._changes = 0
        self.pods.subscribe(lambda old, new: self._tell())
        self.budgets.subscribe(lambda old, new: self._tell())

    def _tell(self) -> None:
        self._changes += 1
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], bool], what: str, still: float = STILL) -> None:
        """Wait until a condition on pods and budgets holds. Raises Stalled if none of them changes for so long."""
        waiting = Waiting(f"{self.name}: waiting for {what}", self._census, still, self.clock)
        seen = self._changes
        while not condition():
            with anyio.move_on_after(LOOK):
                await self._news.wait()
            if self._changes != seen:
                seen = self._changes
                waiting.moved()
            if waiting.has_stalled:
                raise waiting.stalled(await self._cause())

    def _census(self) -> str:
        states = Counter(map(_state, self.pods.values()))
        return ", ".join(f"{count:,} {state}" for state, count in states.most_common()) or "no pods"

    async def _cause(self) -> str:
        """Pods that are late, with the state of their nodes; and what to look at."""
        late = [pod for pod in self.pods.values() if _state(pod) != READY][:NAMED]
        found = [f"{pod.name} is {_state(pod)} on {await _node_state(self.client, pod.node_name)}" for pod in late]
        missing = "no pod is late: see the controllers of Deployments and budgets, and what drains"
        return f"{', '.join(found) or missing}; {KUBELETS[self.ground.kubelet]}"

    # -- putting things in ---------------------------------------------------------------------------------------------

    async def add_nodes(self, role: str, count: int, *, pods: int = 110, cordoned: bool = False) -> tuple[str, ...]:
        """Nodes that take so many `pods` each, once they take them; if `cordoned`, only those that name them. Returns
        their names."""
        names = tuple(f"{self.name}-{role}-{number}" for number in range(count))
        self._nodes += names
        await together([partial(self._add_node, name, role, pods, cordoned) for name in names])
        await until_they_take_pods(self.client, names, KUBELETS[self.ground.kubelet])
        return names

    async def _add_node(self, name: str, role: str, pods: int, cordoned: bool) -> None:
        room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": str(pods)}
        system = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        kwok = {"kwok.x-k8s.io/node": "fake"} if self.ground.kubelet == "kwok" else {}
        manifest = {
            "metadata": {
                "name": name,
                "labels": {**system, LABEL: self.name, ROLE: role},
                "annotations": kwok,
            },
            "spec": {
                "taints": [{"key": LABEL, "value": self.name, "effect": "NoSchedule"}],
                "unschedulable": cordoned,
            },
            "status": {"capacity": room, "allocatable": room},
        }
        await self.client.create(NODES, "", manifest)

    async def deploy(self, *apps: App, pace: Pace) -> None:
        """These Deployments and their budgets, once all pods are Ready and the budgets know it."""
        await together([partial(self._deploy, app, pace) for app in apps])
        replicas = sum(app.replicas for app in apps)
        began = self.clock.monotonic()
        await self.until(lambda: len(self.pods) >= replicas and self.settled(*apps), f"{replicas:,} pods to be Ready")
        if (seconds := self.clock.monotonic() - began) > SHOWN:
            click.echo(f"  {self.name}: {replicas:,} pods Ready, {replicas / seconds:.0f} a second", err=True)

    async def _deploy(self, app: App, pace: Pace) -> None:
        labels = {APP: app.name}
        template = {
            "metadata": {"labels": labels, "annotations": {**pace.annotations, **app.annotations}},
            "spec": {
                "nodeSelector": {LABEL: self.name},
                "tolerations": [{"key": LABEL, "operator": "Exists", "effect": "NoSchedule"}],
                "terminationGracePeriodSeconds": GRACE,
                "containers": [{"name": "main", "image": "registry.invalid/hollow:1"}],
            },
        }
        selector = {"matchLabels": labels}
        body = {"replicas": app.replicas, "selector": selector, "template": template}
        await self.client.create(DEPLOYMENTS, self.name, {"metadata": {"name": app.name}, "spec": body})
        if app.bound is not None:
            budget = {"metadata": {"name": app.name}, "spec": {"selector": selector, **app.bound}}
            await self.client.create(RAW_BUDGETS, self.name, budget)

    async def cordon(self, nodes: Iterable[str]) -> None:
        """Let no pods come to these nodes any more."""
        change = MergePatch({"spec": {"unschedulable": True}})
        await together([partial(self.client.patch, NODES, ("", name), change) for name in nodes])

    # -- looking -------------------------------------------------------------------------------------------------------

    def of(self, app: str) -> tuple[Pod, ...]:
        """The pods of a Deployment."""
        return self.pods.by_index("app", app)

    @staticmethod
    def app_of(pod: Pod) -> str:
        """The name of its Deployment, "" if that is none of the site's."""
        return pod.labels.get(APP, "")

    def healthy(self, app: str) -> int:
        """How many of them are Ready and not on their way out."""
        return sum(pod.ready and pod.deletion_timestamp is None for pod in self.of(app))

    def settled(self, *apps: App) -> bool:
        """All replicas are healthy and their budgets know it."""
        return all(self.healthy(app.name) == app.replicas and self._is_counted(app) for app in apps)

    def _is_counted(self, app: App) -> bool:
        if app.bound is None:
            return True
        budget = self.budgets.get(self.name, app.name)
        return (
            budget is not None
            and budget.observed_generation == budget.generation
            and budget.current_healthy == app.replicas
            and not budget.disrupted_pods
        )

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Make the namespace."""
        await make_namespace(self.client, self.name, self.clock)

    async def clean(self) -> None:
        """Take everything away, and wait until its nodes and pods are gone."""
        await remove_namespace(self.client, self.name, self.clock)
        await together([partial(self._end_node, name) for name in self._nodes])

    async def _end_node(self, name: str) -> None:
        await _gone(self.client.patch(NODES, ("", name), MergePatch({"metadata": {"finalizers": None}})))
        await _gone(self.client.delete(NODES, ("", name)))
        await _gone(self.client.delete(LEASES, ("kube-node-lease", name)))


@asynccontextmanager
async def site(ground: Ground, name: str, way: Ground | None = None) -> AsyncIterator[Site]:
    """A site called after the run and `name`, watched from its beginning. `way`: see Site; by default ours."""
    clock = SystemClock()
    async with HttpTransport(await ground.credentials(), clock) as transport:
        client = KubeClient(transport, clock, settings=ClientSettings(timeout=60.0))
        one = Site(ground, way or ground, f"{ground.run}-{name}", client, clock)
        try:
            async with anyio.create_task_group() as group:
                await one.begin()
                here = ReflectorSettings(namespace=one.name)
                group.start_soon(Reflector(client, PODS, one.pods, clock, settings=here).run)
                group.start_soon(Reflector(client, BUDGETS, one.budgets, clock, settings=here).run)
                await one.pods.wait_live()
                await one.budgets.wait_live()
                yield one
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await one.clean()


async def make_namespace(client: KubeClient, name: str, clock: Clock) -> None:
    """Make a namespace, and wait until it takes pods (a real server wants a ServiceAccount first)."""
    await client.create(NAMESPACES, "", {"metadata": {"name": name, "labels": {LABEL: name}}})
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    waiting = Waiting(f"{name}: waiting for its ServiceAccount", lambda: "none", clock=clock)
    while True:
        try:
            await client.create(RAW_PODS, name, probe, dry_run=True)
        except Forbidden as refusal:
            if waiting.has_stalled:
                raise waiting.stalled(str(refusal)) from None
            await clock.sleep(0.05)
        else:
            return


async def remove_namespace(client: KubeClient, name: str, clock: Clock) -> None:
    """Take a namespace away, and wait until its pods are gone."""
    await _gone(client.delete(NAMESPACES, ("", name)))
    with anyio.move_on_after(60):
        while await _pods_ended(client, name):
            await clock.sleep(0.2)


async def _pods_ended(client: KubeClient, namespace: str) -> int:
    """End what pods are left, at once: there is nothing in them. Says how many there were."""
    left = [pod async for page in client.list(PODS, namespace=namespace) for pod in page.items]
    delete = partial(client.delete, PODS, grace_seconds=0)
    await together([partial(_gone, delete(pod.key, uid=pod.uid)) for pod in left])
    return len(left)


def _state(pod: Pod) -> str:
    if pod.deletion_timestamp is not None:
        return "terminating"
    return READY if pod.ready else pod.phase or "Pending"


async def _node_state(client: KubeClient, name: str) -> str:
    """A node's name, and what is wrong with it."""
    if not name:
        return "no node"
    try:
        node = await client.get(NODES, ("", name))
    except NotFound:
        return f"{name} (gone)"
    return name if node.ready else f"{name} (not Ready)"


async def _gone(asked: Any) -> None:
    """What is gone already need not be taken away."""
    try:
        await asked
    except NotFound:
        pass
    except ApiError as error:
        print(f"left behind: {error}", flush=True)
