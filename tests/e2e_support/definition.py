"""Our kinds on a cluster that may not know them: a definition is lent for as long as stories need it.

A definition that was there before is used and left as it is. Ours is marked, so that the last run of stories that needs
it removes it, even if the run that created it was killed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec
import pytest
from kubesim.controllers.client import ApiClient, ask
from kubesim.controllers.nodeclaims import NODE_CLAIMS
from kubesim.controllers.paths import DEFINITIONS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE

from benchmarks.ground.hollow import connected
from e2e_support.names import LABEL
from e2e_support.target import Target
from gracectl.cli.crds import shipped_definitions
from gracectl.runtime.clock import SystemClock

NODE_DRAINS = "/apis/gracectl.io/v1alpha1/nodedrains"
NODE_BUDGETS = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets"


class Kind(msgspec.Struct, frozen=True):
    """A kind of ours: the name of its definition, and where its objects are."""

    definition: str
    path: str


CLAIMS = Kind("nodeclaims.karpenter.sh", NODE_CLAIMS)
BUDGETS_FOR_NODES = Kind("nodedisruptionbudgets.termination.karpenter.sh", NODE_BUDGETS)
CAMPAIGNS = Kind("nodedrains.gracectl.io", NODE_DRAINS)


@contextmanager
def served(target: Target, kind: Kind) -> Iterator[None]:
    """While the block lasts, the cluster serves this kind. Skips the test where we may not see to that."""
    anyio.run(_lend, target, kind)
    try:
        yield
    finally:
        anyio.run(_take_away, target, kind)


async def _lend(target: Target, kind: Kind) -> None:
    async with connected(target.kubeconfig) as api:
        status, _ = await api.call("GET", path_of(DEFINITIONS, name=kind.definition))
        if status == 404:
            status, _ = await api.call("POST", DEFINITIONS, _marked(kind))
        if status not in (200, 201, 409):
            pytest.skip(f"no {kind.definition} here, and their definition cannot be put in ({status})")
        await until_served(api, kind)


def _marked(kind: Kind) -> JsonObject:
    (definition,) = (each for each in shipped_definitions() if each["metadata"]["name"] == kind.definition)
    labels = {**definition["metadata"].get("labels", {}), LABEL: "lent"}
    return {**definition, "metadata": {**definition["metadata"], "labels": labels}}


async def until_served(api: ApiClient, kind: Kind) -> None:
    """A server that has taken a definition does not serve it at once."""
    clock = SystemClock()
    with anyio.fail_after(PATIENCE):
        while (await api.call("GET", kind.path))[0] != 200:
            await clock.sleep(0.1)


async def _take_away(target: Target, kind: Kind) -> None:
    clock = SystemClock()
    async with connected(target.kubeconfig) as api:
        _, objects = await api.call("GET", kind.path)
        status, definition = await api.call("GET", path_of(DEFINITIONS, name=kind.definition))
        if status != 200 or LABEL not in definition["metadata"].get("labels", {}) or objects["items"]:
            return
        await ask(api, "DELETE", path_of(DEFINITIONS, name=kind.definition), allow=(404,))
        with anyio.fail_after(PATIENCE):
            while (await api.call("GET", path_of(DEFINITIONS, name=kind.definition)))[0] == 200:
                await clock.sleep(0.1)
