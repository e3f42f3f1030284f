"""The hand-over from one node to the next: when it is settled, and that it stays so."""

from __future__ import annotations

import msgspec
from support.builders import NOW, a_budget

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
    assert not handover.is_settled(cluster, NOW, SETTINGS)
    cluster.budgets.put(whole)
    assert handover.is_settled(cluster, NOW, SETTINGS)
    cluster.budgets.put(msgspec.structs.replace(spent, resource_version="3"))
    assert handover.is_settled(cluster, NOW, SETTINGS)
