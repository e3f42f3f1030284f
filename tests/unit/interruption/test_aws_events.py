"""Messages of AWS: what each means, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.aws_messages import (
    ACCOUNT,
    GROUP,
    HOOK,
    REGION,
    TOKEN,
    a_lifecycle_action,
    a_notification_of_auto_scaling,
    a_rebalance_recommendation,
    a_scheduled_change,
    a_spot_notice,
    a_state_change,
    an_event,
)

from gracectl.interruption.aws_events import Event, Hook, read_event
from gracectl.model.times import parse_time
from gracectl.policy.interruption import Kind

T = parse_time("2026-01-01T00:00:00Z")
I1, I2 = "i-0b662ef9931388ba0", "i-12345678"
FINAL = frozenset({"shutting-down", "terminated"})


def read(body: Any, states: frozenset[str] = FINAL) -> Event:
    return read_event(body if isinstance(body, str) else json.dumps(body), REGION, states)


@pytest.mark.parametrize(
    ("body", "kind", "at"),
    [
        (a_spot_notice(I1, T), Kind.SPOT, T + 120),
        (a_spot_notice(I1, T, "stop"), Kind.SPOT, T + 120),
        (a_spot_notice(I1, T, "hibernate"), Kind.SPOT, T),
        (a_rebalance_recommendation(I1, T), Kind.REBALANCE, None),
        (a_state_change(I1, T, "shutting-down"), Kind.STATE_CHANGE, T + 30),
        (a_state_change(I1, T, "terminated"), Kind.STATE_CHANGE, T),
        (a_lifecycle_action(I1, T), Kind.SCALE_IN, None),
        (a_notification_of_auto_scaling(I1, T), Kind.SCALE_IN, None),
        (a_scheduled_change(T, "Thu, 01 Jan 2026 15:10:09 GMT", I1), Kind.MAINTENANCE, T + 54609),
        (a_scheduled_change(T, "", I1), Kind.MAINTENANCE, None),
    ],
)
def test_what_a_message_means(body: dict[str, Any], kind: Kind, at: float | None) -> None:
    event = read(body)
    assert (event.account, event.region, event.issued) == (ACCOUNT, REGION, T)
    [notice] = event.notices
    assert (notice.kind, notice.instance, notice.at, notice.issued) == (kind, I1, at, T)
    is_hook = kind is Kind.SCALE_IN
    assert event.hook == (Hook(GROUP, HOOK, TOKEN, I1) if is_hook else None)


def test_a_scheduled_change_is_about_several_instances() -> None:
    event = read(a_scheduled_change(T, "Thu, 01 Jan 2026 15:10:09 GMT", I1, I2))
    assert [notice.instance for notice in event.notices] == [I1, I2]
    assert event.notices[0].text == "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"


@pytest.mark.parametrize(
    "body",
    [
        a_state_change(I1, T, "pending"),
        a_state_change(I1, T, "running"),
        a_state_change(I1, T, "stopping"),
        a_scheduled_change(T, "", I1, statusCode="closed"),
        a_scheduled_change(T, "", I1, eventTypeCategory="issue"),
        a_scheduled_change(T, "", "vol-1", service="EBS"),
        a_lifecycle_action(I1, T, LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING"),
        a_notification_of_auto_scaling(I1, T, Event="autoscaling:TEST_NOTIFICATION", LifecycleTransition=""),
        an_event("aws.s3", "Object Created", T, {"bucket": 1}),
        an_event("aws.ec2", "EBS Volume Notification", T, {"instance-id": 5}),
    ],
)
def test_what_ends_no_instance_has_no_notice(body: dict[str, Any]) -> None:
    assert read(body).notices == ()


def test_stopped_instances_end_if_the_options_say_so() -> None:
    [notice] = read(a_state_change(I1, T, "stopped"), FINAL | {"stopped"}).notices
    assert (notice.kind, notice.at) == (Kind.STATE_CHANGE, T)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "neither an event of EventBridge nor a notification"),
        ('{"hello": "world"}', "neither an event"),
        ("x" * 300_000, "longer than 256 KiB"),
        (a_spot_notice("i-nonsense", T), '"i-nonsense" is no instance'),
        (a_spot_notice("../../i-12345678", T), "is no instance"),
        (a_spot_notice("\x1b[2J", T), r'"\\x1b\[2J" is no instance'),
        (a_spot_notice(I1, T, account="me"), '"me" is no account'),
        (a_spot_notice(I1, T, time="soon"), "no RFC 3339 time"),
        ({**a_spot_notice(I1, T), "detail": []}, "Expected `object`"),
        ({**a_spot_notice(I1, T), "detail": {}}, "missing required field"),
        (a_scheduled_change(T, "soon", I1), '"soon" is no time'),
        (a_scheduled_change(T, "", *[I1] * 101), "more than 100 instances"),
        (a_lifecycle_action(I1, T, "short"), '"short" is no token of a lifecycle action'),
        (a_lifecycle_action(I1, T, LifecycleHookName=""), "is no name of Auto Scaling"),
        (a_lifecycle_action(I1, T, LifecycleHookName="a\nb"), "is no name of Auto Scaling"),
        (a_lifecycle_action(I1, T, AutoScalingGroupName="a" * 256), "is no name of Auto Scaling"),
        (a_notification_of_auto_scaling(I1, T, AccountId=""), "neither an event"),
    ],
)
def test_what_cannot_be_trusted_is_refused_with_its_reason(body: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(body)
