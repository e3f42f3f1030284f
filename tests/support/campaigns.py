"""Campaigns (NodeDrains) on a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubesim.server.api import JsonObject

from gracectl.model import names
from support.stage import Stage

NODE_DRAINS = "/apis/gracectl.io/v1alpha1/nodedrains"


def a_campaign(name: str = "c", **spec: Any) -> JsonObject:
    """A NodeDrain of all nodes with a host name, unless the spec says which."""
    if not {"nodeName", "nodeNames", "nodeSelector"} & spec.keys():
        spec["nodeSelector"] = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    return {
        "apiVersion": "gracectl.io/v1alpha1",
        "kind": "NodeDrain",
        "metadata": {"name": name},
        "spec": {"action": "Terminate", **spec},
    }


async def create_campaign(stage: Stage, name: str = "c", **spec: Any) -> float:
    """Create a campaign; returns the instant."""
    await stage.call("POST", NODE_DRAINS, a_campaign(name, **spec))
    return stage.clock.monotonic()


async def patch_campaign(stage: Stage, patch: JsonObject, name: str = "c") -> None:
    await stage.call("PATCH", f"{NODE_DRAINS}/{name}", patch, "application/merge-patch+json")


async def cancel(stage: Stage, name: str = "c") -> None:
    await stage.call("DELETE", f"{NODE_DRAINS}/{name}")


def campaign(stage: Stage, name: str = "c") -> JsonObject | None:
    return stage.server.store.table("nodedrains.gracectl.io").get("", name)


def status(stage: Stage, name: str = "c") -> JsonObject:
    found: JsonObject = (campaign(stage, name) or {}).get("status", {})
    return found


def counts(stage: Stage, name: str = "c") -> dict[str, int]:
    """The counts that are not zero."""
    return {key: number for key, number in status(stage, name).get("counts", {}).items() if number}


def condition(stage: Stage, type_: str, name: str = "c") -> tuple[str, str, str]:
    """Status, reason and message."""
    conditions = status(stage, name).get("conditions", [])
    found: JsonObject = next((each for each in conditions if each["type"] == type_), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def states(stage: Stage, name: str = "c") -> dict[str, str]:
    """State of each node that is shown."""
    return {each["name"]: each["state"] for each in status(stage, name).get("nodes", [])}


async def until_campaign(stage: Stage, holds: Callable[[], bool], patience: float = 4_000.0) -> float:
    """Wait until a condition on campaigns holds; returns the instant. AssertionError after `patience` seconds."""
    table, ends = stage.server.store.table("nodedrains.gracectl.io"), stage.clock.monotonic() + patience
    while not holds():
        assert stage.clock.monotonic() < ends, [each.get("status") for each in table]
        await stage.clock.sleep(0.25)
    return stage.clock.monotonic()


async def until_complete(stage: Stage, name: str = "c") -> float:
    return await until_campaign(stage, lambda: condition(stage, names.COMPLETE, name)[0] == "True")
