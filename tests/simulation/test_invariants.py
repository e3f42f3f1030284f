"""Each invariant is seen to be violated: a culprit, which is no controller, does what none may do.

A rule that cannot fail is worth nothing. That the rules let pass what is right is seen in every run of a controller.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from support.disruption import POOL as TEAM
from support.stage import SILENT, a_budget_manifest, a_workload, staged

from gracectl.model import names
from simulation.crimes import begins, machines, pods, progress
from simulation.crimes.culprit import CALM, CRIMES, SETTINGS, TIMED, Crime, Culprit, World
from simulation.invariants import Invariants

HELD = {"metadata": {"finalizers": [names.FINALIZER]}}


def test_every_module_has_crimes() -> None:
    assert {crime.__module__ for crime in CRIMES} == {each.__name__ for each in (begins, machines, pods, progress)}


@pytest.mark.parametrize("crime", CRIMES, ids=lambda crime: crime.__name__)
async def test_a_violation_is_reported(crime: Crime) -> None:
    options: dict[str, Any] = {"kubelet": SILENT, "node_grace_seconds": 1e6}
    async with staged(
        "n1", labels=TEAM if crime is machines.break_a_node_budget else {}, settings=SETTINGS, **options
    ) as stage:
        await stage.add_nodes("n2")
        await stage.add_nodes("timed", labels=TIMED)
        await stage.add_nodes("claimed", claim=ClaimSpec())
        if crime is pods.evict_against_a_budget:
            web = a_workload(
                "Deployment", "web", 3, pod={"node": "n1"}, behaviour={"stop-seconds": 1, "ready-seconds": 60}
            )
            await stage.create(a_budget_manifest("web", maxUnavailable=1), web)
        for node in stage.nodes():
            await stage.patch_node(node["metadata"]["name"], HELD)
        await stage.patch_claim("claimed-claim", HELD)
        invariants = Invariants(stage, CALM)
        async with invariants.watching():
            await crime(World(stage, Culprit(stage), invariants))
        violations = "\n".join(invariants.check_end(calm=True))
    assert re.search(CRIMES[crime], violations), violations
