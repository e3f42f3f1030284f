"""What a shutdown would do, told beforehand; and that it does just that."""

from __future__ import annotations

from support.builders import NOW, a_pod
from support.shutdowns import KEP

from gracectl.model import names
from gracectl.policy.shutdown import Rehearsal, rehearse

SLOW = 3600


def ranges(rehearsal: Rehearsal) -> list[tuple[int, float | None, float | None]]:
    return [(each.number, each.begins, each.ends) for each in rehearsal.ranges]


def fates(rehearsal: Rehearsal) -> dict[str, tuple[float | None, int | None, float | None]]:
    return {pod.pod.name: (pod.at, pod.grace, pod.ends) for each in rehearsal.ranges for pod in each.pods}


def test_a_skipped_pod_is_listed_with_the_reason() -> None:
    pods = [a_pod("etcd", annotations={names.MIRROR_POD: "x"}), a_pod("job", phase="Succeeded"), a_pod("me", uid="own")]
    rehearsal = rehearse(KEP, [*pods, a_pod("web")], 660, NOW, "own")
    assert [(pod.name, reason) for pod, reason in rehearsal.ignored] == [
        ("etcd", "static pod: it ends with its machine"),
        ("job", "finished: its phase is Succeeded"),
        ("me", "the node agent itself: it ends with its machine"),
    ]
    assert fates(rehearsal) == {"web": (0, 30, 30)}


def test_too_little_time_and_a_deadline_of_the_node_are_seen_beforehand() -> None:
    pods = [a_pod("web", grace_seconds=SLOW), a_pod("a", priority=100_000, grace_seconds=SLOW)]
    rehearsal = rehearse(KEP, pods, 330, NOW, node_deadline=NOW + 50)
    assert fates(rehearsal) == {"web": (0, 30, 30), "a": (30, 20, 50)}
    assert [each.period for each in rehearsal.ranges] == [30, 60, 90, 150]
