"""The controller that adds our finalizer to managed nodes and claims."""

from __future__ import annotations

from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.stage import (
    staged,
    the_settings,
)
from support.stories import told, until

from gracectl.model import names

FORBIDDEN = Refuse(403)


async def test_finalizers_that_cannot_be_put_on_are_told_of() -> None:
    async with staged("n1", claim=ClaimSpec()) as stage:
        stage.transport.before.add(Rule(fault=FORBIDDEN, method="PATCH", path="/nodeclaims|/nodes/"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await until(stage, 600.0)
            for name in ("n1", "n1-claim"):
                (message,) = await told(stage, name, "StepFailing")
                assert message.startswith("adding the finalizer failed: ")


async def test_only_managed_nodes_get_the_finalizer() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("other", settings=settings) as stage:
        await stage.add_nodes("mine", labels={"pool": "mine"})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(5)
            await stage.add_nodes("later", labels={"pool": "mine"})
            await stage.clock.sleep(5)
            held = {each["metadata"]["name"]: each["metadata"].get("finalizers", []) for each in stage.nodes()}
            assert held == {"mine": [names.FINALIZER], "other": [], "later": [names.FINALIZER]}
