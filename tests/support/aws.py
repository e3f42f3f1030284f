"""AWS for tests: moto's server over HTTP, and a stand-in that answers call by call what a test has put down for it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache, cached_property
from typing import Any
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

import botocore.session
import msgspec
import pytest
from aiohttp import web
from botocore.config import Config
from botocore.loaders import JSONFileLoader
from moto import backends
from moto.moto_server.werkzeug_app import MotoRequestHandler
from moto.server import ThreadedMotoServer

from gracectl.cloud.aws.provider import AwsProvider
from support.servers import answering

REGION = "us-west-2"
ACCOUNT = "123456789012"
ZONE = "us-west-2a"
GROUP = "workers"
LOCAL = "127.0.0.1"

# Each session reads its own descriptions of the services, megabytes of JSON; here they are read once.
_load_file = cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda self, file_path: _load_file(file_path)
# For each request moto reads which services it has.
_MODULES = frozenset(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: _MODULES

QUIET = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL")


def give_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid credentials, and nothing of the environment of the tests."""
    take_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def take_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials anywhere, and no service of metadata that could have some."""
    for name in (*QUIET, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def provider_at(url: str, **options: Any) -> AwsProvider:
    """A provider that speaks to `url`, with options as the settings have them."""
    return AwsProvider(msgspec.convert({"endpointUrl": url, **options}, AwsProvider.Options))


@asynccontextmanager
async def at(url: str, **options: Any) -> AsyncIterator[AwsProvider]:
    """The same, closed at the end."""
    provider = provider_at(url, **options)
    try:
        yield provider
    finally:
        await provider.aclose()


def provider_id(name: str) -> str:
    return f"aws:///{ZONE}/{name}"


class Moto:
    """An account with instances."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = botocore.session.get_session()
        self.reset()

    def reset(self) -> None:
        """Empty the account, which is that of the whole process."""
        with urlopen(Request(f"{self.url}/moto-api/reset", method="POST")):
            pass

    @cached_property
    def _image(self) -> str:
        with self.client("ec2") as ec2:
            image: str = ec2.describe_images()["Images"][0]["ImageId"]
        return image

    @contextmanager
    def client(self, service: str) -> Iterator[Any]:
        config = Config(retries={"total_max_attempts": 1})
        with closing(
            self._session.create_client(service, region_name=REGION, endpoint_url=self.url, config=config)
        ) as client:
            yield client

    def run(self, count: int = 1) -> list[str]:
        """Start instances; returns their names."""
        with self.client("ec2") as ec2:
            made = ec2.run_instances(ImageId=self._image, MinCount=count, MaxCount=count)["Instances"]
        return [each["InstanceId"] for each in made]

    def protect(self, name: str, value: bool = True) -> None:
        """Put termination protection on an instance, or take it off."""
        with self.client("ec2") as ec2:
            ec2.modify_instance_attribute(InstanceId=name, DisableApiTermination={"Value": value})

    def state(self, name: str) -> str:
        with self.client("ec2") as ec2:
            (reservation,) = ec2.describe_instances(InstanceIds=[name])["Reservations"]
        state: str = reservation["Instances"][0]["State"]["Name"]
        return state

    def host_of(self, name: str) -> str:
        """Its private host name."""
        with self.client("ec2") as ec2:
            (reservation,) = ec2.describe_instances(InstanceIds=[name])["Reservations"]
        host: str = reservation["Instances"][0]["PrivateDnsName"]
        return host

    def forget(self, name: str) -> None:
        """As EC2 does an hour after the end of an instance."""
        from moto.ec2.models import ec2_backends  # slow to import

        for reservation in ec2_backends[ACCOUNT][REGION].reservations.values():
            reservation.instances = [each for each in reservation.instances if each.id != name]

    def stop(self, name: str) -> None:
        with self.client("ec2") as ec2:
            ec2.stop_instances(InstanceIds=[name])

    def run_group(self, size: int) -> list[str]:
        """Start an Auto Scaling group with so many instances; returns their names."""
        with self.client("autoscaling") as scaling:
            name, kind = "workers", "m5.large"
            scaling.create_launch_configuration(LaunchConfigurationName=name, ImageId=self._image, InstanceType=kind)
            scaling.create_auto_scaling_group(
                AutoScalingGroupName=GROUP, LaunchConfigurationName=name, MinSize=0, MaxSize=size,
                DesiredCapacity=size, AvailabilityZones=[ZONE],
            )  # fmt: skip
        return self.members()

    def wanted(self) -> int:
        """The size that the group is to have."""
        size: int = self._group()["DesiredCapacity"]
        return size

    def members(self) -> list[str]:
        return [each["InstanceId"] for each in self._group()["Instances"]]

    def _group(self) -> Any:
        with self.client("autoscaling") as scaling:
            return scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]


class _OnceOnly(MotoRequestHandler):
    """Leaves the headers Server and Date to moto, which writes them as well: a strict client takes none twice."""

    def send_response(self, code: int, message: str | None = None) -> None:
        self.send_response_only(code, message)


@contextmanager
def moto_server() -> Iterator[Moto]:
    """A server whose account is empty."""
    server = ThreadedMotoServer(LOCAL, 0, verbose=False)
    server.start()
    listening = server._server
    assert listening is not None
    listening.RequestHandlerClass = _OnceOnly
    _, port = server.get_host_and_port()
    try:
        yield Moto(f"http://{LOCAL}:{port}")
    finally:
        server.stop()
        listening.server_close()


class Answer(msgspec.Struct, frozen=True):
    """What the stand-in says to a call."""

    status: int
    body: str


def an_error(code: str, message: str = "said so", status: int = 400) -> Answer:
    return Answer(
        status,
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        "</Errors><RequestID>r-1</RequestID></Response>",
    )


def an_error_of_a_group(code: str, message: str = "said so", status: int = 400) -> Answer:
    """The same of Auto Scaling and STS, which say it otherwise."""
    return Answer(
        status,
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}"
        "</Message></Error><RequestId>r-1</RequestId></ErrorResponse>",
    )


def instances(*names: str, state: str = "running", group: str = "", token: str = "") -> Answer:
    """An answer of DescribeInstances."""
    tags = f"<tagSet><item><key>aws:autoscaling:groupName</key><value>{group}</value></item></tagSet>" if group else ""
    items = "".join(
        f"<item><instanceId>{name}</instanceId><instanceState><code>0</code><name>{state}</name></instanceState>{tags}"
        "</item>"
        for name in names
    )
    more = f"<nextToken>{token}</nextToken>" if token else ""
    return Answer(
        200,
        f"<DescribeInstancesResponse><reservationSet><item><instancesSet>{items}</instancesSet></item>"
        f"</reservationSet>{more}</DescribeInstancesResponse>",
    )


def members(**lifecycles: str) -> Answer:
    """An answer of DescribeAutoScalingInstances; `i_0123` stands for i-0123."""
    items = "".join(
        f"<member><InstanceId>{name.replace('_', '-')}</InstanceId><LifecycleState>{state}</LifecycleState></member>"
        for name, state in lifecycles.items()
    )
    return _result("DescribeAutoScalingInstances", f"<AutoScalingInstances>{items}</AutoScalingInstances>")


def identity(account: str) -> Answer:
    """An answer of GetCallerIdentity."""
    return _result("GetCallerIdentity", f"<Account>{account}</Account>")


def terminating() -> Answer:
    """An answer of TerminateInstances."""
    return Answer(200, "<TerminateInstancesResponse><instancesSet/></TerminateInstancesResponse>")


def terminating_in_group() -> Answer:
    """An answer of TerminateInstanceInAutoScalingGroup."""
    return _result("TerminateInstanceInAutoScalingGroup", "<Activity><ActivityId>a-1</ActivityId></Activity>")


def _result(operation: str, within: str) -> Answer:
    return Answer(200, f"<{operation}Response><{operation}Result>{within}</{operation}Result></{operation}Response>")


class StandIn:
    """Answers each operation with what `answers` has for it, in order; the last one again and again."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, deque[Answer]] = {}
        self.calls: list[dict[str, str]] = []

    def says(self, operation: str, *answers: Answer) -> None:
        self.answers[operation] = deque(answers)

    def calls_of(self, operation: str) -> list[dict[str, str]]:
        return [call for call in self.calls if call["Action"] == operation]

    async def handle(self, request: web.Request) -> web.Response:
        call = {name: str(value) for name, value in (await request.post()).items()}
        self.calls.append(call)
        answers = self.answers[call["Action"]]
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        return web.Response(status=answer.status, text=answer.body, content_type="text/xml")


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    """It, listening."""
    stand_in = StandIn()
    async with answering(stand_in.handle) as port:
        stand_in.url = f"http://{LOCAL}:{port}"
        yield stand_in
