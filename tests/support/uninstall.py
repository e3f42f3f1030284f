"""`gracectl uninstall` on the virtual-time stage, and what it leaves."""

from __future__ import annotations

from kubesim.server.api import JsonObject

from gracectl.cli.uninstall.procedure import Uninstall, UninstallOptions
from gracectl.cli.uninstall.report import RemovalOutcome, UninstallReport
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.transport import Transport
from gracectl.model import names
from support.inprocess import InProcessTransport
from support.stage import Stage, finalizers_of

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gracectl"


class Leaving:
    """One run of the command. `wire`: its own, so that its requests are known; `said`: its output."""

    def __init__(self, stage: Stage, *, token: str = "", **wanted: object) -> None:
        self.stage = stage
        self.wire = InProcessTransport(stage.server, stage.clock, seed=99, token=token)
        self.said: list[str] = []
        self._wanted = UninstallOptions(**wanted)  # type: ignore[arg-type]

    async def run(self, through: Transport | None = None) -> UninstallReport:
        transport, clock = through or self.wire, self.stage.clock
        connection = Connection(transport, clock, KubeClient(transport, clock, settings=INTERACTIVE))
        return await Uninstall(connection, self.stage.settings, self._wanted, self.said.append).run()


def held(stage: Stage) -> list[str]:
    """The nodes and claims that have our finalizer."""
    things = (*stage.nodes(), *stage.claims())
    return sorted(each["metadata"]["name"] for each in things if names.FINALIZER in finalizers_of(each))


def outcomes(report: UninstallReport, *kinds: str) -> dict[str, RemovalOutcome]:
    """By name; of these kinds, or of all."""
    return {each.name: each.outcome for each in report.removals if not kinds or each.kind in kinds}


async def configure(stage: Stage, kind: str, *webhooks: str, name: str = "gracectl", labeled: bool = True) -> None:
    """A webhook configuration for DELETE of nodes whose server does not answer; without one it fails."""
    labels = {names.MANAGED_BY: names.EVENT_COMPONENT} if labeled else {}
    manifest: JsonObject = {"metadata": {"name": name, "labels": labels}, "webhooks": [_webhook(n) for n in webhooks]}
    await stage.call("POST", WEBHOOKS.format(kind=kind), manifest)


def _webhook(name: str) -> JsonObject:
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
