"""A queue of SQS on moto, and the calls of lifecycle hooks that moto lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
from moto.autoscaling.exceptions import AutoscalingClientError
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import EmptyResult

from gracectl.interruption.aws import AwsSource
from support.aws import GROUP, REGION, Moto
from support.aws_messages import HOOK


class LifecycleCalls:
    """What Auto Scaling was asked about lifecycle actions; each is completed once."""

    def __init__(self) -> None:
        self.heartbeats: list[str] = []
        self.completed: list[tuple[str, str]] = []
        self.failures: list[str] = []
        """Codes with which the next completions fail."""

    def complete(self, params: dict[str, Any]) -> None:
        if self.failures:
            raise AutoscalingClientError(self.failures.pop(0), "said so")
        token = params["LifecycleActionToken"]
        if any(token == each for each, _ in self.completed):
            raise AutoscalingClientError(
                "ValidationError", f"No active Lifecycle Action found with instance ID {params['InstanceId']}"
            )
        self.completed.append((token, params["LifecycleActionResult"]))


@contextmanager
def lifecycle_calls() -> Iterator[LifecycleCalls]:
    """Calls of lifecycle hooks, as moto would have them."""
    calls = LifecycleCalls()

    def complete(response: Any) -> EmptyResult:
        calls.complete(response._get_params())
        return EmptyResult()

    def beat(response: Any) -> EmptyResult:
        calls.heartbeats.append(response._get_params()["LifecycleActionToken"])
        return EmptyResult()

    with (
        patch.object(AutoScalingResponse, "complete_lifecycle_action", complete, create=True),
        patch.object(AutoScalingResponse, "record_lifecycle_action_heartbeat", beat, create=True),
    ):
        yield calls


class Queue:
    """A queue with dead letters after three receptions."""

    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        with moto.client("sqs") as sqs:
            dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
            self.url = sqs.create_queue(QueueName="notices", Attributes={"RedrivePolicy": redrive})["QueueUrl"]

    def source(self, **options: Any) -> AwsSource:
        """A source that polls it without waiting."""
        given = {"queueUrl": self.url, "region": REGION, "endpointUrl": self._moto.url, "waitSeconds": 0}
        return AwsSource(msgspec.convert({**given, "visibilitySeconds": 10, **options}, AwsSource.Options))

    def send(self, *messages: Any) -> None:
        """Send messages: texts as they are, all else as JSON."""
        with self._moto.client("sqs") as sqs:
            for message in messages:
                sqs.send_message(
                    QueueUrl=self.url, MessageBody=message if isinstance(message, str) else json.dumps(message)
                )

    def left(self) -> int:
        """Messages that were not deleted, visible or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        with self._moto.client("sqs") as sqs:
            attributes = sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(attributes[name]) for name in names)

    def add_hook(self, **timeouts: int) -> None:
        """A group with a lifecycle hook for terminations."""
        with self._moto.client("autoscaling") as scaling:
            scaling.put_lifecycle_hook(
                AutoScalingGroupName=GROUP,
                LifecycleHookName=HOOK,
                LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
                **timeouts,
            )
