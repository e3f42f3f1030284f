"""Whether a pod is replaced before its eviction: one table of reasons, and the states of a release."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_node, a_pod, entry, owned_by, view

from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.model.workloads import PodNeeds, ResourceQuota, RolloutState, Workload
from gracectl.policy.placement import OtherNode
from gracectl.policy.plan import Blocker, Outcome, PodPlan
from gracectl.policy.planner import plan
from gracectl.policy.release import Release
from gracectl.policy.remedies import pod_remedy
from gracectl.policy.replacement import NotReplaced, WorkloadFacts, new_release
from gracectl.policy.settings import PolicySettings, ReplaceFirst

HASH = "6d4cf56db6"
KEY = ("shop", f"web-{HASH}")
LABELS = {"app": "web", names.POD_TEMPLATE_HASH: HASH}
OWNERS = owned_by("ReplicaSet", KEY[1], "apps")
ASKS = {names.REPLACE_FIRST: "true"}
NEVER = a_budget(disruptions_allowed=0, current_healthy=1, desired_healthy=1, expected_pods=1)
MUCH = Fraction(3, 2)
DEFAULTS = ReplaceFirst()
UNREADABLE = "missing permission: get replicasets.apps"


def replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, **{"labels": LABELS, "owners": OWNERS, "annotations": ASKS, **fields})


NEWER = replica(
    "web-5",
    labels={**LABELS, names.POD_TEMPLATE_HASH: "5c9"},
    owners=owned_by("ReplicaSet", "web-5c9", "apps"),
)


def workload(name: str, **fields: Any) -> Workload:
    return Workload("shop", name, f"uid-{name}", workload="web", **{"replicas": 1, "selector": LABELS, **fields})


ROLLED_OUT = RolloutState(updated=1)
REPLICA_SET = workload(KEY[1], rollout=RolloutState(kind_above="Deployment"))
DEPLOYMENT = workload("web", rollout=ROLLED_OUT)
FACTS = WorkloadFacts(read_at=0.0, replica_set=REPLICA_SET, above=DEPLOYMENT, pods=(replica(),))
RELEASE = Release(NOW - 10, "Deployment", "web", names.POD_TEMPLATE_HASH, HASH)


def released(name: str = "web-1", release: Release = RELEASE, **fields: Any) -> Pod:
    labels = {**LABELS, release.label: names.RELEASED}
    annotations = {**ASKS, names.RELEASED_FROM: release.text, **fields.pop("more", {})}
    return replica(name, labels=labels, annotations=annotations, owners=(), **fields)


def facts(**fields: Any) -> WorkloadFacts:
    return msgspec.structs.replace(FACTS, **fields)


def decided(
    pod: Pod,
    known: WorkloadFacts | None = FACTS,
    *,
    budget: Any = NEVER,
    settings: ReplaceFirst = DEFAULTS,
    now: float = NOW,
    **fields: Any,
) -> PodPlan:
    budgets = {} if budget is None else {pod.uid: (budget,)}
    workloads = {} if known is None else {KEY: known}
    policy = PolicySettings(replace_first=settings)
    return entry(plan(view(pod, budgets=budgets, workloads=workloads, settings=policy, **fields), now), pod.name)


def test_a_pod_that_its_budget_blocks_for_good_is_released() -> None:
    decision = decided(replica())
    assert (decision.outcome, decision.blocker) == (Outcome.REPLACE, Blocker.REPLACEMENT)
    assert decision.asks_for_replacement
    assert new_release(replica(), FACTS, NOW) == msgspec.structs.replace(RELEASE, at=NOW)


def test_the_only_replica_is_released_without_a_budget() -> None:
    assert decided(replica(), budget=None).outcome is Outcome.REPLACE


def test_one_of_several_replicas_is_released_only_if_that_is_always_wanted() -> None:
    three = tuple(replica(f"web-{number}") for number in range(1, 4))
    rollout = RolloutState(kind_above="Deployment", updated=3)
    known = facts(
        above=workload("web", replicas=3, rollout=rollout),
        replica_set=workload(KEY[1], replicas=3, rollout=rollout),
        pods=three,
    )
    assert decided(three[0], known, budget=a_budget()).outcome is Outcome.EVICT
    assert decided(three[0], known, budget=a_budget(), settings=ReplaceFirst(always=True)).outcome is Outcome.REPLACE


def test_nothing_is_decided_before_its_workload_is_read() -> None:
    decision = decided(replica(), None)
    assert (decision.outcome, decision.blocker, decision.asks_for_replacement) == (
        Outcome.WAITING,
        Blocker.REPLACEMENT,
        True,
    )


@pytest.mark.parametrize(
    ("annotations", "settings", "namespace", "asks"),
    [
        ({}, ReplaceFirst(), {}, False),
        (ASKS, ReplaceFirst(), {}, True),
        ({names.REPLACE_FIRST: "yes"}, ReplaceFirst(), {}, False),
        ({}, ReplaceFirst(pods=LabelSelector({"app": "web"})), {}, True),
        ({}, ReplaceFirst(pods=LabelSelector({"app": "db"})), {}, False),
        ({}, ReplaceFirst(namespaces=LabelSelector({"team": "a"})), {"team": "a"}, True),
        ({}, ReplaceFirst(namespaces=LabelSelector({"team": "a"})), {"team": "b"}, False),
        (ASKS, ReplaceFirst(namespaces=LabelSelector({"team": "a"})), {"team": "b"}, True),
        ({}, ReplaceFirst(LabelSelector({"team": "a"}), LabelSelector({"app": "db"})), {"team": "a"}, False),
        ({names.REPLACE_FIRST: "false"}, ReplaceFirst(pods=LabelSelector({})), {}, False),
    ],
)
def test_the_pod_or_an_administrator_asks(
    annotations: Mapping[str, str], settings: ReplaceFirst, namespace: Mapping[str, str], asks: bool
) -> None:
    decision = decided(replica(annotations=annotations), facts(namespace_labels=namespace), settings=settings)
    assert decision.outcome is (Outcome.REPLACE if asks else Outcome.BLOCKED)
    assert decision.not_replaced is None


def with_replica_set(**fields: Any) -> WorkloadFacts:
    return facts(replica_set=msgspec.structs.replace(REPLICA_SET, **fields))


def with_deployment(**fields: Any) -> WorkloadFacts:
    return facts(above=msgspec.structs.replace(DEPLOYMENT, **fields))


def on_hosts(*others: str, taken: str = "") -> WorkloadFacts:
    known = with_replica_set(uses_host=True)
    pods = (replica(), replica("web-2", node_name=taken)) if taken else (replica(),)
    return msgspec.structs.replace(known, others=tuple(OtherNode(a_node(name)) for name in others), pods=pods)


def full(resource: str, hard: int, used: int, **requests: Fraction) -> WorkloadFacts:
    quota = ResourceQuota("shop", "all", "u", hard={resource: Fraction(hard)}, used={resource: Fraction(used)})
    replica_set = msgspec.structs.replace(REPLICA_SET, needs=PodNeeds(requests=requests), limits=requests)
    return facts(quotas=(quota,), replica_set=replica_set)


@pytest.mark.parametrize(
    ("known", "kind", "reason"),
    [
        (facts(missing=UNREADABLE), NotReplaced.UNREADABLE, UNREADABLE),
        (facts(above=None), NotReplaced.CONTROLLER, "its ReplicaSet belongs to Deployment shop/web, which is unknown"),
        (
            with_deployment(rollout=RolloutState(strategy="Recreate", updated=1)),
            NotReplaced.STRATEGY,
            "Deployment shop/web has strategy Recreate",
        ),
        *[
            (with_deployment(**fields), NotReplaced.ROLLOUT, "a rollout of Deployment shop/web is in progress")
            for fields in (
                {"rollout": RolloutState(updated=0)},
                {"rollout": RolloutState(is_deleted=True, updated=1)},
                {"rollout": RolloutState(is_observed=False, updated=1)},
                {"replicas": 2},
            )
        ],
        (facts(pods=(replica(), NEWER)), NotReplaced.ROLLOUT, "a rollout of Deployment shop/web is in progress"),
        (with_replica_set(replicas=0), NotReplaced.ROLLOUT, "a rollout of Deployment shop/web is in progress"),
        (
            facts(unshared={"data": "is ReadWriteOnce"}),
            NotReplaced.VOLUME,
            "volume claim data is ReadWriteOnce",
        ),
        (
            with_replica_set(selector={"app": "web"}),
            NotReplaced.LABEL,
            f"the selector of ReplicaSet shop/{KEY[1]} has no label to change",
        ),
        (
            facts(selected_by={names.POD_TEMPLATE_HASH: "service shop/web"}),
            NotReplaced.LABEL,
            "service shop/web selects pods by label pod-template-hash",
        ),
        (
            on_hosts("n2", taken="n2"),
            NotReplaced.HOST_PORT,
            "each node that fits has another pod of it, which uses the network or ports of the host",
        ),
        (
            with_replica_set(uses_host=True),
            NotReplaced.HOST_PORT,
            "it uses the network or ports of its host, and other nodes are not known",
        ),
        (full("pods", 3, 3), NotReplaced.QUOTA, "quota shop/all has no room for its pods"),
        (full("requests.cpu", 2, 1, cpu=MUCH), NotReplaced.QUOTA, "quota shop/all has no room for its requests.cpu"),
        (full("limits.cpu", 2, 1, cpu=MUCH), NotReplaced.QUOTA, "quota shop/all has no room for its limits.cpu"),
    ],
)  # fmt: skip
def test_each_reason_not_to_release_a_pod_is_said(known: WorkloadFacts, kind: NotReplaced, reason: str) -> None:
    decision = decided(replica(), known)
    assert (decision.outcome, decision.not_replaced) == (Outcome.BLOCKED, kind)
    assert decision.reason.endswith(f"1 required); not replaced first: {reason}")
    evicted = decided(replica(), known, budget=None, settings=ReplaceFirst(always=True))
    assert (evicted.outcome, evicted.reason) == (Outcome.EVICT, f"is being evicted; not replaced first: {reason}")


def test_a_command_with_few_rights_does_not_know_whether_a_pod_is_replaced() -> None:
    decision = decided(replica(), facts(missing=UNREADABLE, is_unknown=True))
    assert (decision.outcome, decision.not_replaced) == (Outcome.WAITING, None)
    assert decision.reason == f"unknown whether it is replaced first: {UNREADABLE}"


@pytest.mark.parametrize(
    "known", [on_hosts("n2"), on_hosts("n2", "n3", taken="n2"), on_hosts(), full("cpu", 2, 1, cpu=Fraction(1))]
)
def test_what_may_fit_is_no_reason(known: WorkloadFacts) -> None:
    assert decided(replica(), known).outcome is Outcome.REPLACE


@pytest.mark.parametrize(("deadline", "outcome"), [(59.0, Outcome.BLOCKED), (60.0, Outcome.REPLACE)])
def test_no_replacement_is_begun_that_would_come_after_the_deadline(deadline: float, outcome: Outcome) -> None:
    """30 s for the replacement, and 30 s of grace."""
    decision = decided(replica(), deadline=NOW + deadline)
    assert decision.outcome is outcome
    if outcome is Outcome.BLOCKED:
        assert decision.not_replaced is NotReplaced.DEADLINE
        assert "not replaced first: it is deleted in 29s, and a replacement takes 30s" in decision.reason


@pytest.mark.parametrize(
    ("owners", "reason"),
    [
        (
            owned_by("StatefulSet", "db", "apps"),
            "StatefulSet shop/db gives each pod an identity, which no second pod can have",
        ),
        (owned_by("Job", "db", "batch"), "Job shop/db is not a ReplicaSet"),
        ((), "no ReplicaSet controls it"),
    ],
)  # fmt: skip
def test_only_pods_of_replica_sets_are_replaced(owners: Any, reason: str) -> None:
    decision = decided(replica(owners=owners), None)
    assert decision.not_replaced is NotReplaced.CONTROLLER
    assert decision.reason.endswith(f"not replaced first: {reason}")
    by_settings = decided(
        replica(owners=owners, annotations={}), None, settings=ReplaceFirst(pods=LabelSelector({"app": "web"}))
    )
    assert (by_settings.outcome, by_settings.not_replaced) == (Outcome.BLOCKED, None)


def test_a_workload_with_other_pods_that_are_not_ready_is_not_touched() -> None:
    rollout = RolloutState(kind_above="Deployment", updated=2)
    two = {"replicas": 2, "rollout": rollout}
    pods = (replica(), replica("web-2", ready=False))
    known = facts(above=workload("web", **two), replica_set=workload(KEY[1], **two), pods=pods)
    decision = decided(replica(), known, budget=msgspec.structs.replace(NEVER, expected_pods=2, desired_healthy=2))
    assert decision.reason.endswith("not replaced first: 1 other of the 2 pods of Deployment shop/web not Ready")


def test_an_unready_pod_is_replaced_only_where_its_budget_blocks_it() -> None:
    pod = replica(ready=False)
    assert decided(pod, facts(pods=(pod,)), budget=None).outcome is Outcome.EVICT
    unhealthy = msgspec.structs.replace(NEVER, current_healthy=0)
    assert decided(pod, facts(pods=(pod,)), budget=unhealthy).outcome is Outcome.REPLACE


def test_one_pod_of_a_workload_is_released_at_a_time() -> None:
    rollout = RolloutState(kind_above="Deployment", updated=2)
    two = {"replicas": 2, "rollout": rollout}
    pods = (replica("web-1"), replica("web-2"))
    known = facts(above=workload("web", **two), replica_set=workload(KEY[1], **two), pods=pods)
    budget = msgspec.structs.replace(NEVER, expected_pods=2, desired_healthy=2, current_healthy=2)
    budgets = {pod.uid: (budget,) for pod in pods}
    both = plan(view(*pods, budgets=budgets, workloads={KEY: known}), NOW)
    assert [each.outcome for each in both.pods] == [Outcome.REPLACE, Outcome.WAITING]
    elsewhere = facts(
        above=known.above, replica_set=known.replica_set, pods=(released("web-9"), *pods, replica("web-3"))
    )
    decision = decided(pods[0], elsewhere, budget=budget)
    assert (decision.outcome, decision.reason) == (Outcome.WAITING, "replace first: shop/web-9 is being replaced")


@pytest.mark.parametrize(
    ("pods", "pending", "reason"),
    [
        ((), "", "its replacement is not created yet"),
        (
            (replica("web-2", ready=False, node_name="", phase="Pending"),),
            "0/3 nodes are available",
            "its replacement shop/web-2 is Pending: 0/3 nodes are available",
        ),
        ((replica("web-2", ready=False, node_name="n2"),), "", "its replacement shop/web-2 starts on n2"),
    ],
)
def test_a_released_pod_says_what_it_waits_for(pods: tuple[Pod, ...], pending: str, reason: str) -> None:
    decision = decided(released(), facts(pods=(released(), *pods), pending=pending), budget=None)
    assert (decision.outcome, decision.reason) == (Outcome.REPLACING, f"replace first: {reason}")
    assert decision.until == NOW - 10 + 600


def test_a_quota_that_has_become_full_is_said() -> None:
    known = with_replica_set(rollout=RolloutState(kind_above="Deployment", failure='pods "web-" is forbidden'))
    decision = decided(released(), msgspec.structs.replace(known, pods=(released(),)))
    assert decision.reason == 'replace first: its replacement is not created yet: pods "web-" is forbidden'


def test_a_released_pod_leaves_as_any_other_when_its_workload_is_complete() -> None:
    known = facts(pods=(released(), replica("web-2")))
    assert decided(released(), known, budget=None).outcome is Outcome.EVICT
    assert decided(released(), known, budget=a_budget()).outcome is Outcome.EVICT
    assert decided(released(), known).outcome is Outcome.BLOCKED


def test_pods_of_another_workload_with_its_labels_do_not_replace_it() -> None:
    other = replica("canary-1", owners=owned_by("ReplicaSet", "web-canary-6d4", "apps"))
    assert decided(released(), facts(pods=(released(), other)), budget=None).outcome is Outcome.REPLACING


def test_pods_of_a_newer_revision_replace_it() -> None:
    known = with_replica_set(replicas=0)
    assert (
        decided(released(), msgspec.structs.replace(known, pods=(released(), NEWER)), budget=None).outcome
        is Outcome.EVICT
    )


def test_a_pod_is_returned_when_its_replacement_takes_too_long() -> None:
    known = facts(pods=(released(), replica("web-2", ready=False)))
    assert decided(released(), known, now=NOW + 589).outcome is Outcome.REPLACING
    decision = decided(released(), known, now=NOW + 590)
    assert (decision.outcome, decision.reason) == (
        Outcome.RETURN,
        "replace first: its replacement was not Ready within 10m0s",
    )


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59Z", format_time(NOW + 2 * DEFAULTS.patience)])
def test_a_release_in_the_future_is_not_waited_for(text: str) -> None:
    _, _, rest = RELEASE.text.partition(" ")
    decision = decided(released(more={names.RELEASED_FROM: f"{text} {rest}"}), facts(pods=()))
    assert (decision.outcome, decision.until) == (Outcome.RETURN, None)


def test_after_that_the_next_try_waits() -> None:
    pod = replica(annotations={**ASKS, names.REPLACEMENT_FAILED: format_time(NOW)})
    waits = decided(pod)
    assert (waits.outcome, waits.until) == (Outcome.WAITING, NOW + 1800)
    assert waits.reason == "replace first: its replacement was not Ready within 10m0s; trying again"
    assert pod_remedy(waits, (NEVER,)) == (
        "see why its replacement is not Ready, or let it leave without one: "
        "kubectl annotate pod -n shop web-1 --overwrite gracectl.io/replace-first=false"
    )
    assert pod_remedy(decided(replica()), (NEVER,)) == ""
    assert decided(pod, now=NOW + 1800).outcome is Outcome.REPLACE


@pytest.mark.parametrize("text", ["9999-01-01T00:00:00Z", "soon", ""])
def test_an_instant_that_cannot_be_ours_does_not_count(text: str) -> None:
    assert decided(replica(annotations={**ASKS, names.REPLACEMENT_FAILED: text})).outcome is Outcome.REPLACE


@pytest.mark.parametrize(
    "known",
    [
        facts(replica_set=None, above=None),
        facts(replica_set=msgspec.structs.replace(REPLICA_SET, rollout=RolloutState(is_deleted=True)), above=None),
    ],
)
def test_a_pod_without_a_replica_set_goes_as_it_would_have_gone_with_it(known: WorkloadFacts) -> None:
    assert decided(released(), known).outcome is Outcome.RETURN


def test_a_workload_without_replicas_takes_its_pod_back_and_removes_it() -> None:
    assert decided(released(), with_deployment(replicas=0)).outcome is Outcome.RETURN


def test_false_on_the_pod_ends_it() -> None:
    pod = released(more={names.REPLACE_FIRST: "false"})
    assert decided(pod, facts(pods=(pod,))).outcome is Outcome.RETURN
    assert decided(pod, facts(pods=(pod, replica("web-2"))), budget=None).outcome is Outcome.EVICT


def test_the_deadline_waits_for_no_replacement() -> None:
    assert decided(released(), facts(pods=(released(),)), deadline=NOW + 20).outcome is Outcome.DELETE


def test_a_protected_pod_is_not_released() -> None:
    assert decided(replica(annotations={**ASKS, names.DO_NOT_DISRUPT: "true"})).outcome is Outcome.PROTECTED


def test_several_budgets_are_no_matter_of_replacements() -> None:
    pod = replica()
    both = plan(view(pod, budgets={pod.uid: (NEVER, a_budget("other"))}, workloads={KEY: FACTS}), NOW)
    assert entry(both, pod.name).is_ambiguous


def test_a_release_that_the_watch_has_not_shown_is_not_requested_again() -> None:
    assert decided(replica(), facts(pods=(released(),))).outcome is Outcome.REPLACING


@pytest.mark.parametrize(
    ("label", "above", "kind", "named"),
    [
        (names.POD_TEMPLATE_HASH, DEPLOYMENT, "Deployment", "web"),
        (names.ROLLOUT_HASH, workload("web"), "Rollout", "web"),
        (names.REPLACE_FIRST, None, "ReplicaSet", KEY[1]),
        (names.POD_TEMPLATE_HASH, workload("other"), "ReplicaSet", KEY[1]),
    ],
)
def test_the_label_is_that_of_the_selector(label: str, above: Workload | None, kind: str, named: str) -> None:
    labels = {"app": "web", label: HASH}
    replica_set = workload(KEY[1], selector=labels, rollout=RolloutState(kind_above=kind))
    release = new_release(replica(labels=labels), facts(replica_set=replica_set, above=above), NOW)
    assert release is not None
    assert (release.kind, release.workload, release.label, release.value) == (kind, named, label, HASH)
    assert release.replica_set == KEY[1]
