"""Source `aws`: a queue of SQS, which EventBridge and Auto Scaling fill.

Invariants: a message is deleted when the nodes show what it says, and one of a lifecycle hook when that is completed; a
hook is completed once, by CONTINUE, when its node is drained; a message that cannot be trusted stays, for the queue of
dead letters. A message that was not deleted comes again, to this process or the next leader.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.aws.clients import Call, Clients, InvalidRequest
from gracectl.cloud.provider import ProviderError
from gracectl.interruption.aws_events import Event, Hook, read_event
from gracectl.interruption.source import Handler, Outcome
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.model.foreign import harmless
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.supervise import while_running

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 30.0
MOST_MESSAGES: Final = 10
"""Messages of a batch; a limit of SQS."""
CONCURRENT: Final = 100
"""Messages whose notices are being recorded."""
MOST_HELD: Final = 1_000
"""Lifecycle actions that are held; the messages of others stay in the queue."""
EMPTY_SECONDS: Final = 1.0
"""Pause after an empty answer to a request that did not wait."""
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
REMEMBERED: Final = 10_000
"""Refused messages, and completed hooks, that are remembered."""
DEFAULT_HEARTBEAT_SECONDS: Final = 60.0
"""Interval of heartbeats of a hook that cannot be described; a hook has at least 30 s."""
LONGEST_HEARTBEAT_SECONDS: Final = 300.0

_QUEUE_URL: Final = re.compile(r"https?://[^/]+/(?P<account>[0-9]{12})/[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_REGION: Final = re.compile(r"https://(?:sqs\.|queue\.)?(?P<region>[a-z]+(?:-[a-z]+)+-[0-9]+)\.")


class _Message(msgspec.Struct, frozen=True, rename="pascal"):
    message_id: str
    receipt_handle: str
    body: str


class _Messages(msgspec.Struct, frozen=True, rename="pascal"):
    messages: tuple[_Message, ...] = ()


class _Timeouts(msgspec.Struct, frozen=True, rename="pascal"):
    heartbeat_timeout: float = DEFAULT_HEARTBEAT_SECONDS
    global_timeout: float | None = None


class _Hooks(msgspec.Struct, frozen=True, rename="pascal"):
    lifecycle_hooks: tuple[_Timeouts, ...]


class _Nothing(msgspec.Struct, frozen=True):
    pass


class AwsSource:
    """Polls the queue of one region."""

    name = "aws"

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`accountId`: of the events that are trusted; default: the queue's. `states`: of instances, that end them.
        `waitSeconds`: how long a request waits for messages; `visibilitySeconds`: after which a message comes again."""

        queue_url: str
        region: Annotated[str, msgspec.Meta(pattern="^([a-z]+(-[a-z]+)+-[0-9]+)?$")] = ""
        account_id: Annotated[str, msgspec.Meta(pattern="^([0-9]{12})?$")] = ""
        profile: Annotated[str, msgspec.Meta(min_length=1)] | None = None
        endpoint_url: Annotated[str, msgspec.Meta(pattern="^https?://")] | None = None
        states: frozenset[str] = frozenset({"shutting-down", "terminated"})
        wait_seconds: Annotated[int, msgspec.Meta(ge=0, le=20)] = 20
        visibility_seconds: Annotated[int, msgspec.Meta(ge=10, le=3600)] = 20

        def __post_init__(self) -> None:
            """Raises ValueError."""
            if _QUEUE_URL.fullmatch(self.queue_url) is None:
                raise ValueError(f"queueUrl: {self.queue_url!r} is no URL of a queue; see QueueUrl of the stack")
            if not self.region and _REGION.match(self.queue_url) is None:
                raise ValueError("region: is not in queueUrl; set it")

    def __init__(self, options: Options) -> None:
        self._options = options
        found, place = _QUEUE_URL.fullmatch(options.queue_url), _REGION.match(options.queue_url)
        self._account = options.account_id or (found["account"] if found else "")
        self._region = options.region or (place["region"] if place else "")
        self.problem = ""

    async def poll(self, handler: Handler) -> None:
        """See Polls."""
        await _Queue(self, self._options, self._account, self._region, handler).run()


class _Queue:
    """One run of `poll`."""

    def __init__(
        self, source: AwsSource, options: AwsSource.Options, account: str, region: str, handler: Handler
    ) -> None:
        self._source = source
        self._options = options
        self._account, self._region = account, region
        self._handler = handler
        # A request that waits for messages must not be repeated before its answer.
        self._waiting = self._new_clients(3 * (options.wait_seconds + 10.0))
        self._calls = self._new_clients(CALL_SECONDS)
        self._slots = anyio.Semaphore(CONCURRENT)
        self._refused: dict[str, None] = {}
        self._completed: dict[str, None] = {}
        self._held: dict[str, _Message] = {}
        """By token of a lifecycle action in progress, its message as received last."""
        self._timeouts: dict[tuple[str, str], _Timeouts] = {}
        self._most = MOST_MESSAGES

    async def run(self) -> None:
        """Receive until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                retry = Backoff(FIRST_RETRY, LAST_RETRY)
                while True:
                    try:
                        messages = await self._receive()
                    except ProviderError as error:
                        # Ten messages of a megabyte exceed the limit of a response, and hide all others behind them.
                        self._most = 1
                        self._set_problem(str(error))
                        await self._handler.sleep(retry.next())
                        continue
                    self._most = min(2 * self._most, MOST_MESSAGES)
                    retry.reset()
                    self._set_problem("")
                    for message in messages:
                        await self._slots.acquire()
                        group.start_soon(self._handle, message, group)
                    if not messages and not self._options.wait_seconds:
                        await self._handler.sleep(EMPTY_SECONDS)
        finally:
            with anyio.CancelScope(shield=True):
                await self._waiting.aclose()
                await self._calls.aclose()

    def _set_problem(self, text: str) -> None:
        if text and text != self._source.problem:
            logger.warning("source aws: queue: %s; retrying", text)
        elif not text and self._source.problem:
            logger.info("source aws: queue: answers again")
        self._source.problem = text

    async def _handle(self, message: _Message, group: anyio.abc.TaskGroup) -> None:
        try:
            event = self._read(message)
            if event is None:
                return
            if event.hook is not None:
                is_copy = event.hook.token in self._held
                if not is_copy and len(self._held) >= MOST_HELD:
                    self._log_once(message, f"{MOST_HELD} lifecycle actions are held")
                    return
                self._held[event.hook.token] = message  # the receipt that deletes it is the last one
                if not is_copy:
                    group.start_soon(self._hold, event, event.hook)
                return
            for notice in event.notices:
                await self._handler.receive(notice)
            if not event.notices:
                self._handler.count(Outcome.IGNORED)
            await self._delete(message)
        except NotLeading:
            return  # the next leader receives it
        except (ApiError, ProviderError) as error:
            logger.warning("source aws: message %s: %s; it comes again", message.message_id, error)
        finally:
            self._slots.release()

    def _read(self, message: _Message) -> Event | None:
        """The event, if it can be read and is from this account and region; else it stays in the queue."""
        try:
            event = read_event(message.body, self._region, self._options.states)
            if event.account != self._account or event.region != self._region:
                place = f"account {event.account}, region {harmless(event.region)}"
                raise ValueError(f"from {place}, not from {self._account}, {self._region}")
        except ValueError as error:
            if self._log_once(message, f"refused: {error}"):
                self._handler.count(Outcome.REFUSED)
            return None
        return event

    def _log_once(self, message: _Message, reason: str) -> bool:
        """Log why a message stays; returns whether that is new."""
        if message.message_id in self._refused:
            return False
        _remember(self._refused, message.message_id)
        logger.warning("source aws: message %s: %s; left in the queue", message.message_id, reason)
        return True

    # -- lifecycle hooks -----------------------------------------------------------------------------------------------

    async def _hold(self, event: Event, hook: Hook) -> None:
        """Keep the instance until its node is drained, then let it go."""
        try:
            receipt = await self._handler.receive(event.notices[0])
            if receipt.nodes and hook.token not in self._completed:
                async with while_running(partial(self._extend, hook), partial(self._beat, hook, event)):
                    await self._handler.until_drained(receipt)
                await self._retried(lambda: self._continue(hook))
                _remember(self._completed, hook.token)
            await self._retried(lambda: self._delete(self._held[hook.token]))
        except NotLeading:
            return  # the next leader receives it
        except ApiError as error:
            logger.warning("source aws: lifecycle action of %s: %s; its message comes again", hook.instance, error)
        finally:
            del self._held[hook.token]

    async def _extend(self, hook: Hook) -> None:
        """Keep the message from coming again, as far as SQS lets it."""
        seconds = self._options.visibility_seconds
        while True:
            await self._handler.sleep(seconds / 2)
            try:
                await self._sqs(
                    "ChangeMessageVisibility",
                    ReceiptHandle=self._held[hook.token].receipt_handle,
                    VisibilityTimeout=seconds,
                )
            except ProviderError as error:
                logger.debug("source aws: visibility of the message of %s: %s", hook.instance, error)

    async def _beat(self, hook: Hook, event: Event) -> None:
        """Renew the timeout of the action, which would end the instance before its node is drained.

        The global timeout of a hook cannot be renewed, and so is a deadline.
        """
        timeouts = await self._timeouts_of(hook)
        if timeouts.global_timeout is not None:
            last = msgspec.structs.replace(event.notices[0], at=event.issued + timeouts.global_timeout)
            await self._retried(lambda: self._handler.receive(last))
        while True:
            await self._handler.sleep(min(timeouts.heartbeat_timeout / 2, LONGEST_HEARTBEAT_SECONDS))
            try:
                await self._scaling("RecordLifecycleActionHeartbeat", hook)
            except ProviderError as error:
                logger.warning("source aws: heartbeat of %s: %s; retrying", hook.instance, error)

    async def _continue(self, hook: Hook) -> None:
        try:
            await self._scaling("CompleteLifecycleAction", hook, LifecycleActionResult="CONTINUE")
        except InvalidRequest as error:
            logger.info("source aws: lifecycle action of %s: no longer waits: %s", hook.instance, error.reason)
        else:
            logger.info("source aws: lifecycle action of %s: CONTINUE: its node is drained", hook.instance)

    async def _timeouts_of(self, hook: Hook) -> _Timeouts:
        key = (hook.group, hook.name)
        if key not in self._timeouts:
            call = self._call("autoscaling", "DescribeLifecycleHooks")
            names = {"AutoScalingGroupName": hook.group, "LifecycleHookNames": [hook.name]}
            try:
                found = await self._calls.request(call, _Hooks, **names)
            except ProviderError as error:
                logger.warning("source aws: hook %s: %s; its timeouts are unknown", harmless(hook.name), error)
                return _Timeouts()
            if not found.lifecycle_hooks:
                return _Timeouts()
            self._timeouts[key] = found.lifecycle_hooks[0]
        return self._timeouts[key]

    async def _retried(self, call: Callable[[], Awaitable[object]]) -> None:
        """Call until it succeeds: nothing else would let the instance go."""
        retry = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                await call()
                return
            except NotLeading:
                raise
            except (ApiError, ProviderError) as error:
                logger.warning("source aws: %s; retrying", error)
            await self._handler.sleep(retry.next())

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _receive(self) -> tuple[_Message, ...]:
        found = await self._waiting.request(
            self._call("sqs", "ReceiveMessage"),
            _Messages,
            QueueUrl=self._options.queue_url,
            MaxNumberOfMessages=self._most,
            WaitTimeSeconds=self._options.wait_seconds,
            VisibilityTimeout=self._options.visibility_seconds,
        )
        return found.messages

    async def _delete(self, message: _Message) -> None:
        await self._sqs("DeleteMessage", ReceiptHandle=message.receipt_handle)

    async def _sqs(self, operation: str, **arguments: object) -> None:
        call = self._call("sqs", operation)
        await self._calls.request(call, _Nothing, QueueUrl=self._options.queue_url, **arguments)

    async def _scaling(self, operation: str, hook: Hook, **arguments: object) -> None:
        await self._calls.request(
            self._call("autoscaling", operation, hook.instance),
            _Nothing,
            AutoScalingGroupName=hook.group,
            LifecycleHookName=hook.name,
            LifecycleActionToken=hook.token,
            InstanceId=hook.instance,
            **arguments,
        )

    def _call(self, service: str, operation: str, *instances: str) -> Call:
        return Call(service=service, region=self._region, operation=operation, instances=instances)

    def _new_clients(self, seconds: float) -> Clients:
        options = self._options
        return Clients(seconds=seconds, profile=options.profile, endpoint_url=options.endpoint_url)


def _remember(known: dict[str, None], key: str) -> None:
    known[key] = None
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
