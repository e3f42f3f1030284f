"""Requests of contenders are counted alike, by every source of the counts."""

from __future__ import annotations

import pytest

from benchmarks.contenders.contender import EVICTION, Tally, Usage, operation
from benchmarks.contenders.gracectl import Reading
from benchmarks.contenders.kubectl import NEW, OLDER


@pytest.mark.parametrize(("method", "path", "expected"), [
    ("GET", "/api/v1/nodes", "list nodes"), ("GET", "/api/v1/nodes/a", "get nodes"),
    ("GET", "/api/v1/namespaces/n", "get namespaces"),
    ("GET", "/api/v1/namespaces/n/pods?limit=500", "list pods"),
    ("GET", "/api/v1/pods?watch=1&resourceVersion=7", "watch pods"),
    ("GET", "/api/v1/namespaces/n/pods/a", "get pods"),
    ("POST", "/api/v1/namespaces/n/pods/a/eviction", EVICTION),
    ("DELETE", "/api/v1/namespaces/n/pods/a", "delete pods"),
    ("PATCH", "/api/v1/nodes/a?fieldManager=kubectl", "patch nodes"),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/a", "update leases"),
    ("GET", "/apis/apps/v1/namespaces/n/replicasets/a", "get replicasets"),
    ("GET", "/apis/policy/v1", "get discovery"), ("GET", "/version", "get discovery"),
])  # fmt: skip
def test_a_request_is_called_after_its_verb_and_resource(method: str, path: str, expected: str) -> None:
    assert operation(method, path) == expected


def test_refusals_are_no_failures_and_what_is_gone_is_none_either() -> None:
    tally = Tally()
    for status in (201, 429, 404, 409, 500):
        tally.add("POST", "/api/v1/namespaces/n/pods/a/eviction", status)
    usage = tally.usage(1.5, 30.0)
    assert (usage.requests, usage.refused, usage.failed) == ({EVICTION: 5}, 1, 2)
    assert usage.per_pod(EVICTION, 4) == 1.25


@pytest.mark.parametrize("line", [
    'I1123 1 round_trippers.go:632] "Response" verb="POST" url="https://h:1/api/v1/namespaces/n/pods/a/eviction" '
        'status="429 Too Many Requests" milliseconds=2',
    "I1123 1 round_trippers.go:560] POST https://h:1/api/v1/namespaces/n/pods/a/eviction 429 Too Many Requests in "
        "2 milliseconds",
])  # fmt: skip
def test_every_kubectl_tells_of_its_requests(line: str) -> None:
    match = NEW.search(line) or OLDER.search(line)
    assert match is not None
    assert (match["verb"], match["path"], match["status"]) == ("POST", "/api/v1/namespaces/n/pods/a/eviction", "429")


def test_what_a_controller_has_done_since_a_reading_is_the_difference() -> None:
    evicted, refused, failed = (("create", "pods/eviction", each) for each in ("ok", "BudgetExhausted", "ServerError"))
    before = Reading(2.0, 90.0, {evicted: 5.0}, {0.01: 1.0, 0.1: 1.0, 1.0: 1.0})
    after = Reading(3.5, 99.0, {evicted: 9.0, refused: 2.0, failed: 1.0}, {0.01: 1.0, 0.1: 100.0, 1.0: 101.0})
    usage = after.since(before)
    assert usage.requests == {EVICTION: 7}
    assert (usage.refused, usage.failed, usage.cpu, usage.memory) == (2, 1, 1.5, 99.0)
    assert usage.lateness == {"p50": 0.1, "p99": 0.1, "p100": 1.0}


def test_nothing_late_is_no_percentile() -> None:
    reading = Reading(2.0, 90.0, {}, {0.01: 3.0, 0.1: 3.0})
    assert reading.since(reading).lateness == {}


def test_two_lives_are_one_usage() -> None:
    first = Usage(requests={EVICTION: 3, "list pods": 1}, refused=1, cpu=1.0, memory=90.0)
    second = Usage(requests={EVICTION: 2}, refused=0, failed=1, cpu=0.5, memory=95.0)
    both = first.and_then(second)
    assert both.requests == {EVICTION: 5, "list pods": 1}
    assert (both.refused, both.failed, both.cpu, both.memory) == (1, 1, 1.5, 95.0)
