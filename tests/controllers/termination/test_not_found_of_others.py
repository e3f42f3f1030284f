"""A 404 about another object than that of a write is no news of that object: the write is repeated, with pauses.

Something on the way of the write is missing: the service of a webhook, the namespace of a policy's parameters.
"""

from __future__ import annotations

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, finalizers_of, staged

from gracectl.model import names

SECONDS, MANY = 20.0, 30
"""For how long the other object is missing; a write that is repeated with growing pauses is sent less often."""


def missing(kind: str, name: str) -> Refuse:
    """A 404 that names this object."""
    body = {"kind": "Status", "reason": "NotFound", "code": 404, "message": f'{kind} "{name}" not found'}
    return Refuse(404, None, {**body, "details": {"name": name, "kind": kind}})


HOOK = missing("services", "hook")
LEASE = missing("leases", "n1")
"""It has the name of its node."""


def refuse(stage: Stage, method: str, path: str, fault: Refuse = HOOK) -> Rule:
    """Refuse requests with that."""
    rule = Rule(fault=fault, method=method, path=path)
    stage.transport.before.add(rule)
    return rule


@pytest.mark.parametrize(
    ("deleted", "method", "path", "fault"),
    [
        ("claim", "DELETE", "/nodes/n1", HOOK),
        ("claim", "DELETE", "/nodes/n1", LEASE),
        ("node", "DELETE", "/nodeclaims/", HOOK),
        ("node", "PATCH", "/nodes/n1$", HOOK),
        ("claim", "PATCH", "/nodeclaims/n1-claim$", HOOK),
        ("node", "POST", "/eviction", HOOK),
    ],
    ids=[
        "node's deletion",
        "node's deletion, about its Lease",
        "claim's deletion",
        "node's cordon and finalizer",
        "claim's deadline and finalizer",
        "eviction",
    ],
)
async def test_a_termination_goes_on_when_the_other_object_is_there(
    deleted: str, method: str, path: str, fault: Refuse
) -> None:
    objects = [a_pod_manifest("a", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects, claim=ClaimSpec(termination_grace_period="15m")) as stage, stage.settled():
        rule = refuse(stage, method, path, fault)
        await (stage.delete_claim("n1-claim") if deleted == "claim" else stage.delete_node("n1"))
        await stage.clock.sleep(SECONDS)
        assert stage.claim("n1-claim") is not None
        assert 0 < stage.transport.before.struck(rule) < MANY
        stage.transport.before.remove(rule)
        with anyio.fail_after(3 * SECONDS):
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")
        assert stage.instance_state("n1") == "terminated"


async def test_a_finalizer_that_could_not_be_added_is_added_later() -> None:
    async with staged() as stage, stage.settled():
        rule = refuse(stage, "PATCH", "/nodes/n1$")
        await stage.add_nodes("n1")
        await stage.clock.sleep(SECONDS)
        stage.transport.before.remove(rule)
        with anyio.fail_after(3 * SECONDS):
            await stage.until(lambda: names.FINALIZER in finalizers_of(stage.nodes()[0]))
