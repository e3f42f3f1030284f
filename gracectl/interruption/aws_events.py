"""Messages of AWS about instances, as EventBridge and Auto Scaling put them into a queue. Pure.

Formats: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
rebalance-recommendations.html and monitoring-instance-state-changes.html there,
https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html, and
https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import msgspec

from gracectl.interruption.source import Notice
from gracectl.model.foreign import harmless
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.interruption import Kind

T = TypeVar("T")

SPOT_SECONDS: Final = 120.0
"""Between a spot notice and the end of the instance; a hibernation begins with the notice."""
SHUTDOWN_SECONDS: Final = 30.0
"""Of an instance that shuts down: the default grace period of a pod. EC2 does not say how long it takes."""
MOST_INSTANCES: Final = 100
"""Instances of one event."""
LONGEST_BODY: Final = 256 * 1024
TOKEN_LENGTH: Final = 36

TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"
TEST: Final = "autoscaling:TEST_NOTIFICATION"

_INSTANCE: Final = re.compile(r"i-[0-9a-f]{8,17}")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")


class Hook(msgspec.Struct, frozen=True):
    """A lifecycle action that waits for its completion."""

    group: str
    name: str
    token: str
    instance: str


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What a message says. `issued`: Unix seconds. Without notices it is about nothing that ends a machine."""

    account: str
    region: str
    issued: float
    notices: tuple[Notice, ...] = ()
    hook: Hook | None = None


class _Envelope(msgspec.Struct, frozen=True):
    source: str = ""
    account: str = ""
    region: str = ""
    time: str = ""
    detail_type: str = msgspec.field(default="", name="detail-type")
    detail: msgspec.Raw = msgspec.Raw(b"{}")


class _Instance(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="instance-id")
    action: str = msgspec.field(default="", name="instance-action")
    state: str = ""


class _Lifecycle(msgspec.Struct, frozen=True, rename="pascal"):
    """In EventBridge's `detail`, or as Auto Scaling itself sends it, with the account and time."""

    lifecycle_transition: str = ""
    lifecycle_action_token: str = ""
    auto_scaling_group_name: str = ""
    lifecycle_hook_name: str = ""
    instance: str = msgspec.field(default="", name="EC2InstanceId")
    event: str = ""
    account_id: str = ""
    time: str = ""


class _Entity(msgspec.Struct, frozen=True, rename="camel"):
    entity_value: str = ""


class _Health(msgspec.Struct, frozen=True, rename="camel"):
    service: str = ""
    event_type_category: str = ""
    event_type_code: str = ""
    status_code: str = ""
    start_time: str = ""
    affected_entities: tuple[_Entity, ...] = ()


_ENVELOPE, _LIFECYCLE = Decoder(_Envelope), Decoder(_Lifecycle)
_INSTANCE_DETAIL, _HEALTH = Decoder(_Instance), Decoder(_Health)


def read_event(body: str, region: str, states: frozenset[str]) -> Event:
    """Event of a message body in a queue of this region. `states`: of instances, that end them. Raises ValueError."""
    if len(body) > LONGEST_BODY:
        raise ValueError(f"longer than {LONGEST_BODY // 1024} KiB")
    envelope = _decoded(_ENVELOPE, body)
    if not envelope.detail_type:
        return _of_auto_scaling(_decoded(_LIFECYCLE, body), region)
    if _ACCOUNT.fullmatch(envelope.account) is None:
        raise ValueError(f'"{harmless(envelope.account)}" is no account')
    issued = parse_time(envelope.time)
    event = Event(account=envelope.account, region=envelope.region, issued=issued)
    match envelope.source, envelope.detail_type:
        case "aws.ec2", "EC2 Spot Instance Interruption Warning":
            found = _decoded(_INSTANCE_DETAIL, envelope.detail)
            seconds = 0.0 if found.action == "hibernate" else SPOT_SECONDS
            return _with(event, _notice(Kind.SPOT, found.id, issued + seconds, issued, found.action))
        case "aws.ec2", "EC2 Instance Rebalance Recommendation":
            found = _decoded(_INSTANCE_DETAIL, envelope.detail)
            return _with(event, _notice(Kind.REBALANCE, found.id, None, issued))
        case "aws.ec2", "EC2 Instance State-change Notification":
            found = _decoded(_INSTANCE_DETAIL, envelope.detail)
            seconds = 0.0 if found.state in ("stopped", "terminated") else SHUTDOWN_SECONDS
            notice = _notice(Kind.STATE_CHANGE, found.id, issued + seconds, issued, found.state)
            return _with(event, notice) if found.state in states else event
        case "aws.autoscaling", _:
            return _with_hook(event, _decoded(_LIFECYCLE, envelope.detail))
        case "aws.health", "AWS Health Event":
            return _with(event, *_of_health(_decoded(_HEALTH, envelope.detail), issued))
    return event


def _of_auto_scaling(lifecycle: _Lifecycle, region: str) -> Event:
    """A notification that a hook sends to the queue itself."""
    if _ACCOUNT.fullmatch(lifecycle.account_id) is None:
        raise ValueError("neither an event of EventBridge nor a notification of Auto Scaling")
    event = Event(account=lifecycle.account_id, region=region, issued=parse_time(lifecycle.time))
    return event if lifecycle.event == TEST else _with_hook(event, lifecycle)


def _with_hook(event: Event, lifecycle: _Lifecycle) -> Event:
    if lifecycle.lifecycle_transition != TERMINATING:
        return event
    group, name, token = (
        _bounded(each)
        for each in (
            lifecycle.auto_scaling_group_name, lifecycle.lifecycle_hook_name, lifecycle.lifecycle_action_token
        )
    )  # fmt: skip
    if len(token) != TOKEN_LENGTH:  # Auto Scaling would refuse it each time
        raise ValueError(f'"{harmless(token)}" is no token of a lifecycle action')
    hook = Hook(group, name, token, lifecycle.instance)
    text = f"Auto Scaling group {group}"
    notice = _notice(Kind.SCALE_IN, lifecycle.instance, None, event.issued, text)
    return msgspec.structs.replace(event, notices=(notice,), hook=hook)


def _of_health(found: _Health, issued: float) -> tuple[Notice, ...]:
    if (found.service, found.event_type_category) != ("EC2", "scheduledChange") or found.status_code == "closed":
        return ()
    if len(found.affected_entities) > MOST_INSTANCES:
        raise ValueError(f"more than {MOST_INSTANCES} instances")
    at = _start_of(found.start_time)
    entities = (entity.entity_value for entity in found.affected_entities)
    return tuple(_notice(Kind.MAINTENANCE, each, at, issued, found.event_type_code) for each in entities)


def _start_of(text: str) -> float | None:
    """Start of a scheduled change, `Sat, 05 Jun 2016 15:10:09 GMT`; None if it is not known."""
    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f'startTime: "{harmless(text)}" is no time') from error


def _notice(kind: Kind, instance: str, at: float | None, issued: float, text: str = "") -> Notice:
    if _INSTANCE.fullmatch(instance) is None:
        raise ValueError(f'"{harmless(instance)}" is no instance')
    return Notice(kind=kind, instance=instance, at=at, issued=issued, text=text)


def _with(event: Event, *notices: Notice) -> Event:
    return msgspec.structs.replace(event, notices=notices)


def _bounded(text: str) -> str:
    if not 0 < len(text) <= 255 or not text.isprintable():
        raise ValueError(f'"{harmless(text)}" is no name of Auto Scaling')
    return text


def _decoded(decoder: Decoder[T], body: Any) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(harmless(str(error), 200)) from error
