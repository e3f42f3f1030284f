"""The hand-over from one node to the next: when it is settled, and that it stays so."""

from __future__ import annotations

import msgspec
from support.builders import NOW, a_budget, a_pod, owned_by

from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.nodedrain.campaign import Handover
from gracectl.policy.pace import DisruptionSlot
from gracectl.policy.settings import VoluntarySettings

SETTINGS = VoluntarySettings()


async def test_a_settled_hand_over_stays_settled_while_the_next_drain_spends_its_budget() -> None:
    cluster = empty_cluster_cache()
    spent = a_budget(disruptions_allowed=0, current_healthy=2, expected_pods=3)
    whole = msgspec.structs.replace(spent, disruptions_allowed=1, current_healthy=3, resource_version="2")
    cluster.budgets.put(spent)
    handover = Handover(DisruptionSlot(NOW - 10, set(), NOW - 5), {spent.key: 1})
    assert handover.awaited(cluster, NOW, SETTINGS) == ("budget shop/web (2 of 3 healthy)",)
    gone = Handover(DisruptionSlot(NOW - 10, set(), NOW - 5), {("shop", "gone"): 1})
    assert not gone.awaited(cluster, NOW, SETTINGS)
    cluster.budgets.put(whole)
    assert not handover.awaited(cluster, NOW, SETTINGS)
    cluster.budgets.put(msgspec.structs.replace(spent, resource_version="3"))
    assert not handover.awaited(cluster, NOW, SETTINGS)


async def test_it_says_which_pods_are_awaited() -> None:
    cluster = empty_cluster_cache()
    owner = owned_by("ReplicaSet")
    for name, created in (("before", NOW - 60), ("new-b", NOW - 4), ("new-a", NOW - 4)):
        cluster.pods.put(a_pod(name, owners=owner, created=created, ready=False))
    handover = Handover(DisruptionSlot(NOW - 10, {owner[0].uid}, NOW - 5), {})
    assert handover.awaited(cluster, NOW, SETTINGS) == ("shop/new-a to become Ready", "shop/new-b to become Ready")
    just_drained = Handover(DisruptionSlot(NOW - 70, {"unknown"}, NOW), {})
    assert just_drained.awaited(cluster, NOW, SETTINGS) == ("replacements of its pods",)
