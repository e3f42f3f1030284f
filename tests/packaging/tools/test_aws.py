"""examples/aws: queue, rules and policy in two forms that say the same; what the program calls is what they allow."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml
from support.aws_messages import (
    a_lifecycle_action,
    a_rebalance_recommendation,
    a_scheduled_change,
    a_spot_notice,
    a_state_change,
)

from gracectl.interruption.aws import AwsSource

ROOT = Path(__file__).parents[3]
TEMPLATE, TERRAFORM = ROOT / "examples/aws/queue.yaml", ROOT / "examples/aws/main.tf"
INSTANCE = "i-12345678"


class _Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms: `!GetAtt a.b` is {"!GetAtt": "a.b"}."""


def _function(loader: Any, tag: str, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {f"!{tag}": loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {f"!{tag}": loader.construct_sequence(node, deep=True)}
    return {f"!{tag}": loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


def template() -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(TEMPLATE.read_text(), _Loader)  # a SafeLoader
    return document


def resources(type_: str) -> list[dict[str, Any]]:
    return [each["Properties"] for each in template()["Resources"].values() if each["Type"] == type_]


def matches(pattern: Any, event: Any) -> bool:
    """As EventBridge matches: each field of the pattern lists the values that an event may have."""
    if isinstance(pattern, dict):
        if "!If" in pattern:
            return matches(pattern["!If"][2], event)  # without the parameter
        return "!Ref" in pattern or all(key in event and matches(value, event[key]) for key, value in pattern.items())
    return event in pattern


@pytest.mark.parametrize(
    ("event", "is_sent"),
    [
        (a_spot_notice(INSTANCE, 0.0), True),
        (a_rebalance_recommendation(INSTANCE, 0.0), True),
        (a_state_change(INSTANCE, 0.0, "shutting-down"), True),
        (a_state_change(INSTANCE, 0.0, "terminated"), True),
        (a_state_change(INSTANCE, 0.0, "stopping"), False),
        (a_state_change(INSTANCE, 0.0, "running"), False),
        (a_scheduled_change(0.0, "", INSTANCE), True),
        (a_scheduled_change(0.0, "", INSTANCE, service="RDS"), False),
        (a_lifecycle_action(INSTANCE, 0.0), True),
    ],
)
def test_the_rules_send_what_the_source_reads(event: dict[str, Any], is_sent: bool) -> None:
    patterns = [rule["EventPattern"] for rule in resources("AWS::Events::Rule")]
    assert any(matches(pattern, event) for pattern in patterns) is is_sent


def test_all_references_are_to_something() -> None:
    known = template()
    text = TEMPLATE.read_text()
    names = {*known["Resources"], *known["Parameters"], "AWS::AccountId", "AWS::NoValue"}
    assert {name.split(".")[0] for name in re.findall(r"!(?:Ref|GetAtt) ([\w:]+)", text)} <= names
    assert set(re.findall(r"Condition: (\w+)", text)) | set(re.findall(r"!If\s+- (\w+)", text)) == {
        *known["Conditions"]
    }


def test_the_policy_allows_what_the_program_calls_and_nothing_else() -> None:
    source = (ROOT / "gracectl/interruption/aws.py").read_text()
    operations = set(re.findall(r'"((?:Receive|Delete|Change|Describe|Record|Complete)[A-Z]\w+)"', source))
    [policy] = resources("AWS::IAM::RolePolicy")
    allowed = set()
    for statement in policy["PolicyDocument"]["Statement"]:
        actions = statement["Action"]
        allowed |= {*(actions if isinstance(actions, list) else [actions])}
    assert {action.partition(":")[2] for action in allowed} == operations
    text = TERRAFORM.read_text()
    assert set(re.findall(r'"((?:sqs|autoscaling):[A-Z]\w+)"', text)) == allowed | {"sqs:SendMessage"}


def test_both_forms_have_the_same_queue_and_rules() -> None:
    text = TERRAFORM.read_text()
    queue = next(each for each in resources("AWS::SQS::Queue") if "RedrivePolicy" in each)
    for name, value in (
        ("max_message_size", queue["MaximumMessageSize"]),
        ("message_retention_seconds", queue["MessageRetentionPeriod"]),
        ("receive_wait_time_seconds", queue["ReceiveMessageWaitTimeSeconds"]),
        ("visibility_timeout_seconds", queue["VisibilityTimeout"]),
        ("maxReceiveCount", queue["RedrivePolicy"]["maxReceiveCount"]),
    ):
        assert re.search(rf"\b{name}\s+= {value}\b", text), name
    types = {rule["EventPattern"]["detail-type"][0] for rule in resources("AWS::Events::Rule")}
    assert types == set(re.findall(r'detail-type\s+= \["([^"]+)"\]', text))
    assert (
        AwsSource.Options(queue_url="https://sqs.us-west-2.amazonaws.com/123456789012/q").visibility_seconds
        == (queue["VisibilityTimeout"])
    )


def test_the_documents_can_be_written_as_json() -> None:
    json.dumps(template())


@pytest.mark.skipif(which("terraform") is None, reason="needs terraform")
def test_terraform_has_its_form() -> None:
    assert subprocess.run(["terraform", "fmt", "-check", TERRAFORM.parent], check=False).returncode == 0
