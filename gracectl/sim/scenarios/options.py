"""How the cluster of a scenario behaves."""

from __future__ import annotations

from gracectl.sim.cluster import PARTS, ClusterOptions
from gracectl.sim.scenarios.reading import ScenarioError
from gracectl.sim.scenarios.scenario import Scenario


def options_of(scenario: Scenario) -> ClusterOptions:
    """The options of the cluster. Raises ScenarioError for a part that does not exist."""
    controllers = scenario.controllers
    if unknown := sorted(set(controllers.off) - PARTS):
        known = ", ".join(sorted(PARTS))
        raise ScenarioError(f"controllers.off: there is no part {', '.join(unknown)}; choose among {known}")
    return ClusterOptions(
        speed=scenario.speed,
        seed=scenario.seed,
        parts=PARTS - set(controllers.off),
        kubelet=scenario.kubelet,
        cloud=scenario.cloud,
        quarantine_seconds=controllers.quarantine,
        attach_seconds=controllers.attach,
        detach_seconds=controllers.detach,
        window=controllers.window,
    )
