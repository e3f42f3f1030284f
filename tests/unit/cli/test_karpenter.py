"""`gracectl controller` as a process, on a cluster where a Karpenter leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fleet import Fleet, fleet
from support.karpenter import HOLDER, a_karpenter_lease, installed, leases_of

from gracectl.model import names
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("karpenter")) as found:
        yield found


def test_the_process_does_not_begin_says_why_and_changes_nothing(place: Fleet) -> None:
    place.add("alone", pool="other")
    lease = a_karpenter_lease(
        SystemClock().now() + 50, leaseDurationSeconds=600
    )  # a minute counts: this machine may be slow
    place.ask("POST", leases_of("kube-system"), lease)
    with installed(place), place.running("controller") as process:
        code, told = process.ended()
    place.ask("DELETE", f"{leases_of('kube-system')}/{names.KARPENTER_LEASE}")
    assert code == 2
    *log, words = told.splitlines()
    assert all(line.startswith('{"ts":') for line in log), "on a busy machine, slow callbacks are told as well"
    assert words.startswith(
        f"gracectl: a Karpenter leads on this cluster: {HOLDER} holds the Lease kube-system/karpenter-leader-election"
    )
    node = place.node("alone")
    assert node is not None
    assert "finalizers" not in node["metadata"]
