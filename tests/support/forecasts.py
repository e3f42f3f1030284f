"""Forecasts as commands show them, and random worlds to compare them with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from kubesim.controllers.paths import PRIORITY_CLASSES

from gracectl.config import Settings
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.model import names
from gracectl.model.pod import LONGEST_GRACE, UnknownPod
from gracectl.model.times import EARLIEST, LATEST
from gracectl.policy.deadlines import Deadline, DeadlineOrigin
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.forecast import Assumptions, NodeForecast, forecast
from gracectl.policy.scenario import DrainingNode
from gracectl.policy.settings import PolicySettings
from gracectl.policy.warnings import warnings_of
from gracectl.policy.waves import by_priority
from support.builders import NOW, a_budget, a_pod, ending, owned_by
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings

# Forecasts as commands show them, without a cluster: small clusters, each with something of its own to show.

REPLICA = owned_by("ReplicaSet")
CRITICAL = 2_000_000_000
FOR_EVER: dict[str, Any] = {"annotations": {names.DO_NOT_DISRUPT: "true"}}


def predicted(*going: DrainingNode, asked: tuple[str, ...] | None = None, **assumptions: Any) -> DrainForecast:
    """Of these nodes, or those `asked` about; every deadline is that of a claim."""
    whole = forecast(going, NOW, Assumptions(**assumptions))
    nodes = (_node_drain_forecast(each) for each in whole.nodes if asked is None or each.name in asked)
    return DrainForecast(tuple(nodes), whole)


def _node_drain_forecast(forecast: NodeForecast) -> NodeDrainForecast:
    at, since = forecast.plan.deadline, forecast.draining.since
    return NodeDrainForecast(
        forecast=forecast,
        deadline=None if at is None else Deadline(at, at - since),
        deadline_origin=None if at is None else DeadlineOrigin("claim", f"NodeClaim {forecast.name}"),
        warnings=warnings_of(forecast),
        is_terminating=since < NOW and not forecast.draining.view.is_maintenance,
        is_maintenance=forecast.draining.view.is_maintenance,
        is_requested=since < NOW,
    )


def three_replicas() -> DrainForecast:
    """A deadline of fifteen minutes, ten minutes of grace, a budget for one at a time."""
    pods = [a_pod(f"orders-7d4b9c6f5-{end}", owners=REPLICA, grace_seconds=600) for end in ("5qtvx", "2zltl", "lsgxq")]
    nodes = [ending(f"node-{n}", pod, budgets=(a_budget("orders"),), deadline=900) for n, pod in enumerate(pods, 1)]
    return predicted(*nodes, replacement_seconds=600.0)


def a_day() -> DrainForecast:
    """A protection of a day beside pods of seconds, two in a lane, and one of the last wave."""
    pods = [
        a_pod("quick", grace_seconds=5, owners=REPLICA),
        a_pod("notebook", created=NOW, annotations={names.DO_NOT_DISRUPT: "24h"}),
        *(a_pod(f"web-{n}", owners=REPLICA) for n in (1, 2)),
        a_pod("dns", owners=REPLICA, priority=CRITICAL),
        a_pod("static", owners=owned_by("Node")),
        a_pod("done", phase="Succeeded"),
    ]
    budget = (a_budget(),)
    return predicted(ending("worker-1", *pods, budgets={"web-1": budget, "web-2": budget}))


def never() -> DrainForecast:
    """For ever, for three reasons, and one pod that waits for those."""
    pods = [
        a_pod("notebook", **FOR_EVER),
        a_pod("odd", annotations={names.DO_NOT_DISRUPT: "4 hours <b>"}),
        a_pod("twice", owners=REPLICA),
        a_pod("quick", grace_seconds=5),
        a_pod("dns", priority=CRITICAL),
    ]
    return predicted(ending("worker-1", *pods, budgets={"twice": (a_budget("web"), a_budget("also"))}))


def under_way() -> DrainForecast:
    """One node has been terminating for a minute, beside one that is only forecast; pods of both share a budget."""
    budget = (a_budget(disruptions_allowed=0, current_healthy=2),)
    leaving = a_pod("leaving", owners=REPLICA, deletion_timestamp=NOW + 20, deletion_grace_seconds=30)
    first = ending("old-1", leaving, a_pod("b", owners=REPLICA), budgets={"b": budget}, since=NOW - 60, deadline=840)
    second = ending("old-2", a_pod("c", owners=REPLICA), budgets=budget, since=NOW - 30)
    return predicted(first, second, asked=("old-1",))


def ranges() -> DrainForecast:
    """Priority ranges with periods, more grace than there is time, and a protection that the deadline ends."""
    settings = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))
    pods = [
        a_pod("low", owners=REPLICA, **FOR_EVER),
        a_pod("slow", owners=REPLICA, grace_seconds=3600),
        a_pod("high", owners=REPLICA, priority=1000, grace_seconds=600),
    ]
    return predicted(ending("worker-1", *pods, deadline=900, settings=settings))


def crowd() -> DrainForecast:
    """Three nodes of 110 pods, most of them under one of forty budgets that let one go at a time."""
    nodes = []
    for n in range(3):
        node = f"ip-10-0-{n}-17.eu-central-1.compute.internal"
        pods = [a_pod(f"service-{p % 44:02}-6f7d8c9b5f-{n}{p:03}", uid=f"{n}/{p}", owners=REPLICA) for p in range(110)]
        of = {pod.name: (a_budget(pod.name[:10]),) for pod in pods if pod.name[8:10] < "40"}
        nodes.append(ending(node, *pods, budgets=of))
    return predicted(*nodes, rate=EvictionRate(qps=100.0, burst=100))


def extremes() -> DrainForecast:
    """Numbers and instants as far out as objects have them."""
    longest: dict[str, Any] = {"grace_seconds": LONGEST_GRACE, "deletion_grace_seconds": LONGEST_GRACE}
    pods = [
        a_pod("patient", owners=REPLICA, grace_seconds=LONGEST_GRACE),
        a_pod("young", owners=REPLICA, created=LATEST, started=LATEST),
        a_pod(
            "old", owners=REPLICA, created=EARLIEST, started=EARLIEST, grace_seconds=-LONGEST_GRACE, priority=-(2**31)
        ),
        a_pod("held", created=LATEST, annotations={names.DO_NOT_DISRUPT: "2562047h"}),
        a_pod("leaving", deletion_timestamp=LATEST, **longest),
        a_pod("stuck", deletion_timestamp=EARLIEST, **longest),
    ]
    budget = {"young": (a_budget(disruptions_allowed=2**31 - 1, current_healthy=2**31 - 1),)}
    first = ending("worker-1", *pods, budgets=budget, since=EARLIEST)
    second = ending("worker-2", a_pod("patient-2", grace_seconds=LONGEST_GRACE, owners=REPLICA), deadline=LATEST - NOW)
    third = ending("worker-3", a_pod("patient-3", grace_seconds=LONGEST_GRACE, owners=REPLICA), deadline=900)
    return predicted(first, second, third)


def unknown() -> DrainForecast:
    """A pod that cannot be decoded beside one that can, without a deadline and with one."""
    nothing = UnknownPod("shop", "nothing", "u1", "7", "worker-1", error="Expected `int | null`, got `str`")
    less = msgspec.structs.replace(nothing, name="less", uid="u2", node_name="worker-2")
    return predicted(
        ending("worker-1", nothing, a_pod("quick", grace_seconds=5)),
        ending("worker-2", less, a_pod("notebook", **FOR_EVER), deadline=900),
    )


def empty() -> DrainForecast:
    """A node on which nothing is waited for."""
    return predicted(ending("worker-1"))


WORLDS: dict[str, Callable[[], DrainForecast]] = {
    each.__name__: each for each in (three_replicas, a_day, never, under_way, ranges, crowd, extremes, unknown, empty)
}


# Random worlds for forecasts: some nodes that will be deleted, all that can be on them, and room for replacements.
#
# The same seed makes the same world. Every pod stops within its grace, every replacement is Ready within
# REPLACEMENT_SECONDS: what a forecast assumes.

REPLACEMENT_SECONDS = 40.0
CLASSES = (1_000, 10_000, 100_000)
PERIODS = (None, None, "2m", "10m", "1h")
RANGES = [
    {"priority": 100_000, "shutdownGracePeriodSeconds": 60},
    {"priority": 10_000, "shutdownGracePeriodSeconds": 120},
    {"priority": 0, "shutdownGracePeriodSeconds": 30},
]
PROTECTIONS = ("90s", "5m", "17m30s", "2h", "true", "nonsense", "0s")


class World(msgspec.Struct, frozen=True):
    """What a seed makes: the settings, the nodes, those of them that are deleted, and what is created."""

    settings: Settings
    nodes: dict[str, dict[str, str]]
    deleted: list[str]
    manifests: list[dict[str, Any]]


def a_world(seed: int) -> World:
    """The world of this seed."""
    chance = random.Random(f"world/{seed}")
    nodes = {f"n{n}": {"pool": f"tgp{chance.randrange(len(PERIODS))}"} for n in range(chance.randint(3, 5))}
    deleted = sorted(chance.sample([*nodes], chance.randint(1, len(nodes) - 1)))
    groups = [
        {"selector": {"matchLabels": {"pool": f"tgp{n}"}}} | ({"terminationGracePeriod": period} if period else {})
        for n, period in enumerate(PERIODS)
    ]
    more: dict[str, Any] = {"shutdownGracePeriodByPodPriority": RANGES} if chance.random() < 0.5 else {}
    manifests: list[dict[str, Any]] = []
    for number in range(chance.randint(2, 5)):
        manifests += _workload(chance, f"app{number}")
    for number in range(chance.randint(0, 5)):
        manifests.append(a_pod_manifest(f"bare{number}", chance.choice([*nodes]), **_pod(chance)))
    return World(the_settings(nodeGroups=groups, **more), nodes, deleted, manifests)


async def create(stage: Stage, world: World) -> None:
    """Put the world into the stage's cluster; all pods are Ready then."""
    for value in CLASSES:
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": {"name": f"class{value}"}, "value": value})
    for name, labels in world.nodes.items():
        await stage.add_nodes(name, labels=labels)
    await stage.create(*world.manifests)


def _workload(chance: random.Random, name: str) -> list[dict[str, Any]]:
    kind = chance.choice(["Deployment", "Deployment", "StatefulSet"])
    replicas = chance.randint(1, 6)
    pod = _pod(chance)
    behaviour: dict[str, Any] = {
        **pod.pop("behaviour"),
        "ready-seconds": chance.randint(0, int(REPLACEMENT_SECONDS) - 5),
    }
    objects = [a_workload(kind, name, replicas, behaviour=behaviour, pod=pod)]
    if chance.random() < 0.7:
        objects.append(a_budget_manifest(name, **chance.choice(_bounds(replicas))))
    if chance.random() < 0.1:
        second = a_budget_manifest(name, maxUnavailable=1)
        second["metadata"]["name"] = f"{name}-too"
        objects.append(second)
    return objects


def _bounds(replicas: int) -> list[dict[str, Any]]:
    return [{"maxUnavailable": 1}, {"maxUnavailable": "50%"}, {"minAvailable": replicas}, {"minAvailable": 1}]


def _pod(chance: random.Random) -> dict[str, Any]:
    """What is special about a pod."""
    grace = chance.choice([0, 5, 30, 30, 30, 90, 400])
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": grace,
        "behaviour": {"stop-seconds": round(chance.uniform(0, grace), 2)},
        "annotations": {},
        "priorityClassName": chance.choice(
            ["", "", "", *(f"class{value}" for value in CLASSES), names.SYSTEM_NODE_CRITICAL]
        ),
    }
    if chance.random() < 0.15:
        pod["annotations"][names.DO_NOT_DISRUPT] = chance.choice(PROTECTIONS)
    if chance.random() < 0.03:
        pod["annotations"][names.DO_NOT_EVICT] = "true"
    if not pod["priorityClassName"]:
        del pod["priorityClassName"]
    return pod
