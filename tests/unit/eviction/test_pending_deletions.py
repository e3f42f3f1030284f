"""A promise stands beside the cache until the cache has caught up with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_pod

from gracectl.eviction.deletions import PendingDeletion, PendingDeletions, expected_deletion
from gracectl.kube.cache import Cache
from gracectl.model.pod import Pod

KEY = ("shop", "web-1")
UID = "uid-web-1"


class Lens:
    """A cache and the promises beside it."""

    def __init__(self) -> None:
        self.cache: Cache[Pod] = Cache("pods")
        self.pending = PendingDeletions(self.cache)
        self.cache.subscribe(self.pending.pod_changed)
        self.version = 0

    def show(self, pod: Pod) -> None:
        self.version += 1
        self.cache.put(msgspec.structs.replace(pod, resource_version=str(self.version)))

    def seen(self) -> tuple[float | None, int | None]:
        pod = self.pending.pod(*KEY, UID)
        assert pod is not None
        return pod.deletion_timestamp, pod.deletion_grace_seconds


@pytest.fixture
def lens() -> Lens:
    lens = Lens()
    lens.show(a_pod())
    return lens


def test_what_was_promised_counts_until_the_cache_shows_it_or_less(lens: Lens) -> None:
    assert lens.seen() == (None, None)
    lens.pending.add(UID, KEY, PendingDeletion(30, NOW + 30))
    lens.show(a_pod(labels={"some": "news"}))
    lens.show(a_pod(deletion_timestamp=NOW + 600, deletion_grace_seconds=600))
    assert lens.seen() == (NOW + 30, 30)
    lens.show(a_pod(deletion_timestamp=NOW + 20, deletion_grace_seconds=20))
    assert lens.seen() == (NOW + 20, 20)
    assert len(lens.pending) == 0


def test_nothing_is_kept_of_pods_that_are_gone_or_that_the_cache_shows(lens: Lens) -> None:
    lens.pending.add(UID, KEY, PendingDeletion(30, NOW + 30))
    lens.cache.remove(KEY)
    assert len(lens.pending) == 0
    lens.pending.add(UID, KEY, PendingDeletion(30, NOW + 30))
    lens.show(a_pod(uid="another"))
    lens.pending.add(UID, KEY, PendingDeletion(30, NOW + 30))
    lens.show(a_pod(uid="another", deletion_timestamp=NOW, deletion_grace_seconds=1))
    lens.pending.add("another", KEY, PendingDeletion(1, NOW))
    assert len(lens.pending) == 0
    assert lens.pending.pod(*KEY, UID) is None


@pytest.mark.parametrize(("terminating", "grace", "now", "expected"), [
    ({}, 30, NOW + 0.9, PendingDeletion(30, NOW + 30)),
    ({"deletion_timestamp": NOW + 500, "deletion_grace_seconds": 600}, 300, NOW, PendingDeletion(300, NOW + 200)),
    # It would be over already: it ends now.
    ({"deletion_timestamp": NOW + 500, "deletion_grace_seconds": 600}, 1, NOW, PendingDeletion(1, NOW)),
    ({"deletion_timestamp": NOW + 500}, 20, NOW - 500, PendingDeletion(20, NOW + 490)),
])  # fmt: skip
def test_what_a_server_makes_of_a_deletion(
    terminating: dict[str, Any], grace: int, now: float, expected: PendingDeletion
) -> None:
    assert expected_deletion(a_pod(**terminating), grace, now) == expected
