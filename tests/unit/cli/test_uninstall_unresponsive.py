"""What takes gracectl off a cluster, beside controllers that do not hear of it, or are let begin again."""

from __future__ import annotations

import json

from kubesim.faults import FreezeWatch, Refuse, Rule
from support.clients import LEASE, WEBHOOKS, Leaving, configure, held, outcomes
from support.stage import staged

from gracectl.cli.uninstall.report import RemovalOutcome, closing_lines
from gracectl.config import Settings
from gracectl.model import names
from gracectl.runtime.supervise import while_running


async def test_a_leader_that_does_not_hear_of_it_is_outlasted() -> None:
    """Its keeper puts the finalizer back at once, again and again, until it may not write any more."""
    async with staged("n1", settings=Settings()) as stage, stage.controller() as controller:
        await stage.settle(controller)
        for deaf in (Rule(fault=Refuse(503), path="leases"), Rule(fault=FreezeWatch(0.0), path="leases")):
            stage.transport.before.add(deaf)
        report = await Leaving(stage).run()
        assert report.failures == ()
        assert outcomes(report, "Node") == {"n1": RemovalOutcome.REMOVED}
        await stage.clock.sleep(60)
        assert held(stage) == []


async def test_what_is_said_at_the_end_lets_a_controller_that_has_seen_it_all_begin_at_once() -> None:
    """A Lease that is merely deleted is its holder's until it would have run out."""
    async with staged("n1", settings=Settings()) as stage, stage.controller() as controller:
        await stage.settle(controller)
        report = await Leaving(stage).run()
        await stage.clock.sleep(30)
        said = " ".join(closing_lines(report))
        assert "kubectl -n kube-system patch lease gracectl --type merge -p " in said
        patch = json.loads(said.partition(" -p '")[2].partition("'")[0])
        await stage.call("PATCH", LEASE, patch, "application/merge-patch+json")
        await stage.clock.sleep(20)
        assert held(stage) == ["n1"]


async def test_webhooks_that_always_come_back_are_no_endless_loop() -> None:
    async with staged("n1", settings=Settings()) as stage:

        async def make() -> None:
            while True:
                if (await stage.cluster.api.call("GET", WEBHOOKS.format(kind="mutating") + "/gracectl"))[0] == 404:
                    await configure(stage, "mutating", names.NODE_CREATION_WEBHOOK)
                await stage.clock.sleep(1)

        async with while_running(make):
            report = await Leaving(stage).run()
        (failure,) = report.failures
        assert (failure.kind, failure.name) == ("MutatingWebhookConfiguration", "gracectl")
        assert "recreated again and again" in failure.reason
        assert stage.clock.monotonic() < 30
