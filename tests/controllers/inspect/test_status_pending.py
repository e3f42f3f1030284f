"""Terminations that are due and wait, as the cluster's objects show them, with and without a controller."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, READY, a_budget, a_node, cluster, going, kept, pending, replica
from support.clients import a_client, named, seeing
from support.disruption import ON_LOST_NODES, TERMINABLE, lost_at
from support.stage import Stage, a_pod_manifest, staged, the_settings

from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.disruption.pace import terminations_in_progress
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.leadership import Leadership, LeaderState, with_leadership
from gracectl.inspect.pending import DueNode, due_candidates, due_nodes, names_of
from gracectl.inspect.status import NodePhase, NodeStatus, node_statuses, with_pending
from gracectl.inspect.watcher import read_node_budgets, snapshot
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector
from gracectl.policy.disruption import explain_hold
from gracectl.policy.settings import NodeGroup, PolicySettings
from gracectl.policy.voluntary import Cause
from gracectl.policy.warnings import WarningKind

LABEL = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}
SICK = (Condition("Ready", "Unknown", "NodeStatusUnknown", last_transition=NOW - 1000),)
SETTINGS = TerminationSettings()


def held(name: str = "n1", **fields: Any) -> Node:
    return a_node(name, **{"conditions": READY, "finalizers": (names.FINALIZER,), "labels": LABEL, **fields})


def all_due(seen: ClusterCache, settings: TerminationSettings = SETTINGS, **more: Any) -> dict[str, DueNode]:
    return dict(due_nodes(seen, settings, due_candidates(seen, settings, NOW), NOW, **more))


def holds(seen: ClusterCache, settings: TerminationSettings = SETTINGS, **more: Any) -> dict[str, str]:
    due = all_due(seen, settings, **more)
    return {name: "" if each.hold is None else each.hold.reason.value for name, each in due.items()}


def statuses(seen: ClusterCache, settings: TerminationSettings = SETTINGS) -> dict[str, NodeStatus]:
    wanted = {node.name for node in seen.nodes.values()}
    node_states = node_statuses(seen, settings, wanted, NOW)
    return {each.name: each for each in with_pending(seen, settings, node_states, all_due(seen, settings), NOW)}


OTHERS = tuple(a_node(f"other-{n}", conditions=READY) for n in range(9))
JOB = replica("job", labels={}, annotations={names.DO_NOT_DISRUPT: "true"})
SPENT = a_budget(disruptions_allowed=0)
NO_PROVIDER = TerminationSettings(policy=PolicySettings(terminates_instances=False))
OLD = TerminationSettings(
    policy=PolicySettings(node_groups=(NodeGroup(LabelSelector(), expire_seconds=60.0, expire_jitter=0.0),))
)


@pytest.mark.parametrize(
    ("node", "pods", "settings", "cause", "hold"),
    [
        (held(), (JOB,), SETTINGS, Cause.TERMINABLE, "Protected"),
        (held(), (replica(),), SETTINGS, Cause.TERMINABLE, "PodDisruptionBudget"),
        (held(), (), SETTINGS, Cause.TERMINABLE, ""),
        (held(finalizers=()), (), SETTINGS, Cause.TERMINABLE, "FinalizerMissing"),
        (held(labels={}, conditions=SICK), (JOB,), SETTINGS, Cause.UNHEALTHY, "Protected"),
        (held(labels={}, conditions=SICK), (JOB,), NO_PROVIDER, Cause.UNHEALTHY, "ProviderNone"),
        (held(labels={}), (JOB,), OLD, Cause.EXPIRED, "Protected"),
    ],
)
def test_a_node_that_is_due_is_pending_although_no_controller_has_written_so(
    node: Node, pods: Any, settings: TerminationSettings, cause: Cause, hold: str
) -> None:
    seen = cluster(node, *(each for each in OTHERS if settings is not OLD), pods=pods, budgets=(SPENT,))
    status = statuses(seen, settings)["n1"]
    assert (status.state, status.step) == (NodePhase.PENDING, "pending")
    assert status.pending is not None
    assert (status.pending.causes, status.pending.hold) == ((cause,), hold)
    assert status.waits_for.startswith(f"{cause}; {hold}: " if hold else f"{cause}; nothing blocks it")


def test_since_when_it_waits_follows_from_what_is_due() -> None:
    sick = statuses(cluster(held(labels={}, conditions=SICK), *OTHERS, pods=(JOB,)))["n1"]
    assert sick.since == NOW - 100
    assert statuses(cluster(held(), *OTHERS))["n1"].since is None  # a label has no instant


def test_more_than_the_pace_permits_wait_for_their_turn_in_the_order_of_the_controller() -> None:
    nodes = (held("b", created=NOW - 9), held("a", created=NOW - 5), held("c", labels={}, conditions=SICK))
    assert holds(cluster(*nodes, *OTHERS)) == {"c": "", "b": "Pace", "a": "Pace"}
    assert holds(cluster(*nodes, *OTHERS, going("d", finalizers=(names.FINALIZER,)))) == dict.fromkeys("abc", "Pace")
    # One that is blocked takes no slot.
    assert holds(cluster(*nodes[:2], *OTHERS, pods=(replica("job", node_name="b", annotations=JOB.annotations),))) == {
        "b": "Protected",
        "a": "",
    }


def test_a_budget_of_nodes_holds_a_node_whose_turn_it_is() -> None:
    budget = NodeDisruptionBudget("pool", "uid-pool", selector=LabelSelector(LABEL), max_unavailable=0)
    assert holds(cluster(held(), *OTHERS), node_budgets=(budget,)) == {"n1": "NodeDisruptionBudget"}


def test_the_circuit_breaker_holds_many() -> None:
    nodes = tuple(held(f"n{n}", labels={}, conditions=SICK) for n in range(4))
    assert holds(cluster(*nodes, *OTHERS)) == {f"n{n}": "CircuitBreaker" for n in range(4)}


def test_what_a_controller_has_written_counts_where_the_cluster_shows_nothing() -> None:
    node = pending()
    status = statuses(cluster(node, *OTHERS))["n1"]
    assert status.pending is not None
    assert (status.pending.causes, status.pending.hold, status.since) == ((), "Pace", NOW - 100)
    message = f"termination due (node n1 has the label {names.LIFECYCLE_PHASE}=terminable) but waiting for its turn: x"
    waits = Condition(names.TERMINATION_PENDING, "True", "Pace", message, last_transition=NOW - 100)
    labeled = held(conditions=(*READY, waits))
    status = statuses(cluster(labeled, *OTHERS))["n1"]
    assert status.waits_for == "terminable; Pace: waiting for its turn: x"
    assert status.pending is not None
    assert (status.pending.causes, status.pending.hold) == ((Cause.TERMINABLE,), "Pace")
    status = statuses(cluster(labeled, *OTHERS, pods=(JOB,)))["n1"]
    assert status.pending is not None
    assert (status.pending.hold, status.since) == ("Protected", NOW - 100)


def test_without_a_leader_that_is_what_holds_it() -> None:
    none = Leadership(LeaderState.NONE, "kube-system/gracectl", "", None)
    (status,) = with_leadership([statuses(cluster(held(), *OTHERS))["n1"]], none)
    assert status.pending is not None
    assert status.pending.hold == "NoController"
    assert status.warnings[0].kind is WarningKind.NO_CONTROLLER
    (status,) = with_leadership([statuses(cluster(held(), *OTHERS, pods=(JOB,)))["n1"]], none)
    assert status.pending is not None
    assert status.pending.hold == "Protected"


def test_a_node_in_maintenance_stays_in_it_and_says_what_is_due() -> None:
    status = statuses(cluster(kept(labels=LABEL), *OTHERS, pods=(JOB,)))["n1"]
    assert status.state is NodePhase.MAINTENANCE
    assert status.pending is not None
    assert status.pending.hold == "Protected"


def test_pods_that_are_not_listed_yet_are_not_taken_for_none() -> None:
    due = all_due(cluster(held(), *OTHERS), has_pods=lambda node: False)["n1"]
    assert (due.hold, due.is_known) == (None, False)


def test_what_is_not_managed_is_not_due() -> None:
    assert holds(cluster(held(labels={**LABEL, names.CONTROL_PLANE_ROLE: ""}))) == {}
    assert holds(cluster(going(labels=LABEL))) == {}


def test_a_claim_and_its_nodes_take_one_slot() -> None:
    claim = NodeClaim(
        "c1", "uid-c1", node_name="n1", provider_id="p://1", deletion_timestamp=NOW, finalizers=(names.FINALIZER,)
    )
    nodes = (going("n1", provider_id="p://1"), going("n2"), going("n3", finalizers=("other.io/x",)))
    seen = cluster(*nodes, claims=(claim,))
    assert terminations_in_progress(seen, SETTINGS.managed) == 2


async def protected(stage: Stage) -> None:
    await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
    await stage.patch_node("n1", TERMINABLE)


async def paced(stage: Stage) -> None:
    await stage.delete_node("n0")
    await stage.patch_node("n1", TERMINABLE)


async def sick(stage: Stage) -> None:
    job = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, tolerations=ON_LOST_NODES)
    await stage.create(job)
    await lost_at(stage, "n1")


async def many_sick(stage: Stage) -> None:
    for node in ("n1", "n2", "n3"):
        await lost_at(stage, node)


async def budgeted(stage: Stage) -> None:
    budget: Any = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0}
    await stage.cluster.create({**budget, "spec": spec, "metadata": {"name": "web", "namespace": "shop"}})
    await stage.create(a_pod_manifest("web", "n1", labels={"app": "web"}))
    await stage.patch_node("n1", TERMINABLE)


@pytest.mark.parametrize(
    ("happens", "settings", "hold"),
    [
        (protected, the_settings(), "Protected"),
        (budgeted, the_settings(), "PodDisruptionBudget"),
        (paced, the_settings(), "Pace"),
        (sick, the_settings(), "Protected"),
        (sick, the_settings(provider={"name": "none"}), "ProviderNone"),
        (many_sick, the_settings(), "CircuitBreaker"),
    ],
)
async def test_what_the_cluster_shows_is_what_the_controller_writes_word_for_word(
    happens: Any, settings: Settings, hold: str
) -> None:
    async with staged(*(f"n{n}" for n in range(10)), settings=settings) as stage, stage.settled():
        stage.provider.seconds = 1e6  # no termination completes
        await happens(stage)
        await stage.until(lambda: stage.condition("n1", names.TERMINATION_PENDING) is not None)
        await stage.clock.sleep(11)  # a message is written every ten seconds at most
        read = await snapshot(a_client(stage), lambda node: True)
        policy, now = settings.termination, stage.clock.now()
        budgets = await read_node_budgets(a_client(stage))
        due = due_nodes(read, policy, due_candidates(read, policy, now), now, node_budgets=budgets)["n1"]
        condition = stage.condition("n1", names.TERMINATION_PENDING) or {}
        assert due.hold is not None
        assert (due.hold.reason, condition["reason"]) == (hold, hold)
        assert condition["message"] == explain_hold(due.due, due.hold)


async def test_the_pods_of_a_node_that_becomes_due_are_watched_from_then_on() -> None:
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]
    async with staged("n1", "n2", objects=objects) as stage, seeing(stage, named()) as sight:
        assert not sight.has_pods_of("n1")
        await stage.patch_node("n1", TERMINABLE)
        await stage.clock.sleep(1)
        due = due_candidates(sight.cluster, SETTINGS, stage.clock.now())
        sight.select_others(names_of(due))
        await stage.clock.sleep(1)
        assert sight.has_pods_of("n1")
        sight.select_others(frozenset())
        await stage.clock.sleep(1)
        assert not sight.has_pods_of("n1")
        assert sight.cluster.pods_on("n1") == ()
