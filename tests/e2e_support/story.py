"""One story's part of a cluster: a namespace, nodes, workloads, a controller, and watches of all of it.

Everything bears the story's run, and is taken away at the end, however the story ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
from kubesim.controllers.client import MERGE, STRATEGIC, ApiClient, ask
from kubesim.controllers.nodeclaims import NODE_CLAIMS
from kubesim.controllers.objects import is_finished, is_ready, is_terminating
from kubesim.controllers.paths import BUDGETS, EVENTS, KINDS, NAMESPACES, NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE

from benchmarks.ground.hollow import connected
from e2e_support import manifests
from e2e_support.definition import NODE_BUDGETS, NODE_DRAINS
from e2e_support.forger import Forger, forger_before
from e2e_support.names import LABEL
from e2e_support.program import Program, running
from e2e_support.sight import ClusterWatcher, Scope
from e2e_support.target import Target
from e2e_support.wire import Wire, wire_to
from gracectl.model import names
from gracectl.model.times import parse_time
from gracectl.runtime.clock import SystemClock

T = TypeVar("T")

WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "PodDisruptionBudget")
FINALIZERS = frozenset(names.FINALIZERS)
PATHS = {**KINDS, "NodeClaim": NODE_CLAIMS, "NodeDisruptionBudget": NODE_BUDGETS, "NodeDrain": NODE_DRAINS}
TIMES = {"renewDeadlineSeconds": 4, "retryPeriodSeconds": 1}
WITHOUT_NAMESPACE = ("Node", "NodeClaim", "NodeDisruptionBudget", "NodeDrain", "Namespace")


class Reach(Protocol):
    """A way into the cluster for a program."""

    @property
    def kubeconfig(self) -> Path:
        """The file for `--kubeconfig`."""


class Story:
    """The story called `run`; its namespace has the same name. `clock` is this machine's. `more` is seen, too."""

    def __init__(
        self, target: Target, api: ApiClient, run: str, folder: Path, stack: AsyncExitStack, *more: Scope
    ) -> None:
        self.target = target
        self.api = api
        self.run = run
        self.namespace = run
        self.folder = folder
        self.clock = SystemClock()
        self.sight = ClusterWatcher(
            api,
            self.clock,
            Scope("Node", NODES, {"labelSelector": f"{LABEL}={run}"}),
            Scope("Pod", path_of(PODS, run), {}),
            Scope("PodDisruptionBudget", path_of(BUDGETS, run), {}),
            Scope("Event", path_of(EVENTS, run), {}),
            Scope("Event", path_of(EVENTS, "default"), {}),
            *more,
        )
        self._stack = stack
        self._nodes: list[str] = []
        self._claims: list[str] = []
        self._node_budgets: list[str] = []
        self._node_drains: list[str] = []
        self._programs: list[Program] = []

    # -- the controller ------------------------------------------------------------------------------------------------

    async def controller(self, *arguments: str, through: Wire | Forger | None = None, **settings: Any) -> Program:
        """Start a controller of the story's nodes, over a wire if one is given; it is killed when the story ends."""
        kubeconfig = through.kubeconfig if through else self.target.kubeconfig
        own = {
            "nodeSelector": {"matchLabels": {LABEL: self.run, f"{LABEL}-managed": "true"}},
            "drain": {"minimumSeconds": 0.3},
            "log": {"level": "debug"},
            # A Lease of its own, and not much patience with the one of a controller that was killed.
            "leaderElection": {"namespace": self.namespace, "leaseDurationSeconds": 5, **TIMES},
        }
        command = ("controller", *arguments)
        return await self._start(kubeconfig, {**own, **settings}, *command)

    async def register(self, admission: Mapping[str, Any]) -> None:
        """Write the webhook configurations of controllers with these settings, as a person does."""
        command = ("webhooks", "--apply", "--wait", f"{PATIENCE:g}s")
        program = await self._start(self.target.kubeconfig, {"admission": admission}, *command)
        assert await program.ended() == 0, program.text()

    async def agent(self, node: str, through: Reach | None = None, **settings: Any) -> Program:
        """Start the agent of a node; it is killed when the story ends."""
        kubeconfig = through.kubeconfig if through else self.target.kubeconfig
        arguments = ("agent", "--node-name", node)
        own = {"log": {"level": "debug"}, **settings}
        return await self._start(kubeconfig, own, *arguments)

    async def ui(self, *options: str) -> Program:
        """Start a server of the board, at a free port; it is killed when the story ends."""
        arguments = ("ui", "--bind", "127.0.0.1:0", *options)
        own = {"leaderElection": {"namespace": self.namespace}}
        return await self._start(self.target.kubeconfig, own, *arguments)

    async def _start(self, kubeconfig: Path, settings: Mapping[str, Any], *arguments: str) -> Program:
        program = await self._stack.enter_async_context(running(kubeconfig, settings, self.folder, *arguments))
        self._programs.append(program)
        return program

    async def wire(self, **more: str) -> Wire:
        """A wire to the cluster on which evictions are counted and can be held; cut when the story ends. `more`:
        headers of every request."""
        return await self._stack.enter_async_context(wire_to(self.target.kubeconfig, self.folder, more))

    async def kubelet_wire(self, node: str) -> Wire:
        """A wire to the cluster by which each client is the kubelet of a node."""
        return await self.wire(**{"Impersonate-User": f"system:node:{node}", "Impersonate-Group": "system:nodes"})

    async def forger(self, forgeries: Mapping[bytes, bytes], access: Reach | None = None) -> Forger:
        """A wire to the cluster on which answers are forged, by a way of its own if one is given; cut when the story
        ends."""
        kubeconfig = access.kubeconfig if access else self.target.kubeconfig
        return await self._stack.enter_async_context(forger_before(kubeconfig, self.folder, forgeries))

    async def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter it until the story ends."""
        return await self._stack.enter_async_context(manager)

    # -- putting things in, and changing them --------------------------------------------------------------------------

    async def create(self, manifest: JsonObject) -> JsonObject:
        """Create an object, in the story's namespace where its kind has one."""
        _, created = await ask(self.api, "POST", self._path(manifest["kind"]), manifest)
        answer: JsonObject = created
        return answer

    async def patch(self, kind: str, name: str, change: JsonObject, *, status: bool = False) -> JsonObject:
        """Merge a change into an object or its status."""
        path = self._path(kind, name, "status" if status else "")
        # Only built-in kinds know strategic patches.
        content_type = STRATEGIC if status and kind in KINDS else MERGE
        _, answer = await ask(self.api, "PATCH", path, change, content_type=content_type)
        changed: JsonObject = answer
        return changed

    async def delete(self, kind: str, *names: str, **options: object) -> None:
        """Delete objects of a kind; those that are gone are fine."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(partial(ask, self.api, "DELETE", self._path(kind, name), body, allow=(404,)))

    def _path(self, kind: str, name: str = "", subresource: str = "") -> str:
        return path_of(PATHS[kind], "" if kind in WITHOUT_NAMESPACE else self.namespace, name, subresource)

    async def nodes(self, *suffixes: str, managed: bool = True, **spec: Any) -> list[str]:
        """Nodes that take pods; `spec` is merged into theirs. Managed ones are waited for until the keeper holds them.
        Returns their names.
        """
        names = [f"{self.run}-{suffix}" for suffix in suffixes]
        for name in names:
            manifest = manifests.node(name, self.run, managed=managed)
            spec_of_all = manifest["spec"]
            taints = [*spec_of_all["taints"], *spec.get("taints", ())]
            manifest["spec"] = {**spec_of_all, **spec, "taints": taints}
            self._nodes.append(name)
            await self.create(manifest)
        await self.sight.until(
            f"nodes {names} are ready{' and held' * managed}",
            lambda: all(self._takes_pods(name) and (not managed or self.is_held(name)) for name in names),
        )
        return names

    def adopt(self, node: str) -> None:
        """Take away this node, too, when the story ends."""
        self._nodes.append(node)

    def adopt_claim(self, name: str) -> None:
        """Take away this claim, too, when the story ends."""
        self._claims.append(name)

    async def claim(self, node: str, **spec: Any) -> JsonObject:
        """The claim of a node, once the keeper holds it; `spec` as its manifest writes it."""
        name = f"{node}-claim"
        self._claims.append(name)
        await self.create(manifests.claim(name, self.run, **spec))
        await self.patch("NodeClaim", name, {"status": {"nodeName": node}}, status=True)
        await self.sight.until(f"claim {name} is held", lambda: self.is_held(name, "NodeClaim"))
        return self.sees("NodeClaim", name)

    def _takes_pods(self, name: str) -> bool:
        node = self.sight.get("Node", name)
        taints = (node or {}).get("spec", {}).get("taints") or ()
        return (
            node is not None
            and is_ready(node)
            and all(taint["key"] != "node.kubernetes.io/not-ready" for taint in taints)
        )

    def is_held(self, name: str, kind: str = "Node") -> bool:
        """Does our finalizer hold this node or claim?"""
        found = self.sight.get(kind, name)
        return found is not None and not FINALIZERS.isdisjoint(found["metadata"].get("finalizers") or ())

    async def pod(self, name: str, **extra: Any) -> JsonObject:
        """A pod of its own (see manifests.pod), once it is Ready."""
        await self.create(manifests.pod(name, self.run, **extra))
        await self.sight.until(f"pod {name} is ready", lambda: self.ready(name))
        return self.sees("Pod", name)

    async def workload(self, kind: str, name: str, count: int, **extra: Any) -> list[JsonObject]:
        """A workload and its pods, once so many are Ready."""
        await self.create(manifests.workload(kind, name, self.run, **extra))
        await self.sight.until(f"{count} pods of {name} are ready", lambda: len(self.healthy(name)) == count)
        return self.healthy(name)

    async def budget(self, name: str, app: str, **bound: int | str) -> None:
        """A budget, once it has been counted."""
        await self.create(manifests.budget(name, app, **bound))
        await self.counted(name)

    async def node_budget(self, name: str, **bound: int | str) -> str:
        """A budget over the nodes of the story, once it has been counted. Returns its name."""
        name = f"{self.run}-{name}"
        self._node_budgets.append(name)
        spec = {"selector": {"matchLabels": {LABEL: self.run}}, **bound}
        labels = {LABEL: self.run}
        await self.create(
            {
                "apiVersion": "termination.karpenter.sh/v1alpha2",
                "kind": "NodeDisruptionBudget",
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
            }
        )
        await self.sight.until(
            f"budget {name} is counted",
            lambda: "observedGeneration" in ((self.sight.get("NodeDisruptionBudget", name) or {}).get("status") or {}),
        )
        return name

    async def node_drain(self, name: str, **spec: Any) -> str:
        """A NodeDrain of the story. Returns its name."""
        name = f"{self.run}-{name}"
        self.adopt_node_drain(name)
        metadata = {"name": name, "labels": {LABEL: self.run}}
        manifest = {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", "metadata": metadata, "spec": spec}
        await self.create(manifest)
        return name

    def adopt_node_drain(self, name: str) -> None:
        """Take away this NodeDrain, too, when the story ends."""
        self._node_drains.append(name)

    async def counted(self, name: str) -> None:
        """Wait until the disruption controller has looked at a budget as it is now."""

        def is_counted() -> bool:
            budget = self.sight.get("PodDisruptionBudget", name, self.namespace)
            return budget is not None and (
                (budget.get("status") or {}).get("observedGeneration") == budget["metadata"]["generation"]
            )

        await self.sight.until(f"budget {name} is counted", is_counted)

    # -- looking -------------------------------------------------------------------------------------------------------

    def sees(self, kind: str, name: str) -> JsonObject:
        """The object as it is now; it must be there."""
        found = self.sight.get(kind, name, "" if kind in WITHOUT_NAMESPACE else self.namespace)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def ready(self, pod: str) -> bool:
        """Is the pod of that name there, and Ready?"""
        found = self.sight.get("Pod", pod, self.namespace)
        return found is not None and is_ready(found)

    def healthy(self, app: str) -> list[JsonObject]:
        """The pods of an app that are Ready and not told to end."""
        return [pod for pod in self.sight.all("Pod", app=app) if is_ready(pod) and not is_terminating(pod)]

    def pods_on(self, node: str) -> list[JsonObject]:
        """The pods bound to a node that have not finished."""
        return [p for p in self.sight.all("Pod") if p["spec"].get("nodeName") == node and not is_finished(p)]

    def condition(self, node: str, type_: str) -> JsonObject:
        """A condition of a node; empty if it has none of that type."""
        found = self.sight.get("Node", node) or {}
        for condition in found.get("status", {}).get("conditions") or ():
            if condition["type"] == type_:
                of_type: JsonObject = condition
                return of_type
        return {}

    def events_about(self, object_: JsonObject, reason: str) -> list[str]:
        """The messages of the Events of a reason about an object."""
        uid = object_["metadata"]["uid"]
        events = (e for e in self.sight.all("Event") if e["involvedObject"].get("uid") == uid)
        return [event["message"] for event in events if event["reason"] == reason]

    def most_ending(self) -> int:
        """How many nodes were being deleted at once, at most."""
        deleted: set[str] = set()
        most = 0
        for seen in self.sight.journal:
            if seen.kind == "Node" and seen.type == "DELETED":
                deleted.discard(seen.uid)
            elif seen.kind == "Node" and "deletionTimestamp" in seen.object["metadata"]:
                deleted.add(seen.uid)
            most = max(most, len(deleted))
        return most

    async def until_gone(self, *nodes: str, seconds: float = PATIENCE) -> None:
        """Wait until nodes are no more."""
        await self.sight.until(
            f"{nodes} are gone", lambda: all(self.sight.get("Node", name) is None for name in nodes), seconds=seconds
        )

    def at_most(self, seconds: float) -> float:
        """So many seconds of an idle machine, as seconds of this one: its programs have shown how much slower it is."""
        return seconds * max((program.slowness for program in self._programs), default=1.0)

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Make the namespace, and wait until it takes pods (a real server wants a ServiceAccount first)."""
        labels = {LABEL: self.run}
        await self.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}}
        )
        with anyio.fail_after(PATIENCE):
            while True:
                status, answer = await self._probe()
                if status == 201:
                    return
                assert status == 403, answer
                await self.clock.sleep(0.05)

    async def server_time(self) -> float:
        """The server's idea of now, in whole seconds since the epoch."""
        status, answer = await self._probe()
        assert status == 201, answer
        return parse_time(answer["metadata"]["creationTimestamp"])

    async def _probe(self) -> tuple[int, Any]:
        probe = manifests.pod("probe", self.run)
        return await self.api.call("POST", path_of(PODS, self.namespace), probe, query={"dryRun": "All"})

    async def clean(self) -> None:
        """Take everything away; pods are not waited for, the rest is the garbage collector's."""
        for kind in WORKLOADS:
            collection = path_of(KINDS[kind], self.namespace)
            await self.api.call("DELETE", collection, {"propagationPolicy": "Background"})
        for name in self._node_budgets:
            await self.api.call("DELETE", self._path("NodeDisruptionBudget", name))
        held = [("NodeDrain", name) for name in self._node_drains] + [("Node", name) for name in self._nodes]
        held += [("NodeClaim", name) for name in self._claims]
        for path in (self._path(kind, name) for kind, name in held):
            await self.api.call("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
            await self.api.call("DELETE", path)
        for name in self._nodes:
            await self.api.call("DELETE", path_of(KINDS["Lease"], "kube-node-lease", name))
        await self.api.call("DELETE", path_of(NAMESPACES, name=self.namespace))
        with anyio.move_on_after(10):
            while await self._pods_ended():
                await self.clock.sleep(0.2)

    async def _pods_ended(self) -> int:
        """End what pods are left, and say how many there were."""
        collection = path_of(PODS, self.namespace)
        _, left = await self.api.call("GET", collection)
        await self.api.call("DELETE", collection, {"gracePeriodSeconds": 0})
        return len(left["items"])


@asynccontextmanager
async def told(
    target: Target,
    name: str,
    folder: Path,
    *,
    with_claims: bool = False,
    with_budgets: bool = False,
    with_drains: bool = False,
) -> AsyncIterator[Story]:
    """A story with its own namespace, watched from before its first object; cleaned up at the end.

    `with_claims`, `with_budgets`, `with_drains`: the cluster serves node claims, budgets for nodes, or NodeDrains, and
    the story sees its own.
    """
    run = f"{target.run}-{name}"
    wanted = {"NodeClaim": with_claims, "NodeDisruptionBudget": with_budgets, "NodeDrain": with_drains}
    more = (Scope(kind, PATHS[kind], {"labelSelector": f"{LABEL}={run}"}) for kind in wanted if wanted[kind])
    async with connected(target.kubeconfig) as api, AsyncExitStack() as stack:
        story = Story(target, api, run, folder, stack, *more)
        try:
            async with anyio.create_task_group() as group:
                await group.start(story.sight.run)
                await story.begin()
                yield story
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await stack.aclose()
                await story.clean()
