"""Notifications: which Events become one, how often, and what their text says; on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from support.stage import a_pod_manifest, staged

from gracectl.app.apprise_sender import SEND_SECONDS
from gracectl.app.notifications import MOST_WAITING, Notifier
from gracectl.kube.events import Subject
from gracectl.model.names import EventReason
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.settings import NotificationSettings


def node(name: str) -> Subject:
    return Subject("v1", "Node", "", name, f"uid-{name}")


class Receiver:
    """Takes what is sent, with its instant; `fails`: refuses it."""

    def __init__(self) -> None:
        self.began = anyio.current_time()
        self.taken: list[tuple[float, str]] = []
        self.fails = False
        self.seconds = 0.0

    async def send(self, title: str, text: str) -> None:
        await anyio.sleep(self.seconds)
        if self.fails:
            raise RuntimeError("refused")
        self.taken.append((round(anyio.current_time() - self.began, 3), text))


@asynccontextmanager
async def notifying(**more: object) -> AsyncIterator[tuple[Notifier, Receiver]]:
    receiver = Receiver()
    notifier = Notifier(NotificationSettings(**more), "prod", LoopClock(), receiver.send)  # type: ignore[arg-type]
    async with while_running(notifier.run):
        yield notifier, receiver


def counts(notifier: Notifier) -> dict[tuple[str, ...], float]:
    return {each.labels: each.value for each in notifier.samples() if each.value}  # type: ignore[misc]


async def test_the_first_is_sent_immediately_and_later_ones_together() -> None:
    async with notifying() as (notifier, receiver):
        notifier.record(node("n1"), EventReason.DRAIN_BLOCKED, "no pod has left for 300 s; shop/web: budget web")
        await anyio.sleep(10)
        for name in ("n2", "n3", "n4", "n5", "n6", "n7", "n8"):
            notifier.record(node(name), EventReason.DRAIN_BLOCKED, "no pod has left")
        notifier.record(node("n2"), EventReason.NODE_INTERRUPTED, "spot notice from aws")
        await anyio.sleep(600)
        assert receiver.taken == [
            (0.0, "prod: drain-stuck: node n1: no pod has left for 300 s; shop/web: budget web"),
            (10.0, "prod: interruption: node n2: spot notice from aws"),
            (300.0, "prod: drain-stuck: node n2: no pod has left\nand 6 more: n3, n4, n5, n6, n7, …"),
        ]
        assert counts(notifier) == {("drain-stuck", "sent"): 2, ("interruption", "sent"): 1}


async def test_the_same_about_a_node_is_sent_once_an_hour() -> None:
    async with notifying(interval="1s") as (notifier, receiver):
        for _ in range(130):
            notifier.record(node("n1"), EventReason.UNHEALTHY_NODES_HELD, "too many")
            await anyio.sleep(60)
        assert [instant for instant, _ in receiver.taken] == [0.0, 3600.0, 7200.0]


async def test_only_what_is_wanted_about_nodes_is_sent() -> None:
    async with notifying(events=("deadline-missed",)) as (notifier, receiver):
        claim = Subject("karpenter.sh/v1", "NodeClaim", "", "c1", "uid-c1")
        notifier.record(claim, EventReason.TERMINATION_GRACE_PERIOD_EXPIRED, "left")
        notifier.record(node("n1"), EventReason.DRAIN_BLOCKED, "blocked")
        notifier.record(node("n1"), EventReason.DRAINING, "draining")
        await anyio.sleep(1)
        notifier.record(node("n1"), EventReason.TERMINATION_GRACE_PERIOD_EXPIRED, "pods left: shop/web")
        await anyio.sleep(1)
        assert receiver.taken == [(1.0, "prod: deadline-missed: node n1: pods left: shop/web")]


async def test_the_end_of_a_node_drain_is_sent() -> None:
    async with notifying() as (notifier, receiver):
        drain = Subject("gracectl.io/v1alpha1", "NodeDrain", "", "rotate-1", "uid-1")
        notifier.record(drain, EventReason.NODE_DRAIN_STARTED, "Terminates 40 nodes")
        notifier.record(drain, EventReason.NODE_DRAIN_COMPLETED, "40 of 40 nodes done")
        await anyio.sleep(1)
        assert receiver.taken == [(0.0, "prod: rotation-finished: NodeDrain rotate-1: 40 of 40 nodes done")]


async def test_names_are_harmless_and_fields_are_not_expanded_twice() -> None:
    async with notifying(text="$node|$message|$$") as (notifier, receiver):
        notifier.record(
            node("n1"), EventReason.DRAIN_BLOCKED, "<!channel> @here `x` $cluster \x1b [ok](http://x) ||" + "y" * 9_000
        )
        await anyio.sleep(1)
        ((_, text),) = receiver.taken
        assert text.startswith("n1|(!channel) (at)here 'x' $cluster \\x1b (ok)(http://x) //y")
        assert text.endswith("|$")
        assert len(text) < 400
        assert text.isprintable()


async def test_a_receiver_that_fails_or_hangs_blocks_nobody_and_what_does_not_fit_is_counted() -> None:
    async with notifying(interval="1s") as (notifier, receiver):
        receiver.fails = True
        notifier.record(node("n1"), EventReason.DRAIN_BLOCKED, "blocked")
        await anyio.sleep(2)
        receiver.seconds = 10_000
        notifier.record(node("n2"), EventReason.DRAIN_BLOCKED, "blocked")
        await anyio.sleep(1)
        for number in range(MOST_WAITING + 7):
            notifier.record(node(f"m{number}"), EventReason.DRAIN_BLOCKED, "blocked")
        await anyio.sleep(SEND_SECONDS)
        assert counts(notifier) == {("drain-stuck", "failed"): 2, ("drain-stuck", "dropped"): 7}
        receiver.seconds, receiver.fails = 0.0, False
        await anyio.sleep(SEND_SECONDS)
        assert counts(notifier)["drain-stuck", "failed"] == 3
        assert notifier._waiting == {}


async def test_a_stuck_drain_of_the_controller_is_notified() -> None:
    async with staged("n1") as stage:
        receiver = Receiver()
        stage.notifies_by = receiver.send
        await stage.create(a_pod_manifest("job", "n1", annotations={"karpenter.sh/do-not-disrupt": "true"}))
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(3600)
        ((_, text),) = receiver.taken
        assert text.startswith("gracectl: drain-stuck: node n1: no pod has left for ")
        assert text.endswith("shop/job (protected by do-not-disrupt)")


@pytest.mark.parametrize(("settings", "message"), [
    ({"interval": "soon"}, "interval: "), ({"interval": "0s"}, "interval: '0s' is not positive; give a duration"),
    ({"text": "$secret"}, "text: '$secret' has an unknown field; it may have $cluster, $event, $message, $node"),
    ({"text": "100 $"}, "text: '100 $' has an unknown field"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # all of it is compared
        NotificationSettings(**settings).validate()  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
