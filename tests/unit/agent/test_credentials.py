"""An agent with the credentials of its kubelet, and one that impersonates its node, held to what these may."""

from __future__ import annotations

from collections.abc import Iterator
from logging import ERROR

import pytest
from kubesim.server.calls import User
from kubesim_support.accounts import ADMIN
from support.inprocess import InProcessTransport
from support.shutdowns import BY_KEP, a_pod_of, an_agent, deletions
from support.stage import Stage, staged, the_settings

from gracectl.kube.transport import Request
from gracectl.model import names

TOKENS = {
    ADMIN["authorization"].removeprefix("Bearer "): "admin",
    **{f"of-{node}": User(f"system:node:{node}", groups=("system:nodes",)) for node in ("n1", "n2")},
    "of-a-stranger": User("jane"),
}
IMPERSONATING = the_settings(**BY_KEP, agent={"impersonateNode": True})


def connect(stage: Stage, token: str) -> InProcessTransport:
    """Let the agent come by this token from now on."""
    stage.transport = InProcessTransport(stage.server, stage.clock, token=token)
    return stage.transport


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= ERROR]


async def test_a_kubelet_shuts_down_its_node_without_a_taint(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", "n2", tokens=TOKENS) as stage:
        await a_pod_of(stage, "a", 0)
        connect(stage, "of-n1")
        async with an_agent(stage) as played:
            await played.live()
            start = played.logind.shut_down()
            await stage.clock.sleep(40)
            assert deletions(stage, start) == [("a", 0.0, 30)]
            node = stage.node("n1") or {}
            assert node["metadata"]["annotations"][names.SHUTDOWN_CORDONED] == "label,unschedulable"
            assert (stage.condition("n1", names.SHUTTING_DOWN) or {})["reason"] == "PodsGone"
            played.logind.call_off()
            await stage.clock.sleep(5)
            assert not (stage.node("n1") or {})["spec"].get("unschedulable")
    assert errors(caplog) == []


async def test_another_kubelets_credentials_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", "n2", tokens=TOKENS) as stage:
        connect(stage, "of-n2")
        async with an_agent(stage):
            await stage.clock.sleep(5)
    (message,) = errors(caplog)
    assert message.startswith("credentials: of system:node:n2: cannot read node n1; use the kubeconfig of")


def reads(transport: InProcessTransport) -> Iterator[Request]:
    return (each.request for each in transport.executed if each.request.method == "GET")


@pytest.mark.parametrize("token", ["of-a-stranger", "of-n1"])
async def test_who_may_not_impersonate_the_node_is_told_why(token: str, caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", tokens=TOKENS) as stage:
        transport = connect(stage, token)
        async with an_agent(stage, IMPERSONATING) as played:
            await stage.clock.sleep(5)
            (cache,) = (check for check in played.agent.process.readiness() if check.name == "cache of pods")
            assert not cache.is_ok
        assert {each.impersonate for each in reads(transport)} == {"system:node:n1"}
    message = errors(caplog)[-1]
    assert message.startswith("impersonation: cannot read node n1 as system:node:n1: get nodes n1: forbidden")
    assert message.endswith("are needed, else set agent.impersonateNode to false")
