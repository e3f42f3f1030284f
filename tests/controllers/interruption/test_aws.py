"""Notices through a queue of SQS, with the real clients, to the end of the node; on virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import pytest
from moto.sqs.models import SQSBackend, sqs_backends
from support.aws import ACCOUNT, REGION, give_credentials
from support.aws_messages import TOKEN, a_lifecycle_action, a_spot_notice
from support.disruption import deletions
from support.interruptions import hearing, written_on
from support.moto_in_process import InProcessAws, in_process
from support.queues import lifecycle_calls
from support.stage import Stage, a_budget_manifest, a_pod_manifest, staged

from gracectl.cloud.aws.clients import Call, Clients
from gracectl.cloud.provider import ProviderUnavailable
from gracectl.interruption import aws as source
from gracectl.interruption.aws import AwsSource
from gracectl.model import names

MINUTE = 60.0
VISIBILITY = 20


class Notices:
    """The queue, as AWS sees it."""

    def __init__(self, stage: Stage, aws: InProcessAws) -> None:
        self.aws = aws
        self._stage = stage
        self._backend: SQSBackend = sqs_backends[ACCOUNT][REGION]
        self._backend.reset()
        self._backend.create_queue("notices")

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self._backend.send_message("notices", json.dumps(message))

    def spot(self, node: str) -> dict[str, Any]:
        return a_spot_notice(self.instance_of(node), self._stage.clock.now())

    def instance_of(self, node: str) -> str:
        node_object = self._stage.node(node)
        assert node_object is not None
        name: str = node_object["spec"]["providerID"].rpartition("/")[2]
        return name

    @property
    def left(self) -> int:
        return len(self._backend.queues["notices"]._messages)


def aws_source() -> AwsSource:
    options = {
        "queueUrl": f"http://127.0.0.1/{ACCOUNT}/notices",
        "region": REGION,
        "endpointUrl": "http://127.0.0.1",
        "waitSeconds": 0,
        "visibilitySeconds": VISIBILITY,
    }
    return AwsSource(msgspec.convert(options, AwsSource.Options))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)


@contextmanager
def queued(stage: Stage) -> Iterator[Notices]:
    """A queue that the next controllers poll."""
    with in_process(stage.clock) as aws:
        notices = Notices(stage, aws)
        with hearing(aws_source()):
            yield notices


async def test_fifty_spot_notices_at_the_same_time() -> None:
    """Five batches; every pod has its whole grace, or what is left."""
    nodes = [f"n{number:02}" for number in range(50)]
    async with staged(*nodes) as stage:
        pods = [a_pod_manifest(f"web-{node}", node, labels={"app": "web"}) for node in nodes]
        await stage.create(a_budget_manifest("web", maxUnavailable=1), *pods)
        with queued(stage) as notices:
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                notices.send(*map(notices.spot, nodes))
                await stage.until_gone(*nodes)
                deleted = deletions(stage)
                assert sorted(node for _, node in deleted) == nodes
                assert max(at for at, _ in deleted) <= began + 1.1  # the next look into the queue
                left = {each.operation.name: each.instant - began for each in stage.transport.of("delete", "pods")}
                assert {round(at, 3) for at in left.values()} == {90.0}  # of pods that the budget has kept
                assert stage.clock.monotonic() - began <= 121
                assert notices.left == 0


async def test_killed_between_receiving_and_acting_the_message_comes_again() -> None:
    async with staged("n1", "n2") as stage:
        with queued(stage) as notices:
            handle = stage.server.handle
            async with stage.settled(mortal=True):
                received = anyio.Event()

                async def hang(request: Any) -> Any:
                    if request.method == "PATCH" and request.path.startswith("/api/v1/nodes/"):
                        received.set()
                        await anyio.sleep_forever()
                    return await handle(request)

                stage.server.handle = hang  # type: ignore[method-assign]  # no write arrives
                notices.send(notices.spot("n1"))
                await received.wait()
            stage.server.handle = handle  # type: ignore[method-assign]  # as before
            killed = stage.clock.monotonic()
            assert written_on(stage, "n1") is None
            assert notices.left == 1
            async with stage.controller():
                await stage.until_gone("n1")
            [(deleted, _)] = deletions(stage)
            assert killed + VISIBILITY - 1 <= deleted <= killed + VISIBILITY + 1
            assert notices.left == 0


async def test_a_queue_that_is_away_for_ten_minutes_is_heard_afterwards() -> None:
    async with staged("n1", "n2") as stage:
        with queued(stage) as notices:
            async with stage.settled() as controller:
                notices.aws.is_away = True
                await stage.clock.sleep(30)
                assert up(controller) == 0
                await stage.clock.sleep(9.5 * MINUTE)
                notices.send(notices.spot("n1"))
                notices.aws.is_away = False
                back = stage.clock.monotonic()
                await stage.until_gone("n1")
                [(deleted, _)] = deletions(stage)
                assert back <= deleted <= back + 30
                assert up(controller) == 1


def up(controller: Any) -> float:
    samples = {(each.metric.name, each.labels): each.value for each in controller.process.samples() if each}
    value: float = samples["gracectl_interruption_source_up", ("aws",)]
    return value


async def test_a_lifecycle_action_is_continued_once_when_the_node_is_drained_also_by_another_process() -> None:
    slow = a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=200, behaviour={"stop-seconds": 150})
    async with staged("n1", "n2", objects=[slow]) as stage:
        with queued(stage) as notices, lifecycle_calls() as calls:
            message = a_lifecycle_action(notices.instance_of("n1"), stage.clock.now())
            async with stage.settled(mortal=True):
                notices.send(message, message)
                await stage.until(lambda: bool(stage.evictions))
                evicted = stage.clock.monotonic()
                await stage.clock.sleep(60)
                assert len(calls.heartbeats) >= 1
                assert calls.completed == []
                assert notices.left == 2
            async with stage.settled():
                notices.send(message)
                await stage.until_gone("n1")
                drained = stage.clock.monotonic()
                assert drained >= evicted + 150
                await stage.clock.sleep(2 * MINUTE)
            assert calls.completed == [(TOKEN, "CONTINUE")]
            assert len(deletions(stage)) == 1
            assert notices.left == 0


async def test_duplicates_in_any_order_end_a_node_once() -> None:
    async with staged("n1", "n2", "n3") as stage:
        with queued(stage) as notices:
            async with stage.settled():
                one, two = notices.spot("n1"), notices.spot("n2")
                notices.send(two, one, one, two, one)
                await stage.until_gone("n1", "n2")
                await stage.clock.sleep(MINUTE)
                notices.send(two, one)
                await stage.clock.sleep(MINUTE)
                assert sorted(node for _, node in deletions(stage)) == ["n1", "n2"]
                assert notices.left == 0
                assert stage.node("n3") is not None


async def test_a_protected_pod_of_a_spot_node_is_deleted_one_grace_before_its_end() -> None:
    job = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=45)
    async with staged("n1", "n2", objects=[job]) as stage:
        with queued(stage) as notices:
            async with stage.settled():
                await stage.clock.sleep(30 - stage.clock.monotonic() % 1)
                began = stage.clock.monotonic()
                notices.send(notices.spot("n1"))
                await stage.until_gone("n1")
                [deleted] = stage.transport.of("delete", "pods")
                assert round(deleted.instant, 3) == began + 75


async def test_messages_that_exceed_the_limit_of_a_response_together_do_not_hide_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = Clients.request

    async def limited(clients: Clients, call: Call, type_: Any, **arguments: Any) -> Any:
        if arguments.get("MaxNumberOfMessages", 1) > 1:
            raise ProviderUnavailable(f"{call}: no response: response exceeds 4096 KiB")
        return await request(clients, call, type_, **arguments)

    monkeypatch.setattr(Clients, "request", limited)
    async with staged("n1", "n2") as stage:
        with queued(stage) as notices:
            async with stage.settled():
                notices.send(*({"large": number} for number in range(9)), notices.spot("n1"))
                await stage.until_gone("n1")
                assert notices.left == 9


async def test_lifecycle_actions_are_held_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may write to the queue may send tokens without end."""
    monkeypatch.setattr(source, "MOST_HELD", 5)
    slow = a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=200, behaviour={"stop-seconds": 150})
    async with staged("n1", "n2", "n3", objects=[slow]) as stage:
        with queued(stage) as notices, lifecycle_calls() as calls:
            async with stage.settled():
                one, now = notices.instance_of("n1"), stage.clock.now()
                notices.send(*(a_lifecycle_action(one, now, f"{number:036}") for number in range(30)))
                await stage.clock.sleep(MINUTE)
                assert len(set(calls.heartbeats)) == 5
                notices.send(notices.spot("n2"))
                await stage.until_gone("n2")
                await stage.until_gone("n1")
                await stage.clock.sleep(10 * MINUTE)
            assert (len(calls.completed), notices.left) == (5, 0)  # the other messages are about no node
