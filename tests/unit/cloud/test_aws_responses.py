"""What the provider for EC2 makes of answers that a real account gives on its bad days."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import anyio
import pytest
from support.aws import (
    ACCOUNT,
    Answer,
    StandIn,
    an_error,
    an_error_of_a_group,
    at,
    give_credentials,
    identity,
    instances,
    members,
    provider_id,
    stand_in,
    take_credentials,
    terminating,
    terminating_in_group,
)

from gracectl.cloud.aws import clients
from gracectl.cloud.provider import InstanceGone, InstanceState, ProviderRefused, ProviderUnavailable

pytestmark = pytest.mark.real_time

NAME = "i-0123456789abcdef0"
OTHER = "i-0123456789abcdef1"
ID = provider_id(NAME)
IN_GROUP = "TerminateInstanceInAutoScalingGroup"


@pytest.fixture
async def aws(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    give_credentials(monkeypatch)
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    async with stand_in() as aws:
        aws.says("DescribeInstances", instances(NAME))
        aws.says("TerminateInstances", terminating())
        yield aws


@pytest.mark.parametrize("answer", [
    an_error("RequestLimitExceeded", status=503), an_error("Throttling"), an_error("InternalError", status=500),
    an_error("Unavailable", status=503), an_error("RequestExpired"), an_error("ExpiredToken"),
    an_error("SomethingNew"), Answer(502, "<html>Bad Gateway</html>"), Answer(200, "<html>welcome</html>"),
    Answer(200, "nothing like it"),
], ids=lambda answer: f"{answer.status} {answer.body[:60]}")  # fmt: skip
async def test_what_may_pass_is_unavailable(aws: StandIn, answer: Answer) -> None:
    aws.says("TerminateInstances", answer)
    async with at(aws.url) as provider:
        with pytest.raises(ProviderUnavailable, match=f"^ec2:TerminateInstances of {NAME} in us-west-2: "):
            await provider.terminate(ID)
        aws.says("DescribeInstances", answer)
        with pytest.raises(ProviderUnavailable, match=f"^ec2:DescribeInstances of {NAME} in us-west-2: "):
            await provider.state(ID)


@pytest.mark.parametrize("operation", ["DescribeAutoScalingInstances", IN_GROUP, "GetCallerIdentity"])
async def test_a_page_of_some_proxy_is_no_answer_of_a_group_either(grouped: StandIn, operation: str) -> None:
    grouped.says("GetCallerIdentity", identity("123456789012"))
    grouped.says(operation, Answer(200, "<html>welcome</html>"))
    async with at(grouped.url, accountId=ACCOUNT) as provider:
        with pytest.raises(ProviderUnavailable, match=operation):
            await provider.terminate(ID)
    assert grouped.calls_of("TerminateInstances") == []


async def test_what_is_throttled_is_asked_again_at_once(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ATTEMPTS", 3)
    aws.says("DescribeInstances", an_error("RequestLimitExceeded", status=503), instances(NAME))
    async with at(aws.url) as provider:
        assert await provider.state(ID) is InstanceState.RUNNING
    assert len(aws.calls) == 2


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "AccessDenied", "AccessDeniedException"])
@pytest.mark.parametrize("operation", ["DescribeInstances", "TerminateInstances"])
async def test_a_missing_right_is_refused_with_the_name_of_the_action(aws: StandIn, code: str, operation: str) -> None:
    said = "You are not authorized. Encoded authorization failure message: " + "x" * 900
    aws.says(operation, an_error(code, said, 403))
    async with at(aws.url) as provider:
        with pytest.raises(ProviderRefused) as caught:
            await provider.terminate(ID)
    assert caught.value.remedy == f"allow ec2:{operation} in the IAM policy of gracectl's role"
    assert str(caught.value).startswith(f"ec2:{operation} of {NAME} in us-west-2: {code}: You are not authorized.; ")


async def test_the_protection_of_a_foreign_instance_is_not_removed(aws: StandIn) -> None:
    aws.says("TerminateInstances", an_error("OperationNotPermitted", "managed by eks.amazonaws.com"))
    async with at(aws.url) as provider:
        with pytest.raises(ProviderRefused, match=r"managed by eks.*; terminate it where it is managed"):
            await provider.terminate(ID)


@pytest.mark.parametrize("code", ["AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch"])
async def test_unknown_credentials_are_refused(aws: StandIn, code: str) -> None:
    aws.says("DescribeInstances", an_error(code, status=401))
    async with at(aws.url) as provider:
        with pytest.raises(ProviderRefused, match="AWS rejects these credentials: give the ServiceAccount"):
            await provider.state(ID)


async def test_a_malformed_id_is_refused_and_an_unknown_one_is_gone(aws: StandIn) -> None:
    async with at(aws.url) as provider:
        aws.says("TerminateInstances", an_error("InvalidInstanceID.Malformed"))
        with pytest.raises(ProviderRefused, match=r"check spec\.providerID"):
            await provider.terminate(ID)
        aws.says("TerminateInstances", an_error("InvalidInstanceID.NotFound", f"{NAME} does not exist"))
        with pytest.raises(InstanceGone, match="does not exist"):
            await provider.terminate(ID)


async def test_no_credentials_at_all_are_refused(aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    take_credentials(monkeypatch)
    async with at(aws.url) as provider:
        with pytest.raises(ProviderRefused, match=r"no credentials: .*; give the ServiceAccount of gracectl a role"):
            await provider.state(ID)
    async with at(aws.url, profile="missing") as provider:
        with pytest.raises(ProviderRefused, match=r"no credentials: .*missing.*provider\.options\.profile"):
            await provider.state(ID)
    assert not aws.calls


async def test_a_role_that_may_not_be_assumed_is_refused_and_a_token_that_is_not_there_yet_is_awaited(
    aws: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    take_credentials(monkeypatch)
    token = f"{tmp_path}/token"
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/gracectl")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    aws.says("AssumeRoleWithWebIdentity", an_error_of_a_group("AccessDenied", "Not authorized", 403))
    async with at(aws.url) as provider:
        with pytest.raises(ProviderUnavailable, match="No such file"):
            await provider.state(ID)
        await anyio.Path(token).write_text("a token")
        with pytest.raises(ProviderRefused, match="trust policy of the role allow sts:AssumeRoleWithWebIdentity"):
            await provider.state(ID)


@pytest.mark.parametrize("endpoint", ["http://", "https://exa mple"])
async def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    give_credentials(monkeypatch)
    async with at(endpoint) as provider:
        with pytest.raises(ProviderRefused, match=r"check provider\.options\.endpointUrl"):
            await provider.state(ID)


async def test_no_server_and_a_silent_server_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with at(url) as provider:
            with pytest.raises(ProviderUnavailable, match="no response"):
                await provider.state(ID)
        deaf.listen()
        async with at(url, timeoutSeconds=1.5) as provider:
            with pytest.raises(ProviderUnavailable, match=r"no response|no answer of AWS in 1\.5 s"):
                await provider.state(ID)


@pytest.mark.parametrize(("state", "expected"), [
    ("pending", InstanceState.RUNNING), ("running", InstanceState.RUNNING), ("stopping", InstanceState.RUNNING),
    ("stopped", InstanceState.RUNNING), ("shutting-down", InstanceState.ENDING), ("terminated", InstanceState.GONE),
    ("dreaming", InstanceState.UNKNOWN),
])  # fmt: skip
async def test_the_states_of_an_instance(aws: StandIn, state: str, expected: InstanceState) -> None:
    aws.says("DescribeInstances", instances(NAME, state=state))
    async with at(aws.url) as provider:
        assert await provider.state(ID) is expected
        if expected is InstanceState.GONE:
            with pytest.raises(InstanceGone):
                await provider.terminate(ID)
        else:
            await provider.terminate(ID)
    is_left_alone = expected in (InstanceState.ENDING, InstanceState.GONE)
    assert len(aws.calls_of("TerminateInstances")) == (not is_left_alone)


async def test_all_pages_of_an_answer_are_read(aws: StandIn) -> None:
    aws.says("DescribeInstances", instances(OTHER, token="more"), instances(NAME, state="shutting-down"))
    async with at(aws.url) as provider:
        assert await provider.state(ID) is InstanceState.ENDING
    assert [call.get("NextToken") for call in aws.calls] == [None, "more"]


async def test_the_account_is_requested_again_while_it_is_unknown(aws: StandIn) -> None:
    aws.says("GetCallerIdentity", an_error_of_a_group("ServiceUnavailable", status=503), identity("123456789012"))
    async with at(aws.url, accountId=ACCOUNT) as provider:
        with pytest.raises(ProviderUnavailable, match="sts:GetCallerIdentity in us-west-2"):
            await provider.state(ID)
        assert aws.calls_of("DescribeInstances") == []
        assert await provider.state(ID) is InstanceState.RUNNING


# -- Auto Scaling groups ---------------------------------------------------------------------------------------------


@pytest.fixture
def grouped(aws: StandIn) -> StandIn:
    aws.says("DescribeInstances", instances(NAME, group="workers"))
    aws.says("DescribeAutoScalingInstances", members(**{NAME.replace("-", "_"): "InService"}))
    aws.says(IN_GROUP, terminating_in_group())
    return aws


@pytest.mark.parametrize("lifecycle", ["Terminating", "Terminating:Wait", "Warmed:Terminating:Proceed", "Terminated"])
async def test_a_group_that_ends_its_instance_already_is_not_asked_twice(grouped: StandIn, lifecycle: str) -> None:
    after = members(**{NAME.replace("-", "_"): lifecycle})
    grouped.says("DescribeAutoScalingInstances", members(**{NAME.replace("-", "_"): "InService"}), after)
    async with at(grouped.url, autoScalingGroups="lower") as provider:
        for _ in range(3):
            await provider.terminate(ID)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(provider.terminate, ID)
    assert [call["ShouldDecrementDesiredCapacity"] for call in grouped.calls_of(IN_GROUP)] == ["true"]
    assert grouped.calls_of("TerminateInstances") == []


async def test_two_that_ask_at_the_same_time_do_not_lower_the_group_twice(grouped: StandIn) -> None:
    now, after = (members(**{NAME.replace("-", "_"): state}) for state in ("InService", "Terminating"))
    grouped.says("DescribeAutoScalingInstances", now, after)
    async with at(grouped.url, autoScalingGroups="lower") as provider, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(provider.terminate, ID)
    assert len(grouped.calls_of(IN_GROUP)) == 1


async def test_a_lost_answer_does_not_lower_the_group_twice(grouped: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ATTEMPTS", 3)
    grouped.says(IN_GROUP, an_error_of_a_group("InternalFailure", status=500))
    async with at(grouped.url, autoScalingGroups="lower") as provider:
        with pytest.raises(ProviderUnavailable, match=f"autoscaling:{IN_GROUP}"):
            await provider.terminate(ID)
        assert len(grouped.calls_of(IN_GROUP)) == 1
        grouped.says("DescribeAutoScalingInstances", members(**{NAME.replace("-", "_"): "Terminating"}))
        await provider.terminate(ID)
    assert len(grouped.calls_of(IN_GROUP)) == 1


@pytest.mark.parametrize("lifecycles", [{}, {NAME.replace("-", "_"): "Detaching"}], ids=["left", "leaving"])
async def test_an_instance_that_leaves_its_group_ends_by_itself(grouped: StandIn, lifecycles: dict[str, str]) -> None:
    grouped.says("DescribeAutoScalingInstances", members(**lifecycles))
    async with at(grouped.url) as provider:
        await provider.terminate(ID)
    assert len(grouped.calls_of("TerminateInstances")) == 1
    assert grouped.calls_of(IN_GROUP) == []


@pytest.mark.parametrize(("mode", "remedy"), [
    ("lower", "lower the minimum size of workers, or set provider.options.autoScalingGroups to keep"),
    (
            "keep",
            f"aws autoscaling detach-instances --region us-west-2 --instance-ids {NAME} "
            "--auto-scaling-group-name workers --no-should-decrement-desired-capacity",
        ),
])  # fmt: skip
async def test_a_group_that_would_be_too_small_is_refused(grouped: StandIn, mode: str, remedy: str) -> None:
    said = "Currently, desiredSize equals minSize (2). Terminating instance without replacement will violate group's"
    grouped.says(IN_GROUP, an_error_of_a_group("ValidationError", said))
    async with at(grouped.url, autoScalingGroups=mode) as provider:
        with pytest.raises(ProviderRefused) as caught:
            await provider.terminate(ID)
    assert said in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("code", "said"), [
    ("ValidationError", f"Instance Id not found - No managed instance found for instance ID: {NAME}"),
    ("ScalingActivityInProgress", "wait"), ("ResourceContention", "wait"),
])  # fmt: skip
async def test_what_a_group_does_not_do_just_now_is_tried_again(grouped: StandIn, code: str, said: str) -> None:
    grouped.says(IN_GROUP, an_error_of_a_group(code, said))
    async with at(grouped.url) as provider:
        with pytest.raises(ProviderUnavailable, match=said):
            await provider.terminate(ID)


async def test_a_group_that_may_not_be_asked_names_its_own_action(grouped: StandIn) -> None:
    grouped.says("DescribeAutoScalingInstances", an_error_of_a_group("AccessDenied", status=403))
    async with at(grouped.url) as provider:
        with pytest.raises(ProviderRefused, match="allow autoscaling:DescribeAutoScalingInstances in the IAM policy"):
            await provider.terminate(ID)
