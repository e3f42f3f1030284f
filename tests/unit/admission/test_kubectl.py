"""What people see of our webhooks who use kubectl: denials and warnings, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.place import served
from kubesim.server.api import Request, Response
from kubesim_support.kubectl import Kubectl, needs_kubectl
from support.admission import NODES, hosted
from support.disruption import a_node_budget_manifest
from support.servers import free_port

from gracectl.admission import admission

pytestmark = [pytest.mark.real_time, needs_kubectl]

DENIED = (
    'Error from server (TooManyRequests): admission webhook "delete.nodes.gracectl.io" denied the request: node n1: '
    "deletion denied: node disruption budget pool-a allows no termination now (2 of 2 available, 2 required by "
    "minAvailable 2); change or delete the budget, which never allows a termination\n"
)


async def test_a_denial_names_the_budget_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)
    deletions: list[str] = []
    async with hosted() as place, served(place.server, tmp_path) as kubeconfig:
        handle = place.server.handle

        async def noting(request: Request) -> Response:
            if request.method == "DELETE":
                deletions.append(request.path)
            return await handle(request)

        monkeypatch.setattr(place.server, "handle", noting)
        kubectl = Kubectl(kubeconfig, tmp_path)
        port = free_port()
        await place.add_nodes("n1", "n2", pool="a")
        async with place.controller(port=port):
            await place.routed(port)
            await place.register()
            await place.create_budget(minAvailable=2)
            printed = await kubectl.run("delete", "node", "n1")
            assert (printed.code, printed.err) == (1, DENIED)
            assert deletions == [f"{NODES}/n1"]  # a client that is told when to come again does so ten times in silence
            printed = await kubectl.run("delete", "node", "--all", "--wait=false")
            assert printed.code == 1
            assert printed.err.count("node disruption budget pool-a allows no termination now") == 2
            odd = a_node_budget_manifest("odd", maxUnavailable=0)
            assert await kubectl.apply(odd) == "nodedisruptionbudget.termination.karpenter.sh/odd created\n"
            printed = await kubectl.run(
                "apply",
                "-f",
                "-",
                stdin='{"apiVersion": "termination.karpenter.sh/v1alpha2", '
                '"kind": "NodeDisruptionBudget", "metadata": {"name": "none"}, "spec": {"maxUnavailable": 0}}',
            )
            assert printed.err == (
                "Warning: spec.selector: empty, selects no node; set matchLabels for the budget to have an effect\n"
            )
