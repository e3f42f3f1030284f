"""Node claims on a cluster that may not know them: their definition is lent for as long as stories need it.

What somebody else has put there is used and left as it is. Ours is marked, so that whichever run of stories is the last
one to need it takes it away, even if the one that brought it did not live to do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from e2e_support.names import LABEL
from e2e_support.target import Target, connected
from gracectl.runtime.clock import SystemClock
from gracectl.sim.extensions.shipped import shipped_definitions
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.client import WorldApi, ask
from gracectl.sim.world.nodeclaims import NODE_CLAIMS
from gracectl.sim.world.paths import DEFINITIONS, path_of

NAME = "nodeclaims.karpenter.sh"
SECONDS = 30.0


@contextmanager
def claims_served(target: Target) -> Iterator[None]:
    """While the block lasts, the cluster serves node claims. Skips the test where we may not see to that."""
    anyio.run(_lend, target)
    try:
        yield
    finally:
        anyio.run(_take_away, target)


async def _lend(target: Target) -> None:
    async with connected(target.kubeconfig) as api:
        status, _ = await api.call("GET", path_of(DEFINITIONS, name=NAME))
        if status == 404:
            status, _ = await api.call("POST", DEFINITIONS, _marked())
        if status not in (200, 201, 409):
            pytest.skip(f"no node claims here, and their definition cannot be put in ({status})")
        await _until_served(api)


def _marked() -> JsonObject:
    (definition,) = (each for each in shipped_definitions() if each["metadata"]["name"] == NAME)
    labels = {**definition["metadata"].get("labels", {}), LABEL: "lent"}
    return {**definition, "metadata": {**definition["metadata"], "labels": labels}}


async def _until_served(api: WorldApi) -> None:
    """A server that has taken a definition does not serve it at once."""
    clock = SystemClock()
    with anyio.fail_after(SECONDS):
        while (await api.call("GET", NODE_CLAIMS))[0] != 200:
            await clock.sleep(0.1)


async def _take_away(target: Target) -> None:
    clock = SystemClock()
    async with connected(target.kubeconfig) as api:
        _, claims = await api.call("GET", NODE_CLAIMS)
        status, definition = await api.call("GET", path_of(DEFINITIONS, name=NAME))
        if status != 200 or LABEL not in definition["metadata"].get("labels", {}) or claims["items"]:
            return
        await ask(api, "DELETE", path_of(DEFINITIONS, name=NAME), allow=(404,))
        with anyio.fail_after(SECONDS):
            while (await api.call("GET", path_of(DEFINITIONS, name=NAME)))[0] == 200:
                await clock.sleep(0.1)
