"""The policy on do-not-disrupt tells of what the controller would not understand or not grant, and of nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubesim.server.api import JsonObject
from support.chart import CHART, Release, Request, denial, needs_helm, refusal

from gracectl.model import names
from gracectl.model.pod import LONGEST_DURATION

needs_helm()

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
RESOURCES = {
    "Pod": "pods",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "ReplicaSet": "replicasets",
    "Job": "jobs",
    "CronJob": "cronjobs",
}
ORACLES = Path(__file__).parents[3] / "kubesim/tests/oracles"
ORACLE: list[JsonObject] = json.loads((ORACLES / "go-durations.json").read_text())
LONGEST = 9_223_372_036 * 10**9
"""Nanoseconds. What is longer, and yet no more than Go can hold, counts as invalid: doubles cannot tell them apart."""

INVALID = "annotation karpenter.sh/do-not-disrupt is neither"
TOO_LONG = "annotation karpenter.sh/do-not-disrupt asks for more than the {} s for which pods of namespace {}"
FOR_EVER = "karpenter.sh/do-not-evict protects indefinitely, and pods of namespace ci may be protected for 3600 s"


def policies(**values: Any) -> list[JsonObject]:
    return Release(values={"protectionPolicy": values}).of_kind(POLICY)


def an_object(kind: str, metadata: JsonObject) -> JsonObject:
    pod: JsonObject = {"metadata": metadata, "spec": {}}
    if kind == "Pod":
        return pod
    holder: JsonObject = {"metadata": {"name": "a"}, "spec": {"template": pod}}
    return {"metadata": {"name": "a"}, "spec": {"jobTemplate": holder}} if kind == "CronJob" else holder


def told(found: list[JsonObject], metadata: JsonObject, kind: str = "Pod", was: JsonObject | None = None) -> str:
    """What is said of a pod, or template, with this metadata. `was`: before; None: it is created."""
    return denial(
        found,
        Request(
            operation="CREATE" if was is None else "UPDATE",
            resource=RESOURCES[kind],
            kind=kind,
            name="a",
            namespace="ci",
            old=None if was is None else an_object(kind, was),
            new=an_object(kind, metadata),
        ),
    )


def asking(value: str) -> JsonObject:
    return {"annotations": {names.DO_NOT_DISRUPT: value}}


def test_it_warns_of_what_go_would_not_read_and_of_nothing_else() -> None:
    found = policies()
    seen = {True: 0, False: 0}
    for row in ORACLE:
        nanoseconds = None if row["ns"] is None else int(row["ns"])
        is_right = row["in"] == "true" or (nanoseconds is not None and 0 < nanoseconds < LONGEST)
        assert told(found, asking(row["in"])).startswith(INVALID) is not is_right, row
        seen[is_right] += 1
    assert min(seen.values()) > 50


def test_a_value_longer_than_any_valid_one_is_invalid() -> None:
    found = policies()
    assert told(found, asking("1h" * (LONGEST_DURATION // 2))) == ""
    assert told(found, asking("1h" * (LONGEST_DURATION // 2) + "1s")).startswith(INVALID)
    assert told(found, asking("1h" * 100_000)).startswith(INVALID)


def test_the_policy_and_the_controller_have_one_bound() -> None:
    text = (CHART / "templates/protection-policy.yaml").read_text()
    assert f"variables.value.size() <= {LONGEST_DURATION} &&" in text


@pytest.mark.parametrize("kind", RESOURCES)
def test_pods_and_every_kind_of_template_are_looked_at(kind: str) -> None:
    found = policies()
    assert told(found, asking("1d"), kind).startswith(INVALID)
    others: tuple[JsonObject, ...] = (asking("4h"), asking("true"), {"annotations": {}}, {})
    for metadata in others:
        assert told(found, metadata, kind) == ""
    bare = an_object(kind, {})
    if kind != "Pod":
        (bare["spec"]["jobTemplate"] if kind == "CronJob" else bare)["spec"]["template"].pop("metadata")
        request = Request(operation="CREATE", resource=RESOURCES[kind], kind=kind, name="a", old=None, new=bare)
        assert denial(found, request) == ""


@pytest.mark.parametrize("kind", RESOURCES)
def test_what_a_write_leaves_as_it_was_is_not_looked_at(kind: str) -> None:
    rules = policies(action="Deny", maximumSeconds=60)
    for value in ("1d", "4h", "true"):
        assert told(rules, asking(value), kind, was=asking(value)) == ""
        assert told(rules, {}, kind, was=asking(value)) == ""
        assert told(rules, asking(value), kind, was={}) != ""
    stays = {"labels": {names.DO_NOT_EVICT: "true"}}
    assert told(rules, stays, kind, was=stays) == ""


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ({"maximumSeconds": 3600}, 3600),
        ({"maximumSecondsByNamespace": {"ci": 3600}}, 3600),
        ({"maximumSeconds": 60, "maximumSecondsByNamespace": {"ci": 3600, "shop": 1}}, 3600),
        ({"maximumSeconds": 90.5, "maximumSecondsByNamespace": {"shop": 1}}, 90.5),
        ({"maximumSeconds": 0}, 0),
    ],
)
def test_a_maximum_holds_durations_and_what_has_no_end(values: JsonObject, most: float) -> None:
    rules = policies(**values)
    too_long = TOO_LONG.format(f"{most:g}", "ci")
    for value in ("true", "3601s", "1h0.1s"):
        assert told(rules, asking(value)).startswith(too_long)
    if most:
        assert told(rules, asking(f"{most:g}s")) == ""
    assert told(rules, asking("1 day")).startswith(INVALID)


def test_under_a_maximum_nothing_may_stay_for_ever_by_the_older_word() -> None:
    assert told(policies(), {"labels": {names.DO_NOT_EVICT: "true"}}) == ""
    rules = policies(maximumSeconds=3600)
    for field in ("labels", "annotations"):
        assert told(rules, {field: {names.DO_NOT_EVICT: "true"}}).startswith(FOR_EVER)
        assert told(rules, {field: {names.DO_NOT_EVICT: "false"}}) == ""


def test_it_warns_unless_it_is_to_deny_and_an_expression_that_fails_holds_up_no_pod() -> None:
    for action, values in (("Warn", {}), ("Deny", {"action": "Deny"})):
        release = Release(values={"protectionPolicy": values})
        policy, binding = release.one(POLICY), release.one(BINDING)
        assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": [action]}
        assert policy["spec"]["failurePolicy"] == "Ignore"


def test_it_is_there_where_the_cluster_can_have_it() -> None:
    assert Release(values={"protectionPolicy": {"enabled": False}}).of_kind(POLICY) == []
    assert Release(kubernetes="1.29.0").of_kind(POLICY) == []
    assert "has no ValidatingAdmissionPolicies (1.30)" in refusal(
        {"protectionPolicy": {"enabled": True}}, kubernetes="1.29.0"
    )
    assert "protectionPolicy/action" in refusal({"protectionPolicy": {"action": "Audit"}})


@pytest.mark.parametrize(("maximum", "is_told"), [(None, True), (0, False), (3600, False)])
def test_the_notes_of_an_installation_say_that_protection_has_no_maximum(maximum: float | None, is_told: bool) -> None:
    shown = Release(values={"settings": {"protection": {"maximumSeconds": maximum}}}).notes()
    assert ("settings.protection.maximumSeconds is null" in shown) == is_told
