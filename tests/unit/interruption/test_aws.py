"""The queue of AWS, with the real clients against moto: what is received, acknowledged, held and left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import msgspec
import pytest
from support.aws import Moto, give_credentials, moto_server
from support.aws_messages import TOKEN, a_lifecycle_action, a_scheduled_change, a_spot_notice, a_state_change
from support.handlers import StandInHandler, T
from support.queues import LifecycleCalls, Queue, lifecycle_calls

from gracectl.interruption.aws import AwsSource
from gracectl.interruption.source import Outcome
from gracectl.kube.errors import ServerError
from gracectl.kube.transport.operation import Operation
from gracectl.policy.interruption import Kind
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

I1, I2 = "i-0b662ef9931388ba0", "i-12345678"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with moto_server() as moto:
        yield moto


@pytest.fixture
def queue(server: Moto, monkeypatch: pytest.MonkeyPatch) -> Queue:
    give_credentials(monkeypatch)
    server.reset()
    return Queue(server)


@pytest.fixture
def actions() -> Iterator[LifecycleCalls]:
    with lifecycle_calls() as calls:
        yield calls


@asynccontextmanager
async def polling(source: AwsSource) -> AsyncIterator[StandInHandler]:
    handler = StandInHandler()
    async with while_running(partial(source.poll, handler)):
        yield handler


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110  # of another process
            await anyio.sleep(0.05)


async def test_messages_are_deleted_when_their_notices_are_recorded(queue: Queue) -> None:
    queue.send(a_spot_notice(I1, T), a_scheduled_change(T, "", I1, I2), a_state_change(I1, T, "running"))
    async with polling(queue.source()) as handler:
        await until(lambda: queue.left() == 0)
    assert sorted((notice.kind, notice.instance, notice.at) for notice in handler.notices if notice.at) == [
        (Kind.SPOT, I1, T + 120)
    ]
    assert len(handler.notices) == 3
    assert handler.counted == [Outcome.IGNORED]


async def test_one_that_could_not_be_recorded_comes_again(queue: Queue) -> None:
    failure = ServerError(Operation("patch", "", "nodes", "", "", "n1"))
    queue.send(a_spot_notice(I1, T))
    async with polling(queue.source()) as handler:
        handler.outcomes[I1] = failure
        await until(lambda: len(handler.notices) == 1)
        await anyio.sleep(0.1)
        assert queue.left() == 1


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.GONE, Outcome.UNMANAGED])
async def test_one_about_a_machine_of_others_is_deleted(queue: Queue, outcome: Outcome) -> None:
    async with polling(queue.source()) as handler:
        handler.outcomes[I1] = outcome
        queue.send(a_spot_notice(I1, T), a_lifecycle_action(I1, T))
        await until(lambda: len(handler.notices) == 2 and queue.left() == 0)


async def test_what_cannot_be_trusted_is_left_and_counted_once(queue: Queue) -> None:
    bad = (
        "not JSON",
        a_spot_notice(I1, T, account="999999999999"),
        a_spot_notice(I1, T, region="eu-west-1"),
        a_spot_notice("i-nonsense", T),
    )
    queue.send(*bad, a_spot_notice(I2, T))
    async with polling(queue.source()) as handler:
        await until(lambda: queue.left() == len(bad) and len(handler.counted) == len(bad))
    assert handler.counted == [Outcome.REFUSED] * len(bad)
    assert [notice.instance for notice in handler.notices] == [I2]


async def test_events_of_another_account_count_if_the_options_say_so(queue: Queue) -> None:
    queue.send(a_spot_notice(I1, T, account="999999999999"))
    async with polling(queue.source(accountId="999999999999")) as handler:
        await until(lambda: queue.left() == 0)
    assert len(handler.notices) == 1


async def test_a_lifecycle_action_is_completed_once_and_only_when_the_node_is_drained(
    queue: Queue, server: Moto, actions: LifecycleCalls
) -> None:
    server.run_group(1)
    queue.add_hook(HeartbeatTimeout=100)
    async with polling(queue.source()) as handler:
        queue.send(a_lifecycle_action(I1, T))
        await until(lambda: len(actions.heartbeats) >= 2)
        queue.send(a_lifecycle_action(I1, T))  # SQS delivers at least once
        await until(lambda: len(actions.heartbeats) >= 3)
        assert actions.completed == []
        assert queue.left() >= 1
        handler.drained.set()
        await until(lambda: bool(actions.completed))
        queue.send(a_lifecycle_action(I1, T))
        await until(lambda: queue.left() <= 1)
    assert actions.completed == [(TOKEN, "CONTINUE")]
    assert set(actions.heartbeats) == {TOKEN}
    assert 50.0 in handler.sleeps  # half of the hook's own timeout
    assert handler.notices[0].at is None
    assert handler.notices[1].at == T + 172_800  # the global timeout that moto has


async def test_a_completion_that_fails_is_repeated_and_one_that_is_too_late_is_done(
    queue: Queue, actions: LifecycleCalls
) -> None:
    async with polling(queue.source()) as handler:
        handler.drained.set()
        actions.failures = ["Throttling", "ValidationError"]
        queue.send(a_lifecycle_action(I1, T))
        await until(lambda: queue.left() == 0)
    assert actions.failures == []
    assert actions.completed == []


async def test_many_notices_are_recorded_once_each(queue: Queue) -> None:
    instances = [f"i-{number:08x}" for number in range(45)]
    queue.send(*(a_spot_notice(instance, T) for instance in instances))
    async with polling(queue.source(visibilitySeconds=3600)) as handler:
        await until(lambda: queue.left() == 0)
    assert sorted(notice.instance for notice in handler.notices) == instances


async def test_a_queue_that_does_not_answer_is_a_problem_until_it_does(queue: Queue, server: Moto) -> None:
    source = queue.source(endpointUrl="http://127.0.0.1:9")
    async with polling(source) as handler:
        await until(lambda: len(handler.sleeps) >= 2)
        assert "sqs:ReceiveMessage in us-west-2: no response" in source.problem
        assert handler.sleeps[1] > handler.sleeps[0] / 2
    gone = queue.source(queueUrl=f"{server.url}/123456789012/other")
    async with polling(gone):
        await until(lambda: "NonExistentQueue" in gone.problem or "QueueDoesNotExist" in gone.problem)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "queueUrl"),
        ({"queueUrl": "arn:aws:sqs:us-west-2:123456789012:notices"}, "queueUrl: .* is no URL of a queue"),
        ({"queueUrl": "https://sqs.example.com/123456789012/q"}, "region: is not in queueUrl; set it"),
        ({"queueUrl": "https://sqs.us-west-2.amazonaws.com/123456789012/q", "waitSeconds": 21}, "waitSeconds"),
        ({"queueUrl": "https://sqs.us-west-2.amazonaws.com/123456789012/q", "nope": 1}, "nope"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(options, AwsSource.Options)


def test_account_and_region_are_those_of_the_queue() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/gracectl"
    source = AwsSource(msgspec.convert({"queueUrl": url}, AwsSource.Options))
    assert (source._account, source._region) == ("123456789012", "eu-central-1")
