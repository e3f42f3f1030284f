"""Metrics of whole runs, and that no client can make them grow."""

from __future__ import annotations

import pytest
from support.collector import figures, series
from support.stage import a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings
from support.stories import protected, with_grace_period

from gracectl.config import Settings
from gracectl.controllers.metrics import QUEUES, STEPS
from gracectl.eviction.metrics import DELETION_ANSWERS, EVICTION_ANSWERS
from gracectl.kube.client.statistics import VERBS
from gracectl.model import names
from gracectl.model.nodedrain import NodeState
from gracectl.policy.disruption import HoldReason
from gracectl.policy.voluntary import Cause
from gracectl.telemetry.metrics import CATALOGUE

CACHES = ("nodes", "pods", "budgets", "attachments", "claims", "node-budgets", "node-drains")
RESOURCES = (
    "nodes",
    "pods",
    "configmaps",
    "poddisruptionbudgets.policy",
    "volumeattachments.storage.k8s.io",
    "nodeclaims.karpenter.sh",
    "nodedisruptionbudgets.termination.karpenter.sh",
    "nodedrains.gracectl.io",
)
WEBHOOKS = (
    *("node-create", "node-delete", "nodedisruptionbudget", "nodedrain-requester", "nodedrain", "nodeclaim"),
    "nodeclaim-delete",
)
LABELS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gracectl_drains_stalled": (("node", "maintenance", "karpenter", "cluster-autoscaler", "cluster-api"),),
    "gracectl_pods_left": (
        ("delete", "evict", "replace", "replacing", "return", "blocked", "waiting", "protected", "terminating"),
    ),
    "gracectl_pods_replaced_first_total": (("released", "returned", "failed"),),
    "gracectl_blocked_pods": (
        (
            *("budget", "unobserved-budget", "misconfiguration", "protection", "neighbour", "wave", "volume"),
            *("returned", "settling-budget", "refused", "replacement", "owner", "undecodable"),
        ),
    ),
    "gracectl_pods_drained_total": (("evicted", "deleted", "left", "abandoned"),),
    "gracectl_node_budgets": (("allowing", "spent", "uncounted", "unobserved"),),
    "gracectl_node_admissions_total": (("free", "admitted", "forced", "refused", "unknown"),),
    "gracectl_nodes_blocked_by_budget": (("voluntary", "nodeclaim"),),
    "gracectl_voluntary_terminations_pending": (
        tuple(cause.value for cause in Cause),
        tuple(hold.value for hold in HoldReason),
    ),
    "gracectl_node_drain_nodes": (tuple(state.value for state in NodeState),),
    "gracectl_unhealthy_nodes": (("unhealthy", "recovering"),),
    "gracectl_voluntary_terminations_active": (("ending", "replacing"),),
    "gracectl_pdb_queue_pods": (("none", "one", "several"),),
    "gracectl_pdb_queue_oldest_wait_seconds": (("none", "one", "several"),),
    "gracectl_pdb_queue_wait_seconds": (("none", "one", "several"),),
    "gracectl_deadline_pods": (("armed", "overdue", "failing"),),
    "gracectl_timer_operations_total": (("armed", "rearmed", "cancelled", "fired"),),
    "gracectl_protection_remaining_seconds_max": (("do-not-disrupt", "do-not-evict"),),
    "gracectl_provider_calls_total": (
        ("state", "terminate"),
        ("ok", "gone", "unavailable", "refused", "failed", "unanswered"),
    ),
    "gracectl_provider_call_duration_seconds": (("state", "terminate"),),
    "gracectl_admission_requests_total": (
        WEBHOOKS,
        ("allowed", "patched", "denied", "invalid", "unready", "failed"),
    ),
    "gracectl_admission_request_duration_seconds": (WEBHOOKS,),
    "gracectl_nodes_terminated_total": (
        ("by hand", "interruption", "health", "rotation", "expiry"),
        ("drained", "deadline", "released"),
    ),
    "gracectl_fenced_writes_total": (("refused", "cut"),),
    "gracectl_events_total": (("written", "merged", "dropped", "failed"),),
    "gracectl_http_connections": (("metrics", "probes", "admission"),),
    "gracectl_http_connections_dropped_total": (
        ("metrics", "probes", "admission"),
        ("handshake", "header", "body", "writing", "crowded"),
    ),
    "gracectl_trace_spans_total": (("exported", "failed", "dropped"),),
    "gracectl_cached_objects": (CACHES,),
    "gracectl_undecodable_objects": (CACHES,),
    "gracectl_api_request_duration_seconds": (VERBS,),
    **{f"gracectl_watch_{each}": (RESOURCES,) for each in ("lists_total", "streams_total", "stalls_total")},
    **{f"gracectl_watch_{each}": (RESOURCES,) for each in ("failures_total", "events_total", "silence_seconds")},
    **{metric.name: (QUEUES,) for metric in CATALOGUE if metric.labels == ("queue",)},
}
"""By name, the values of each label; every combination is a series."""
OPEN = ("gracectl_build_info", "gracectl_api_requests_total")
"""Whose values depend on what runs, and on what it has asked."""
OF_SOURCES = "gracectl_interruption"
OF_NOTIFIER = "gracectl_notifications_"
"""How the metrics begin that exist for each source of interruptions in the settings."""
OF_AGENTS = "gracectl_shutdown"
"""How the metrics begin that only the agent of a node has."""


KINDS = ("node", "nodeclaim", "maintenance", "karpenter", "cluster-autoscaler", "cluster-api")


def expected(name: str, labels: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The series of a metric."""
    match name, labels:
        case _, ():
            return {(name,)}
        case "gracectl_eviction_requests_total", _:
            return {(name, *pair) for pair in EVICTION_ANSWERS}
        case "gracectl_pod_deletion_requests_total", _:
            return {(name, *pair) for pair in DELETION_ANSWERS}
        case _, ("kind", "step"):
            queued = ("queued",) if name == "gracectl_terminations" else ()
            return {(name, str(kind), step) for kind, steps in STEPS.items() for step in (*queued, *steps)}
        case _, ("kind", "until"):
            untils = ("time", "forever", "invalid")
            wanted: set[tuple[str, ...]] = {
                (name, kind, until) for kind in ("do-not-disrupt", "do-not-evict") for until in untils
            }
            return wanted - {(name, "do-not-evict", "invalid")}
        case _, ("kind", "ended"):
            ends = ("elapsed", "lifted", "left", "deadline")
            return {(name, kind, ended) for kind in ("do-not-disrupt", "do-not-evict") for ended in ends}
        case (("gracectl_termination_duration_seconds" | "gracectl_termination_oldest_seconds"), _):
            return {(name, kind) for kind in KINDS}
    product: list[tuple[str, ...]] = [()]
    for values in LABELS[name]:
        product = [(*each, value) for each in product for value in values]
    return {(name, *each) for each in product}


async def test_every_series_is_there_from_the_beginning_and_no_other() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        ours = [
            metric for metric in CATALOGUE if not metric.name.startswith((OF_AGENTS, OF_SOURCES, OF_NOTIFIER, *OPEN))
        ]
        wanted = {metric.name: expected(metric.name, metric.labels) for metric in ours}
        assert {each for each in series(controller) if each[0] not in OPEN} == set().union(*wanted.values())
        assert STEPS == {
            "node": ("claim", "deadline", "notice", "cordon", "drain", "volumes", "instance", "finalizer"),
            "nodeclaim": ("rivals", "deadline", "nodes", "instance", "finalizer"),
            "maintenance": ("cordon", "drain", "volumes", "drained", "uncordon", "conditions"),
            "karpenter": ("owner", "drain"),
            "cluster-autoscaler": ("owner", "drain"),
            "cluster-api": ("owner", "drain"),
        }


async def test_a_drain_from_its_beginning_to_its_end() -> None:
    watched = (
        "terminations",
        "termination_oldest_seconds",
        "pods_left",
        "blocked_pods",
        "pdb_queues",
        "pdb_queue_pods",
    )
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.create(
            a_budget_manifest("web", maxUnavailable=1),
            a_workload("Deployment", "web", 3, behaviour={"stop-seconds": 5, "ready-seconds": 10}),
            a_pod_manifest("plain", "n1", behaviour={"stop-seconds": 2}),
            protected("job", "true", behaviour={"exit-seconds": 40}, restartPolicy="Never"),
        )
        await stage.add_nodes("n2")
        await stage.settle(controller)
        assert figures(controller, *watched) == {}
        start = await stage.delete_node("n1")
        await stage.clock.sleep(start + 3 - stage.clock.monotonic())
        assert figures(controller, *watched, "leader", "cached_objects") == {
            ("terminations", "node", "drain"): 1,
            ("termination_oldest_seconds", "node"): 3.0,
            ("pods_left", "terminating"): 1,
            ("pods_left", "protected"): 1,
            ("pods_left", "blocked"): 2,
            ("blocked_pods", "protection"): 1,
            ("blocked_pods", "budget"): 2,
            ("pdb_queues",): 1,
            ("pdb_queue_pods", "one"): 2,
            ("leader",): 1,
            ("cached_objects", "nodes"): 2,
            ("cached_objects", "pods"): 5,
            ("cached_objects", "budgets"): 1,
        }
        assert figures(controller, "pods_drained_total", "eviction_requests_total", "pdb_queue_depth_max") == {
            ("pods_drained_total", "evicted"): 1,
            ("eviction_requests_total", "201", "Evicted"): 2,
            ("pdb_queue_depth_max",): 2,
        }
        assert figures(controller, "pdb_queue_oldest_wait_seconds") == {("pdb_queue_oldest_wait_seconds", "one"): 3.0}
        took = await stage.until_gone("n1") - start
        await stage.clock.sleep(1)
        assert figures(controller, *watched) == {}
        assert figures(controller, "nodes_terminated_total") == {("nodes_terminated_total", "by hand", "drained"): 1}
        values = figures(controller, "pods_drained_total", "termination_duration_seconds", "pdb_queue_wait_seconds")
        # A pod of web leaves when the replacement of the one before is ready.
        assert values == {
            ("pods_drained_total", "evicted"): 4,
            ("pods_drained_total", "left"): 1,
            ("termination_duration_seconds", "node"): (1, took),
            ("pdb_queue_wait_seconds", "one"): (3, 30.0),
            ("pdb_queue_wait_seconds", "none"): (1, 0.0),
        }
        steps = {key[2]: figure for key, figure in figures(controller, "termination_step_duration_seconds").items()}
        assert list(steps) == list(STEPS["node"])
        assert steps["drain"] == (1, took)
        assert figures(controller, "provider_calls_total", "events_backlog") == {
            ("provider_calls_total", "terminate", "ok"): 1,
            ("provider_calls_total", "state", "gone"): 1,
        }
    assert figures(controller, "leader", *watched) == {}


async def test_leader_and_standby() -> None:
    lease = ("leader", "lease_terms_total", "lease_renewals_total", "lease_failures_total", "fenced_writes_total")
    async with staged("n1", settings=Settings()) as stage, stage.settled() as first:
        await stage.create(protected("ever", "true", "n1"))
        await stage.delete_node("n1")
        async with stage.controller() as second:
            await second.wait_live()
            await stage.clock.sleep(60)
            values = figures(first, *lease)
            assert values.pop(("lease_renewals_total",)) == pytest.approx(30, abs=3)
            assert values == {("leader",): 1, ("lease_terms_total",): 1}
            assert figures(first, "pods_left") == {("pods_left", "protected"): 1}
            assert figures(second, *lease, "terminations", "pods_left", "queue_adds_total", "pdb_queues") == {}
            assert figures(second, "cached_objects") == figures(first, "cached_objects")


async def test_a_deadline_from_its_beginning_to_its_end() -> None:
    async with staged("n1", settings=with_grace_period("5m")) as stage, stage.settled() as controller:
        await stage.create(
            protected("ever", "true", terminationGracePeriodSeconds=60, behaviour={"stop-seconds": 5}),
            protected("stubborn", "true", terminationGracePeriodSeconds=60, behaviour={"ignores-sigterm": "true"}),
        )
        start = await stage.delete_node("n1")
        await stage.clock.sleep(start + 100 - stage.clock.monotonic())
        assert figures(controller, "deadline_pods", "timers", "drains_stalled", "blocked_pods") == {
            ("deadline_pods", "armed"): 2,
            ("timers",): 2,
            ("drains_stalled", "node"): 1,
            ("blocked_pods", "protection"): 2,
        }
        await stage.until_gone("n1")
        await stage.clock.sleep(1)
        values = figures(controller, "pods_drained_total", "pod_deletion_requests_total", "drains_stalled")
        # In the instant of the deadline the kubelet kills what ignores SIGTERM, and it is deleted again.
        values.pop(("pod_deletion_requests_total", "404", "NotFound"), None)
        assert values == {
            ("pods_drained_total", "deleted"): 1,
            ("pods_drained_total", "abandoned"): 1,
            ("pod_deletion_requests_total", "200", "Deleted"): 2,
        }
        late = figures(controller, "deadline_lateness_seconds")["deadline_lateness_seconds",]
        assert late[0] == 2
        assert late[1] <= 2 * 0.011  # a slot of the timer wheel
        assert figures(controller, "timer_operations_total")["timer_operations_total", "fired"] == 3


async def test_a_kept_node_and_its_return() -> None:
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.create(a_pod_manifest("plain", "n1", behaviour={"stop-seconds": 5}))
        await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})
        await stage.clock.sleep(3)
        assert figures(controller, "terminations") == {("terminations", "maintenance", "drain"): 1}
        await stage.clock.sleep(100)
        assert figures(controller, "terminations", "termination_oldest_seconds") == {
            ("terminations", "maintenance", "drained"): 1
        }
        await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
        await stage.clock.sleep(1)
        assert figures(controller, "terminations", "pods_drained_total") == {("pods_drained_total", "evicted"): 1}
        assert figures(controller, "termination_duration_seconds")["termination_duration_seconds", "maintenance"] == (
            1,
            pytest.approx(103, abs=2),
        )


async def test_what_blocks_is_told_apart() -> None:
    again = a_budget_manifest("twice", maxUnavailable=1)
    again["metadata"]["name"] = "again"
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.create(
            a_budget_manifest("web", maxUnavailable=0),
            a_workload("Deployment", "web", 2),
            a_budget_manifest("twice", maxUnavailable=1),
            again,
            a_workload("Deployment", "twice", 1),
            a_pod_manifest("last", "n1", priorityClassName="system-cluster-critical", priority=2000000000),
        )
        await stage.delete_node("n1")
        await stage.clock.sleep(150)
        assert figures(controller, "blocked_pods", "pdb_queue_pods", "drains_stalled") == {
            ("blocked_pods", "budget"): 2,
            ("blocked_pods", "misconfiguration"): 1,
            ("blocked_pods", "wave"): 1,
            ("pdb_queue_pods", "one"): 2,
            ("pdb_queue_pods", "several"): 1,
            ("drains_stalled", "node"): 1,
        }
        assert figures(controller, "eviction_requests_total")["eviction_requests_total", "500", "MultipleBudgets"] >= 1


async def test_odd_objects_add_no_series() -> None:
    names_ = [f"odd-{n}" for n in range(60)]
    async with staged(settings=the_settings()) as stage, stage.controller() as controller:
        await stage.add_nodes("n0")
        await stage.settle(controller)
        await stage.delete_node("n0")
        await stage.until_gone("n0")
        await stage.clock.sleep(1)
        before = {each for each in series(controller) if each[0] != "gracectl_api_requests_total"}
        for name in names_:
            await stage.add_nodes(name, labels={"pool": name})
            await stage.create(
                a_budget_manifest(name, maxUnavailable=1),
                protected(name, f"{name} of nonsense", name, labels={"app": name}),
                a_pod_manifest(f"{name}-free", name, labels={"app": f"{name}-free"}),
            )
        await stage.settle(controller)
        for name in names_:
            await stage.delete_node(name)
        await stage.clock.sleep(30)
        after = series(controller)
        assert {each for each in after if each[0] != "gracectl_api_requests_total"} == before
        assert not [each for each in after if "odd-" in " ".join(each)]
        assert figures(controller, "terminations") == {("terminations", "node", "drain"): 60}


async def test_with_optional_labels_terminations_are_told_apart_by_pool_and_zone() -> None:
    settings = the_settings(metrics={"labels": ["nodepool", "zone"]})
    async with staged(settings=settings) as stage, stage.controller() as controller:
        for name, pool in (("n1", "gpu"), ("n2", "web"), ("n3", "web")):
            await stage.add_nodes(
                name, labels={"eks.amazonaws.com/nodegroup": pool, "topology.kubernetes.io/zone": "a"}
            )
        await stage.settle(controller)
        assert not [each for each in series(controller) if each[0] == "gracectl_nodes_terminated_total"]
        await stage.create(a_pod_manifest("plain", "n2", behaviour={"stop-seconds": 5}))
        await stage.delete_node("n1")
        await stage.delete_node("n2")
        await stage.clock.sleep(1)
        assert ("gracectl_nodes_terminated_total", "by hand", "drained", "web", "a") in series(controller)
        assert figures(controller, "nodes_terminated_total") == {}
        assert figures(controller, "terminations") == {
            ("terminations", "node", "drain", "gpu", "a"): 1,
            ("terminations", "node", "drain", "web", "a"): 1,
        }
        await stage.until_gone("n2")
        await stage.clock.sleep(1)
        assert figures(controller, "nodes_terminated_total", "pods_drained_total") == {
            ("nodes_terminated_total", "by hand", "drained", "gpu", "a"): 1,
            ("nodes_terminated_total", "by hand", "drained", "web", "a"): 1,
            ("pods_drained_total", "evicted", "web", "a"): 1,
        }
        durations = figures(controller, "termination_duration_seconds", "termination_step_duration_seconds")
        assert {key[-2:] for key in durations} == {("gpu", "a"), ("web", "a")}
