"""How the cluster of a scenario behaves."""

from __future__ import annotations

from collections.abc import Iterable

from kubesim.cluster import PARTS, ClusterOptions
from kubesim.controllers.nodeclaims import NODE_CLAIM
from kubesim.scenarios.scenario import Scenario
from kubesim.server.api import JsonObject


def definitions_of(scenario: Scenario, offered: Iterable[JsonObject]) -> tuple[JsonObject, ...]:
    """Of the CustomResourceDefinitions offered those that the scenario wants and does not bring along itself."""
    if not scenario.server.crds:
        return ()
    own = {
        (manifest.get("metadata") or {}).get("name")
        for manifest in scenario.objects
        if manifest.get("kind") == "CustomResourceDefinition"
    }
    return tuple(each for each in offered if each["metadata"]["name"] not in own)


def options_of(scenario: Scenario, definitions: Iterable[JsonObject] = (NODE_CLAIM,)) -> ClusterOptions:
    """The options of the cluster; `definitions`: CustomResourceDefinitions that it serves from the first moment."""
    controllers, server = scenario.controllers, scenario.server
    return ClusterOptions(
        speed=scenario.speed,
        seed=scenario.seed,
        parts=PARTS - set(controllers.without),
        kubelet=scenario.kubelet,
        cloud=scenario.cloud,
        quarantine_seconds=controllers.quarantine,
        attach_seconds=controllers.attach,
        detach_seconds=controllers.detach,
        unstage_seconds=controllers.unstage,
        node_plugin=controllers.node_plugin,
        node_grace_seconds=controllers.node_grace,
        events=controllers.events,
        event_seconds=server.event_ttl,
        window=server.window,
        clock_offset_seconds=server.clock_offset,
        definitions=definitions_of(scenario, definitions),
    )
