"""A pool is rotated of which some nodes can never be drained: how much is done by when?

gracectl: one NodeDrain, 10 % at the same time, undrainable nodes set aside. Next to it a labeled model of what people
script: `for node in …; do kubectl drain --timeout=60s && kubectl delete node; done`. Its seconds per node come from
the real `kubectl drain` on a small part of the pool in the same run; a node that cannot be drained costs its timeout.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from benchmarks.contenders.gracectl import Program, running
from benchmarks.contenders.kubectl import PROGRAM, Kubectl
from benchmarks.ground.ground import LABEL, Ground
from benchmarks.ground.nodes import until_held
from benchmarks.ground.site import NEW, OLD, ROLE, App, Site, site
from benchmarks.ground.waiting import Waiting
from benchmarks.report import Figure, Outcome, Series
from benchmarks.trial import Load, trial
from gracectl.cli.crds import shipped_definitions
from gracectl.kube.errors import AlreadyExists
from gracectl.kube.resources import NODE_DRAINS, Resource, verbatim
from gracectl.model.nodedrain import NodeDrain

STUCK = "stuck"
NODES, STUCK_NODES = 500, 25
APPS, PODS_PER_NODE = 19, 2
AT_ONCE = "10%"
TIMEOUT = 60
"""Seconds that the loop allows each node."""
SAMPLE = Load(20, (App("web", 40, {"maxUnavailable": "10%"}),))
LOOK = 1.0

DEFINITIONS: Resource[bytes] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", verbatim, namespaced=False
)


async def run(ground: Ground) -> Outcome:
    """The NodeDrain, then the sample of kubectl."""
    ours = await _rotated(ground)
    total = ours[-1][0]
    figures = [
        Figure("gracectl: until all that can be drained is terminated", total, " s"),
        Figure(
            "gracectl: share of all nodes terminated", ours[-1][1], " %", at_least=100.0 * (1 - STUCK_NODES / NODES)
        ),
        Figure("gracectl: until half of it", _until(ours, ours[-1][1] / 2), " s"),
    ]
    series = [Series("gracectl, NodeDrain", tuple(ours))]
    if PROGRAM is not None:
        sample = await trial(ground, SAMPLE, Kubectl(is_parallel=False), "campaign-kubectl")
        each = sample.seconds / SAMPLE.nodes
        seconds = each * (NODES - STUCK_NODES) + TIMEOUT * STUCK_NODES
        model = "model: a loop over kubectl drain"
        figures += [
            Figure("kubectl drain: seconds per node, measured", each, " s"),
            Figure(f"{model}: until all that can be drained is terminated", seconds, " s"),
            Figure(f"{model}: share of all nodes terminated when gracectl has ended", 95.0 * total / seconds, " %"),
        ]
        series.append(Series(model, ((0.0, 0.0), (seconds, 95.0))))
    return Outcome(
        scenario="campaign",
        about=f"{NODES} nodes are rotated, of which {STUCK_NODES} can never be drained",
        figures=tuple(figures),
        parameters={
            "nodes": NODES,
            "of which undrainable": STUCK_NODES,
            "pods": PODS_PER_NODE * (NODES - STUCK_NODES) + STUCK_NODES,
            "budgets": APPS + 1,
            "at the same time": AT_ONCE,
            "timeout of the loop": f"{TIMEOUT} s",
            **SAMPLE.pace.in_words,
        },
        series=tuple(series),
    )


async def _rotated(ground: Ground) -> list[tuple[float, float]]:
    """Seconds since the NodeDrain was created, and the share of all nodes (percent) that is terminated."""
    replicas = PODS_PER_NODE * (NODES - STUCK_NODES) // APPS
    apps = [App(f"web-{number}", replicas, {"maxUnavailable": "10%"}) for number in range(APPS)]
    async with site(ground, "campaign") as one:
        for definition in shipped_definitions():
            with suppress(AlreadyExists):  # the cluster has it
                await one.client.create(DEFINITIONS, "", definition)
        stuck = await one.add_nodes(STUCK, STUCK_NODES, pods=1)
        await one.deploy(App(STUCK, STUCK_NODES, {"maxUnavailable": 0}), pace=SAMPLE.pace)
        old = await one.add_nodes(OLD, NODES - STUCK_NODES, pods=PODS_PER_NODE)
        await one.deploy(*apps, pace=SAMPLE.pace)
        await one.add_nodes(NEW, 20, pods=PODS_PER_NODE * NODES // 10)
        selector = {"matchLabels": {LABEL: one.name}, "matchExpressions": [_of_roles(OLD, STUCK)]}
        settings = {
            "nodeSelector": selector,
            "leaderElection": {"namespace": one.name},
            "voluntary": {"maximumAtOnce": "100%"},
        }
        async with running(one.way.kubeconfig, settings, ground.folder) as program:
            await until_held(one.client, (*stuck, *old), program.last_words)
            return await _followed(one, selector, program)


def _of_roles(*roles: str) -> dict[str, Any]:
    return {"key": ROLE, "operator": "In", "values": list(roles)}


async def _followed(one: Site, selector: dict[str, Any], program: Program) -> list[tuple[float, float]]:
    spec = {"action": "Terminate", "nodeSelector": selector, "maxConcurrent": AT_ONCE, "onUndrainable": "Skip"}
    began = one.clock.monotonic()
    drain: NodeDrain = await one.client.create(NODE_DRAINS, "", {"metadata": {"name": one.name}, "spec": spec})
    points, done = [(0.0, 0.0)], 0
    waiting = Waiting(one.name, lambda: f"{done} of {NODES} nodes done", clock=one.clock)
    try:
        while drain.completion_time is None:
            await one.clock.sleep(LOOK)
            drain = await one.client.get(NODE_DRAINS, ("", one.name))
            if drain.counts.done != done:
                done = drain.counts.done
                points.append((one.clock.monotonic() - began, 100.0 * done / NODES))
                waiting.moved()
            if waiting.has_stalled:
                raise waiting.stalled(program.last_words())
    finally:
        await one.client.delete(NODE_DRAINS, ("", one.name), uid=drain.uid)
    return points


def _until(points: list[tuple[float, float]], share: float) -> float:
    return next(seconds for seconds, reached in points if reached >= share)
