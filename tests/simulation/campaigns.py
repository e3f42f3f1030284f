"""Campaigns, freezes and windows in a history: NodeDrains that are created and canceled, and when nothing may begin.

Windows open each few minutes for a while, so that each campaign can end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

from kubesim.server.api import JsonObject

from gracectl.model import names
from gracectl.model.times import format_time
from simulation.plan import REFUGE, Act, NodePlan
from simulation.scene import Scene

NODE_DRAINS: Final = "/apis/gracectl.io/v1alpha1/nodedrains"
FREEZES: Final = "/api/v1/namespaces/kube-system/configmaps"
WINDOWS: Final = (
    [{"schedule": "*/2 * * * *", "duration": "1m"}],
    [{"schedule": "*/3 * * * *", "duration": "1m30s", "timeZone": "Europe/Berlin"}],
)
"""By minutes since the hour: see `contract.is_open`."""
SHARE: Final = 1 / 4
SECONDS: Final = 60.0


def some_campaigns(seed: int, nodes: tuple[NodePlan, ...], *, knows_claims: bool) -> tuple[Act, ...]:
    """Campaigns, and perhaps a freeze, for some seeds; by a chance of their own."""
    chance = random.Random(f"campaigns/{seed}")
    if not knows_claims or chance.random() >= SHARE:
        return ()
    victims = [node.name for node in nodes if node.name != REFUGE]
    acts = [_campaign(chance, number, victims) for number in range(chance.choice([1, 1, 2]))]
    if chance.random() < 0.4:
        until = chance.choice([None, None, 20.0, 300.0, -10.0, "soon"])
        acts.append(Act(at=_instant(chance), what="freeze", seconds=chance.choice([5.0, 40.0, 90.0]), value=until))
    return tuple(acts)


def some_windows(seed: int) -> dict[str, Any]:
    """Windows of the settings, for one seed in eight."""
    chance = random.Random(f"windows/{seed}")
    return {"windows": chance.choice(WINDOWS)} if chance.random() < 1 / 8 else {}


def _campaign(chance: random.Random, number: int, victims: list[str]) -> Act:
    action = chance.choice(["Drain", "Terminate", "Terminate"])
    chosen = chance.sample(victims, chance.randint(1, len(victims)))
    spec: JsonObject = {
        "action": action,
        "nodeNames": chosen,
        "maxConcurrent": chance.choice([1, 1, 2, "50%"]),
        "waitForReplacement": chance.random() < 0.5,
        "order": chance.choice(["ByForecast", "OldestFirst", "ByName"]),
        "onUndrainable": chance.choice(["Wait", "Wait", "Skip", "Fail"]),
    }
    if action == "Drain" and chance.random() < 0.4:
        spec["timeout"] = chance.choice(["20s", "2m"])
    if chance.random() < 0.3:
        spec["windows"] = chance.choice(WINDOWS)
    canceled = chance.choice([0.0, 0.0, 3.0, 20.0, 80.0])
    return Act(at=_instant(chance), what="campaign", subject=f"campaign{number}", seconds=canceled, value=spec)


def _instant(chance: random.Random) -> float:
    return round(chance.uniform(0, chance.choice([5.0, SECONDS])), 3)


async def campaign(scene: Scene, act: Act) -> None:
    """Create a NodeDrain, and perhaps cancel it later."""
    kind = {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain"}
    await scene.insist("POST", NODE_DRAINS, {**kind, "metadata": {"name": act.subject}, "spec": act.value})
    if act.seconds:
        await scene.stage.clock.sleep(act.seconds)
        await scene.insist("DELETE", f"{NODE_DRAINS}/{act.subject}")


async def freeze(scene: Scene, act: Act) -> None:
    """Freeze the cluster for a while."""
    data = {}
    if act.value is not None:
        is_text = isinstance(act.value, str)
        data = {"until": act.value if is_text else format_time(scene.stage.clock.now() + act.value)}
    await scene.insist("POST", FREEZES, {"metadata": {"name": names.FREEZE}, "data": data})
    await scene.stage.clock.sleep(act.seconds)
    await scene.insist("DELETE", f"{FREEZES}/{names.FREEZE}")


async def cancel_all(scene: Scene) -> None:
    """Cancel what is left, so that the run ends; a campaign without windows must end by itself, and is awaited."""
    for drain in list(scene.stage.server.store.table("nodedrains.gracectl.io")):
        if "windows" in drain["spec"] or drain["spec"]["onUndrainable"] != "Wait":
            await scene.insist("DELETE", f"{NODE_DRAINS}/{drain['metadata']['name']}")


def unfinished(drains: Iterable[JsonObject]) -> list[str]:
    """Names of NodeDrains that are not over."""
    return [
        drain["metadata"]["name"]
        for drain in drains
        if "deletionTimestamp" in drain["metadata"] or not drain.get("status", {}).get("completionTime")
    ]
