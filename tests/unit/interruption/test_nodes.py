"""What taints and conditions of clouds mean; texts as their documents have them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import READY, a_node

from gracectl.interruption.nodes import ConditionSource, TaintSource, time_in
from gracectl.model.meta import Condition
from gracectl.model.node import Taint
from gracectl.model.times import parse_time
from gracectl.policy.interruption import LONGEST_TEXT, Interruption, Kind

NOW = parse_time("2026-08-01T05:40:00Z")
GKE = "cloud.google.com/impending-node-termination"
PREEMPT = "Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. For more information, see the docs. EventId: 40B7BD88"


def taints(node_labels: dict[str, str] | None = None, *found: Taint, **options: Any) -> Interruption | None:
    source = TaintSource(msgspec.convert(options, TaintSource.Options))
    return source.notice_of(a_node(taints=found, labels=node_labels or {}), NOW)


def conditions(*found: Condition, **options: Any) -> Interruption | None:
    source = ConditionSource(msgspec.convert(options, ConditionSource.Options))
    return source.notice_of(a_node(conditions=(*READY, *found)), NOW)


@pytest.mark.parametrize(
    ("labels", "taint", "kind", "seconds"),
    [
        ({"cloud.google.com/gke-spot": "true"}, Taint(GKE, "", "NoSchedule"), Kind.SPOT, 30),
        ({"cloud.google.com/gke-preemptible": "true"}, Taint(GKE, "", "NoSchedule"), Kind.SPOT, 30),
        ({"cloud.google.com/gke-accelerator": "nvidia-b200"}, Taint(GKE, "", "NoSchedule"), Kind.OTHER, 3600),
        ({}, Taint("cloudprovider.azure.microsoft.com/draining", "spot-eviction", "NoSchedule"), Kind.SPOT, 30),
    ],
)
def test_taints_of_clouds(labels: dict[str, str], taint: Taint, kind: Kind, seconds: float) -> None:
    notice = taints(labels, taint)
    assert notice == Interruption(kind, NOW + seconds, "taints", f"taint {taint.key}")


@pytest.mark.parametrize(
    "taint",
    [
        Taint("node.kubernetes.io/unreachable", "", "NoExecute"),
        Taint("node.cloudprovider.kubernetes.io/shutdown", "", "NoSchedule"),
        Taint("cloudprovider.azure.microsoft.com/draining", "by-hand", "NoSchedule"),
        Taint("ToBeDeletedByClusterAutoscaler", "1767225600", "NoSchedule"),
    ],
)
def test_other_taints_end_no_machine(taint: Taint) -> None:
    assert taints({}, taint) is None


def test_entries_come_before_defaults_or_replace_them() -> None:
    mine = {"entries": [{"key": GKE, "kind": "maintenance", "deadline": "6h"}]}
    notice = taints({}, Taint(GKE), **mine)
    assert notice is not None
    assert (notice.kind, notice.at) == (Kind.MAINTENANCE, NOW + 21600)
    assert taints({}, Taint(GKE), defaults=False) is None


@pytest.mark.parametrize(
    ("condition", "kind", "at"),
    [
        (Condition("PreemptionScheduled", "True", "SpotEvictionIncoming", PREEMPT, NOW), Kind.SPOT, NOW + 62),
        (Condition("PreemptionScheduled", "True", "SpotEvictionIncoming", "soon", NOW - 5), Kind.SPOT, NOW + 25),
        (Condition("PreemptionScheduled", "True", "SpotEvictionIncoming", "soon"), Kind.SPOT, NOW + 30),
        (Condition("VMEventScheduled", "True", "VMEventScheduled", PREEMPT, NOW), Kind.SPOT, NOW + 62),
        (
            Condition("VMEventScheduled", "True", "VMEventScheduled", "Redeploy Scheduled: soon", NOW),
            Kind.MAINTENANCE,
            NOW + 600,
        ),
        (
            Condition("VMEventScheduled", "True", "VMEventScheduled", "Terminate Scheduled: soon", NOW),
            Kind.OTHER,
            NOW + 300,
        ),
        (Condition("MaintenancePlanned", "True", "MaintenanceWindow", "Hardware", NOW), Kind.MAINTENANCE, None),
    ],
)
def test_conditions_of_clouds_and_kubernetes(condition: Condition, kind: Kind, at: float | None) -> None:
    notice = conditions(condition)
    assert notice is not None
    assert (notice.kind, notice.at, notice.source) == (kind, at, "conditions")
    assert notice.text.startswith(f"condition {condition.type}: {condition.message[:20]}")


@pytest.mark.parametrize(
    "condition",
    [
        Condition("VMEventScheduled", "False", "NoVMEventScheduled", "VM has no scheduled event", NOW),
        Condition("VMEventScheduled", "True", "VMEventScheduled", "Freeze Scheduled: soon", NOW),
        Condition("VMEventScheduled", "True", "VMEventScheduled", "Reboot Scheduled: soon", NOW),
        Condition("PreemptionScheduled", "Unknown", "", "", NOW),
        Condition("MaintenancePlanned", "False", "", "", NOW),
        Condition("AcceleratedHardwareReady", "False", "NvidiaXID13Error", "", NOW),
    ],
)
def test_other_conditions_end_no_machine(condition: Condition) -> None:
    assert conditions(condition) is None


def test_of_several_the_more_certain_kind_and_the_earliest_end_count() -> None:
    planned = Condition("MaintenancePlanned", "True", "", "2026-08-01T05:40:30Z", NOW)
    entries = [{"type": "MaintenancePlanned", "kind": "maintenance", "timeInMessage": True}]
    notice = conditions(planned, Condition("PreemptionScheduled", "True", "", PREEMPT, NOW), entries=entries)
    assert notice is not None
    assert (notice.kind, notice.at) == (Kind.SPOT, NOW + 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PREEMPT, NOW + 62),
        ("at Sat, 1 Aug 2026 05:41:02 GMT", NOW + 62),
        ("from 2026-08-01T05:41:02.5Z on", NOW + 62.5),
        ("Sat, 99 Aug 2026 05:41:02 GMT", None),
        ("2026-99-01T05:41:02Z", None),
        ("soon", None),
        ("x" * 5000 + PREEMPT, None),
    ],
)
def test_a_time_in_a_message(text: str, expected: float | None) -> None:
    assert time_in(text) == expected


def test_hostile_messages_are_bounded_and_visible() -> None:
    notice = conditions(Condition("MaintenancePlanned", "True", "", "\x1b[2J" + "a" * 100_000, NOW))
    assert notice is not None
    assert len(notice.text) == LONGEST_TEXT
    assert "\x1b" not in notice.text


@pytest.mark.parametrize(
    "entry", [{"key": "a", "kind": "nonsense"}, {"key": "a", "kind": "spot", "deadline": "-1s"}, {"kind": "spot"}]
)
def test_invalid_entries_are_refused(entry: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"entries": [entry]}, TaintSource.Options)
