"""Notices that an agent hears on its node: on virtual time, with a metadata service that the test plays."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from kubesim.faults import Refuse, Rule
from support.shutdowns import BY_KEP, STUBBORN, a_pod_of, an_agent, deletions
from support.stage import Stage, staged, the_settings

from gracectl.config import Settings
from gracectl.interruption.metadata import Answer
from gracectl.model import names

HEARING = the_settings(**BY_KEP, agent={"interruptionSource": "ec2"})


class Played:
    """EC2's service: `action` is its answer; None: it never answers."""

    def __init__(self, action: Answer | None) -> None:
        self.action = action
        self.requests = 0

    async def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes = b"", seconds: float
    ) -> Answer:
        self.requests += 1
        if self.action is None:
            await anyio.sleep_forever()
        if method == "PUT":
            return Answer(200, b"token")
        return self.action if path.endswith("instance-action") else Answer(404, b"")  # type: ignore[return-value]


SPOT = Answer(200, b'{"action": "terminate", "time": "2027-01-01T00:02:00Z"}')


def shown(stage: Stage, node: str = "n1") -> str | None:
    annotations = (stage.node(node) or {})["metadata"].get("annotations", {})
    found: str | None = annotations.get(names.INTERRUPTION)
    return found


async def test_a_notice_is_on_the_agents_own_node_and_can_be_removed() -> None:
    async with staged("n1", "n2") as stage:
        service = Played(Answer(404, b""))
        async with an_agent(stage, HEARING, metadata=service) as played:
            await played.live()
            await stage.clock.sleep(20)
            assert shown(stage) is None
            service.action = SPOT
            await stage.clock.sleep(5)
            assert shown(stage) == "spot 2027-01-01T00:02:00Z ec2 terminate"
            assert shown(stage, "n2") is None
            await stage.patch_node("n1", {"metadata": {"annotations": {names.INTERRUPTION: None}}})
            await stage.clock.sleep(60)
            assert shown(stage) is None, "it was removed to ignore it"


async def test_a_notice_survives_an_api_server_that_refuses_it_for_a_while() -> None:
    async with staged("n1") as stage:
        stage.transport.before.add(Rule(fault=Refuse(500), method="PATCH", path="/nodes/n1", count=10))
        async with an_agent(stage, HEARING, metadata=Played(SPOT)) as played:
            await played.live()
            assert shown(stage) is None
            await stage.clock.sleep(60)
            assert shown(stage) == "spot 2027-01-01T00:02:00Z ec2 terminate"


async def a_shutdown(settings: Settings, service: Played | None) -> tuple[float, list[tuple[str, float, int]]]:
    """Seconds until the lock is released, and the deletions, of a machine with one stubborn pod."""
    async with staged("n1") as stage:
        await a_pod_of(stage, "web", 0, grace=20, **STUBBORN)
        async with an_agent(stage, settings, metadata=service) as played:
            await played.live()
            began = played.logind.shut_down()
            await stage.clock.sleep(700)
            assert played.logind.released_at is not None
            return round(played.logind.released_at - began, 2), deletions(stage, began)


async def test_a_service_that_never_answers_delays_no_shutdown() -> None:
    silent = Played(None)
    assert await a_shutdown(HEARING, silent) == await a_shutdown(the_settings(**BY_KEP), None)
    assert silent.requests == 1
