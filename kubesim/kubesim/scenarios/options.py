"""How the cluster of a scenario behaves."""

from __future__ import annotations

from kubesim.apiextensions.shipped import shipped_definitions
from kubesim.cluster import PARTS, ClusterOptions
from kubesim.scenarios.scenario import Scenario
from kubesim.server.api import JsonObject


def definitions_of(scenario: Scenario) -> tuple[JsonObject, ...]:
    """The definitions that gracectl ships, but for those that the scenario brings along itself."""
    if not scenario.server.crds:
        return ()
    own = {
        (manifest.get("metadata") or {}).get("name")
        for manifest in scenario.objects
        if manifest.get("kind") == "CustomResourceDefinition"
    }
    return tuple(each for each in shipped_definitions() if each["metadata"]["name"] not in own)


def options_of(scenario: Scenario) -> ClusterOptions:
    """The options of the cluster."""
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
        node_grace_seconds=controllers.node_grace,
        events=controllers.events,
        event_seconds=server.event_ttl,
        window=server.window,
        clock_offset_seconds=server.clock_offset,
        definitions=definitions_of(scenario),
    )
