"""Admission removed from a cluster while its controllers run: neither it nor the finalizer of nodes comes back."""

from __future__ import annotations

import pytest
from support.admission import CONFIGURATION, NODES, SECRET, Hosted, hosted
from support.servers import free_port
from support.stage import finalizers_of, the_settings

from gracectl.admission import admission
from gracectl.cli.uninstall.procedure import Uninstall, UninstallOptions
from gracectl.cli.uninstall.report import RemovalOutcome
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names

pytestmark = pytest.mark.real_time

LEADING = {"namespace": "infra", "leaseDurationSeconds": 3, "renewDeadlineSeconds": 2, "retryPeriodSeconds": 0.5}


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints without delay: a replica that goes is removed at once."""
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)


async def test_beside_a_replica_that_answers_all_of_it_goes_and_stays_away() -> None:
    settings = the_settings(leaderElection=LEADING, admission={"service": {"name": "gracectl", "namespace": "infra"}})
    async with hosted() as place:
        port = free_port()
        await place.add_nodes("n1")
        async with place.controller(port=port, leaderElection=LEADING):
            await place.routed(port)
            await place.register()
            await place.until(lambda: names.FINALIZER in _finalizers(place, "n1"))
            wire = place.transport.line()
            client = KubeClient(wire, place.clock, settings=INTERACTIVE)
            report = await Uninstall(Connection(wire, place.clock, client), settings, UninstallOptions(), print).run()
            assert report.failures == ()
            removed = {(each.kind, each.name) for each in report.removals if each.outcome is RemovalOutcome.REMOVED}
            assert removed == {
                ("MutatingWebhookConfiguration", "gracectl"), ("ValidatingWebhookConfiguration", "gracectl"),
                ("Secret", "infra/gracectl-webhook-tls"), ("Node", "n1"),
            }  # fmt: skip
            made = await place.call("POST", NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n2"}})
            assert finalizers_of(made) == []
            await place.clock.sleep(5)
            assert not place.is_registered()
            for path in (CONFIGURATION.format("mutating"), CONFIGURATION.format("validating"), SECRET):
                assert (await place.ask("GET", path)).status == 404
            assert _finalizers(place, "n1") == []
            assert (await place.ask("DELETE", f"{NODES}/n1")).status == 200
            await place.until(lambda: place.node("n1") is None)


def _finalizers(place: Hosted, name: str) -> list[str]:
    node = place.node(name)
    assert node is not None
    return finalizers_of(node)
