"""Messages about instances, as AWS writes them."""

from __future__ import annotations

from typing import Any

from gracectl.model.times import format_time

REGION = "us-west-2"
ACCOUNT = "123456789012"
GROUP = "workers"
HOOK = "drain"
TOKEN = "0befcbdb-6ecd-498a-9ff7-ae9b54447cd6"


def an_event(source: str, type_: str, at: float, detail: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An event of EventBridge, from this account and region unless said otherwise."""
    return {
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": type_,
        "source": source,
        "account": ACCOUNT,
        "time": format_time(at),
        "region": REGION,
        "resources": [],
        "detail": detail,
        **fields,
    }


def a_spot_notice(instance: str, at: float, action: str = "terminate", **fields: Any) -> dict[str, Any]:
    detail = {"instance-id": instance, "instance-action": action}
    return an_event("aws.ec2", "EC2 Spot Instance Interruption Warning", at, detail, **fields)


def a_rebalance_recommendation(instance: str, at: float) -> dict[str, Any]:
    return an_event("aws.ec2", "EC2 Instance Rebalance Recommendation", at, {"instance-id": instance})


def a_state_change(instance: str, at: float, state: str) -> dict[str, Any]:
    return an_event("aws.ec2", "EC2 Instance State-change Notification", at, {"instance-id": instance, "state": state})


def a_scheduled_change(at: float, start: str, *instances: str, **fields: Any) -> dict[str, Any]:
    detail = {
        "eventArn": "arn:aws:health:us-west-2::event/EC2/x",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "statusCode": "upcoming",
        "startTime": start,
        "eventDescription": [{"language": "en_US", "latestDescription": "A description"}],
        "affectedEntities": [{"entityValue": instance, "tags": {}} for instance in instances],
        **fields,
    }
    return an_event("aws.health", "AWS Health Event", at, detail)


def a_lifecycle_action(instance: str, at: float, token: str = TOKEN, **fields: Any) -> dict[str, Any]:
    detail = {
        "LifecycleActionToken": token,
        "AutoScalingGroupName": GROUP,
        "LifecycleHookName": HOOK,
        "EC2InstanceId": instance,
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        **fields,
    }
    return an_event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", at, detail)


def a_notification_of_auto_scaling(instance: str, at: float, **fields: Any) -> dict[str, Any]:
    """What a hook sends to the queue itself."""
    return {
        "Origin": "AutoScalingGroup",
        "LifecycleHookName": HOOK,
        "Destination": "EC2",
        "AccountId": ACCOUNT,
        "RequestId": "4f5d6f4a",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
        "AutoScalingGroupName": GROUP,
        "Service": "AWS Auto Scaling",
        "Time": format_time(at),
        "EC2InstanceId": instance,
        "LifecycleActionToken": TOKEN,
        **fields,
    }
