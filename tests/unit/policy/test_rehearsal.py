"""What a shutdown would do, told beforehand; and that it does just that."""

from __future__ import annotations

from support.builders import NOW, a_pod
from support.shutdowns import KEP

from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.policy.shutdown import Rehearsal, rehearse
from gracectl.policy.waves import by_priority

SLOW = 3600


def ranges(rehearsal: Rehearsal) -> list[tuple[int, float | None, float | None]]:
    return [(each.number, each.begins, each.ends) for each in rehearsal.ranges]


def fates(rehearsal: Rehearsal) -> dict[str, tuple[float | None, int | None, float | None]]:
    return {pod.pod.name: (pod.at, pod.grace, pod.ends) for each in rehearsal.ranges for pod in each.pods}


def test_the_first_table_of_the_kep() -> None:
    priorities = {"regular": None, "c": 1_000, "b": 10_000, "a": 100_000}
    pods = [a_pod(name, priority=priority, grace_seconds=SLOW) for name, priority in priorities.items()]
    rehearsal = rehearse(KEP, pods, 660, NOW)
    assert ranges(rehearsal) == [(0, 0, 60), (1, 60, 180), (2, 180, 360), (3, 360, 660)]
    assert fates(rehearsal) == {"regular": (0, 60, 60), "c": (60, 120, 180), "b": (180, 180, 360), "a": (360, 300, 660)}
    assert [each.period for each in rehearsal.ranges] == [60, 120, 180, 300]
    assert rehearsal.over == 660


def test_a_range_without_pods_begins_nowhere_and_nothing_takes_longer_than_its_grace() -> None:
    rehearsal = rehearse(KEP, [a_pod("x", grace_seconds=5), a_pod("a", priority=100_000, grace_seconds=7)], 660, NOW)
    assert ranges(rehearsal) == [(0, 0, 5), (1, None, None), (2, None, None), (3, 5, 12)]
    assert rehearsal.over == 12


def test_a_skipped_pod_is_listed_with_the_reason() -> None:
    pods = [a_pod("etcd", annotations={names.MIRROR_POD: "x"}), a_pod("job", phase="Succeeded"), a_pod("me", uid="own")]
    rehearsal = rehearse(KEP, [*pods, a_pod("web")], 660, NOW, "own")
    assert [(pod.name, reason) for pod, reason in rehearsal.ignored] == [
        ("etcd", "static pod: it ends with its machine"),
        ("job", "finished: its phase is Succeeded"),
        ("me", "the node agent itself: it ends with its machine"),
    ]
    assert fates(rehearsal) == {"web": (0, 30, 30)}


def test_a_terminating_pod_is_deleted_again_only_to_shorten_its_grace() -> None:
    def going(name: str, ends: float, grace: int) -> Pod:
        return a_pod(name, grace_seconds=grace, deletion_timestamp=NOW + ends, deletion_grace_seconds=grace)

    pods = [going("soon", 20, 30), going("late", 590, 600), going("stuck", -100, 30)]
    rehearsal = rehearse(KEP, pods, 660, NOW)
    assert fates(rehearsal) == {"soon": (None, None, 20), "late": (0, 60, 60), "stuck": (None, None, None)}
    assert rehearsal.over == 60


def test_too_little_time_and_a_deadline_of_the_node_are_seen_beforehand() -> None:
    pods = [a_pod("web", grace_seconds=SLOW), a_pod("a", priority=100_000, grace_seconds=SLOW)]
    rehearsal = rehearse(KEP, pods, 330, NOW, node_deadline=NOW + 50)
    assert fates(rehearsal) == {"web": (0, 30, 30), "a": (30, 20, 50)}
    assert [each.period for each in rehearsal.ranges] == [30, 60, 90, 150]


def test_a_last_range_without_a_period_is_told_and_not_waited_for() -> None:
    pods = [a_pod("web", grace_seconds=20), a_pod("dns", priority=2_000_000_000)]
    rehearsal = rehearse(by_priority([(0, 60.0), (2_000_000_000, 0.0)]), pods, 60, NOW)
    assert fates(rehearsal) == {"web": (0, 20, 20), "dns": (20, 1, 21)}
    assert ranges(rehearsal) == [(0, 0, 20), (1, 20, 20)]


def test_without_time_nothing_happens() -> None:
    rehearsal = rehearse(KEP, [a_pod("web")], 0, NOW)
    assert fates(rehearsal) == {"web": (None, None, None)}
    assert rehearsal.over == 0
