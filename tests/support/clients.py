"""Clients of a stage's cluster: watchers, the drain and uninstall commands, and what the server stores for each."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from kubesim.server.api import JsonObject
from kubesim.server.store import Change

from gracectl.app.drainer import OWN_MANNER, Manner, Setup
from gracectl.cli.drain.here import LocalDrain
from gracectl.cli.drain.progress import DrainProgress
from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.uninstall.procedure import Uninstall, UninstallOptions
from gracectl.cli.uninstall.report import RemovalOutcome, UninstallReport
from gracectl.controllers.termination.maintenance import request_patch
from gracectl.inspect.watcher import ClusterWatcher, Selection
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.resources import NODES
from gracectl.kube.transport import Request, Transport
from gracectl.kube.transport.operation import operation_of
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.supervise import while_running
from support.inprocess import ASKING, SENDER, InProcessTransport, Line
from support.stage import Stage, finalizers_of
from support.stories import seen

# What the server stores, change by change in its order, and which client has caused each.
#
# Unlike a watch it misses nothing: it stands beside the store, so a server that forgets its history makes it no
# blinder.


class Deed(NamedTuple):
    """One stored change: what an object was and is (None: it was, or is, not there). `at` is the server's Unix time;
    `request`: the controller's that has caused it, None if another client's has; `sender`: its process."""

    at: float
    old: JsonObject | None
    new: JsonObject | None
    request: Request | None
    sender: str = ""

    @property
    def object(self) -> JsonObject:
        """As it is, or was at last."""
        state = self.new or self.old
        assert state is not None
        return state

    def is_by(self, verb: str, resource: str) -> bool:
        """Whether a controller has requested just this: `is_by("create", "pods/eviction")`."""
        if self.request is None:
            return False
        operation = operation_of(self.request)
        return (operation.verb, operation.resource) == (verb, resource)


def follow(stage: Stage, table: str, listener: Callable[[Deed], None]) -> None:
    """Notify `listener` of each change of a table from now on, in the moment in which it is stored."""
    watched = stage.server.store.table(table)
    store = watched.record

    def record(change: Change) -> None:
        store(change)
        new = None if change.type == "DELETED" else change.object
        listener(Deed(stage.cluster.server_clock.now(), change.previous, new, ASKING.get(), SENDER.get()))

    watched.record = record  # type: ignore[method-assign]  # nothing that the server offers is told in the moment


def options_of(request: Request) -> JsonObject:
    """The DeleteOptions that a deletion carries."""
    options: JsonObject = msgspec.json.decode(request.body or b"{}")
    return options


# Watchers of a stage's cluster, and their requests to its server.


def named(*names: str) -> Selection:
    """Chooses the nodes of these names."""
    return lambda node: node.name in names


def being_deleted(node: Node) -> bool:
    return node.deletion_timestamp is not None


def a_client(stage: Stage) -> KubeClient:
    return KubeClient(stage.transport, stage.clock, settings=INTERACTIVE, rng=random.Random(1))


@asynccontextmanager
async def seeing(stage: Stage, chooses: Selection) -> AsyncIterator[ClusterWatcher]:
    """A watcher that runs, and has listed what was chosen at first."""
    sight = ClusterWatcher(a_client(stage), chooses, stage.clock, rng=random.Random(2))
    async with while_running(sight.run):
        await sight.wait_live()
        yield sight


def asked_pods(stage: Stage) -> list[str]:
    """Lists of pods, in order: `list spec.nodeName=n1`; `list` for those of all nodes."""
    return [
        " ".join(filter(None, (each.operation.verb, dict(each.request.query).get("fieldSelector"))))
        for each in stage.transport.executed
        if each.operation.plural == "pods" and "continue" not in dict(each.request.query)
    ]


def pods_seen(sight: ClusterWatcher, *nodes: str) -> dict[str, list[str]]:
    """By node, the names of its pods in the watcher."""
    return {node: sorted(pod.name for pod in sight.cluster.pods_on(node)) for node in nodes}


# `gracectl drain` without a controller, on virtual time: the command's drain on a stage, with a line of its own.


class Laptop:
    """One run of the command. `lines`: what it printed; `done_at`: monotonic, when each node was done."""

    def __init__(self, stage: Stage, *nodes: str, manner: Manner = OWN_MANNER, deadline: float | None = None) -> None:
        self.stage, self.nodes, self.deadline = stage, nodes, deadline
        self.lines: list[str] = []
        self.line: Line = stage.transport.line()
        self.drain: LocalDrain | None = None
        self.setup = Setup(frozenset(nodes), stage.settings, manner=manner)

    async def run(self) -> None:
        """Request the drain, and drain until all nodes are done."""
        stage, clock = self.stage, self.stage.clock
        client = KubeClient(self.line, clock, settings=INTERACTIVE, rng=random.Random(1))
        connection = Connection(self.line, clock, client)
        nodes = [seen(stage, name) for name in self.nodes]
        for node in nodes:
            await patch_with_retry(client, NODES, node, lambda found: request_patch(found, clock.now(), self.deadline))
        progress = DrainProgress(nodes, clock.now(), for_maintenance=True)
        self.drain = drain = LocalDrain(connection, self.setup, nodes, self.lines.append)

        def show(frame: StatusFrame) -> bool:
            progress.here = drain.drainer.names
            self.lines.extend(progress.update(frame))
            return not progress.left

        async def settings() -> EffectiveSettings:
            return EffectiveSettings(stage.settings, "defaults")

        await drain.run(show, settings)


@asynccontextmanager
async def mortal(laptop: Laptop) -> AsyncIterator[None]:
    """A run that is killed at the end of the block: what it has not sent is never sent."""
    async with while_running(laptop.run):
        yield
        laptop.line.cut()


# `gracectl uninstall` on the virtual-time stage, and what it leaves.

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gracectl"


class Leaving:
    """One run of the command. `wire`: its own, so that its requests are known; `said`: its output."""

    def __init__(self, stage: Stage, *, token: str = "", **wanted: object) -> None:
        self.stage = stage
        self.wire = InProcessTransport(stage.server, stage.clock, seed=99, token=token)
        self.said: list[str] = []
        self._wanted = UninstallOptions(**wanted)  # type: ignore[arg-type]

    async def run(self, through: Transport | None = None) -> UninstallReport:
        transport, clock = through or self.wire, self.stage.clock
        connection = Connection(transport, clock, KubeClient(transport, clock, settings=INTERACTIVE))
        return await Uninstall(connection, self.stage.settings, self._wanted, self.said.append).run()


def held(stage: Stage) -> list[str]:
    """The nodes and claims that have our finalizer."""
    things = (*stage.nodes(), *stage.claims())
    return sorted(each["metadata"]["name"] for each in things if names.FINALIZER in finalizers_of(each))


def outcomes(report: UninstallReport, *kinds: str) -> dict[str, RemovalOutcome]:
    """By name; of these kinds, or of all."""
    return {each.name: each.outcome for each in report.removals if not kinds or each.kind in kinds}


async def configure(stage: Stage, kind: str, *webhooks: str, name: str = "gracectl", labeled: bool = True) -> None:
    """A webhook configuration for DELETE of nodes whose server does not answer; without one it fails."""
    labels = {names.MANAGED_BY: names.EVENT_COMPONENT} if labeled else {}
    manifest: JsonObject = {"metadata": {"name": name, "labels": labels}, "webhooks": [_webhook(n) for n in webhooks]}
    await stage.call("POST", WEBHOOKS.format(kind=kind), manifest)


def _webhook(name: str) -> JsonObject:
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
