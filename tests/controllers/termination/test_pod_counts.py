"""Counts of protected pods: taken in slices, however many there are."""

from __future__ import annotations

from support.builders import NOW, a_node, a_pod

from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.termination.pod_counts import SLICE, count_protected_pods
from gracectl.model import names
from gracectl.model.selectors import LabelSelector
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.settings import ProtectionSettings
from gracectl.runtime.slices import run_at_once


def test_no_slice_counts_more_than_some_hundred_pods() -> None:
    cluster = empty_cluster_cache()
    cluster.nodes.put(a_node())
    asking = {names.DO_NOT_DISRUPT: "4h"}
    cluster.pods.replace(a_pod(f"p{number}", annotations=asking) for number in range(3 * SLICE))

    def counted() -> int:
        return sum(1 for _ in count_protected_pods(cluster, ManagedNodes(LabelSelector()), ProtectionSettings(), NOW))

    assert counted() == 3
    counts = run_at_once(count_protected_pods(cluster, ManagedNodes(LabelSelector()), ProtectionSettings(), NOW))
    assert counts.protected["do-not-disrupt", "time"] == 3 * SLICE
