"""The provider for EC2 against a server that keeps an account, over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from support.aws import ACCOUNT, GROUP, Moto, at, give_credentials, moto_server, provider_id

from gracectl.cloud.aws.clients import Call, Clients
from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)

pytestmark = pytest.mark.real_time

UNKNOWN = provider_id("i-0123456789abcdef0")


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with moto_server() as moto:
        yield moto


@pytest.fixture
def moto(server: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    give_credentials(monkeypatch)
    server.reset()
    return server


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operation was called."""
    counts: Counter[str] = Counter()
    ask = Clients.request

    async def counted(self: Clients, call: Call, type_: Any, **arguments: object) -> Any:
        counts[call.operation] += 1
        return await ask(self, call, type_, **arguments)

    monkeypatch.setattr(Clients, "request", counted)
    return counts


async def test_the_life_of_an_instance(moto: Moto) -> None:
    (name,) = moto.run()
    async with at(moto.url) as provider:
        assert await provider.state(provider_id(name)) is InstanceState.RUNNING
        await provider.terminate(provider_id(name))
        assert moto.state(name) == "terminated"
        assert await provider.state(provider_id(name)) is InstanceState.GONE
        with pytest.raises(InstanceGone, match=f"instance {name} is terminated"):
            await provider.terminate(provider_id(name))


async def test_an_instance_of_another_node_is_not_ended(moto: Moto) -> None:
    (name,) = moto.run()
    theirs, ours = NodeIdentity("ip-10-9-9-9.ec2.internal"), NodeIdentity(moto.host_of(name))
    async with at(moto.url) as provider:
        with pytest.raises(ProviderRefused, match=f"instance {name} belongs to another node"):
            await provider.terminate(provider_id(name), theirs)
        with pytest.raises(ProviderRefused, match="zone us-west-2c"):
            await provider.terminate(f"aws:///us-west-2c/{name}", ours)
        assert moto.state(name) == "running"
        await provider.terminate(provider_id(name), ours)
        assert moto.state(name) == "terminated"


async def test_nodes_whose_names_are_none_of_ec2_need_not_be_verified(moto: Moto) -> None:
    (name,) = moto.run()
    async with at(moto.url, verifyNode=False) as provider:
        await provider.terminate(provider_id(name), NodeIdentity("worker"))
        assert moto.state(name) == "terminated"


async def test_a_stopped_instance_is_still_to_be_ended(moto: Moto) -> None:
    (name,) = moto.run()
    moto.stop(name)
    async with at(moto.url) as provider:
        assert await provider.state(provider_id(name)) is InstanceState.RUNNING
        await provider.terminate(provider_id(name))
    assert moto.state(name) == "terminated"


async def test_an_unknown_instance_is_gone_where_the_account_is_proven(moto: Moto) -> None:
    async with at(moto.url, accountId=ACCOUNT) as provider:
        assert await provider.state(UNKNOWN) is InstanceState.GONE
        with pytest.raises(InstanceGone, match="no such instance"):
            await provider.terminate(UNKNOWN)


async def test_elsewhere_an_unknown_instance_may_be_one_of_another_account(moto: Moto) -> None:
    async with at(moto.url) as provider:
        for ask in (provider.state, provider.terminate):
            with pytest.raises(ProviderRefused, match=r"to another account; set provider\.options\.accountId"):
                await ask(UNKNOWN)


async def test_one_that_was_there_and_is_not_any_more_is_gone(moto: Moto) -> None:
    (name,) = moto.run()
    async with at(moto.url) as provider:
        assert await provider.state(provider_id(name)) is InstanceState.RUNNING
        moto.forget(name)
        assert await provider.state(provider_id(name)) is InstanceState.GONE


async def test_termination_protection_is_refused_with_the_command_that_takes_it_off(moto: Moto) -> None:
    (name,) = moto.run()
    moto.protect(name)
    async with at(moto.url) as provider:
        with pytest.raises(ProviderRefused) as caught:
            await provider.terminate(provider_id(name))
        assert caught.value.remedy == (
            "disable its termination protection: aws ec2 modify-instance-attribute --region us-west-2 "
            f"--instance-id {name} --no-disable-api-termination"
        )
        assert moto.state(name) == "running"
        moto.protect(name, False)
        await provider.terminate(provider_id(name))
    assert moto.state(name) == "terminated"


async def test_a_hundred_polls_are_a_call_or_two(moto: Moto, calls: Counter[str]) -> None:
    names = moto.run(100)
    states = []

    async def poll(name: str) -> None:
        states.append(await provider.state(provider_id(name)))

    async with at(moto.url) as provider, anyio.create_task_group() as group:
        for name in names:
            group.start_soon(poll, name)
    assert states == [InstanceState.RUNNING] * 100
    assert 1 <= calls["DescribeInstances"] <= 3  # more than one where the machine is slow


async def test_one_that_may_not_be_ended_holds_none_of_the_others_up(moto: Moto, calls: Counter[str]) -> None:
    names = moto.run(6)
    moto.protect(names[3])
    outcomes: dict[str, ProviderError | None] = {}

    async def end(instance: str) -> None:
        outcomes[instance] = None
        try:
            await provider.terminate(provider_id(instance))
        except ProviderError as error:
            outcomes[instance] = error

    ghost = "i-0123456789abcdef0"
    async with at(moto.url, accountId=ACCOUNT) as provider, anyio.create_task_group() as group:
        for name in (*names, ghost):
            group.start_soon(end, name)
    assert isinstance(outcomes.pop(ghost), InstanceGone)
    assert isinstance(outcomes.pop(names[3]), ProviderRefused)
    assert list(outcomes.values()) == [None] * 5
    assert [moto.state(name) for name in names] == ["terminated"] * 3 + ["running"] + ["terminated"] * 2


@pytest.mark.parametrize(("mode", "wanted", "asked"), [("keep", 3, 1), ("lower", 2, 1), ("ignore", 3, 0)])
async def test_an_instance_of_a_group_is_ended_as_the_settings_say(
    moto: Moto, calls: Counter[str], mode: str, wanted: int, asked: int
) -> None:
    first, *others = moto.run_group(3)
    async with at(moto.url, autoScalingGroups=mode) as provider:
        await provider.terminate(provider_id(first))
        assert await provider.state(provider_id(first)) is InstanceState.GONE
    assert moto.state(first) == "terminated"
    assert moto.wanted() == wanted, GROUP
    assert set(others) <= set(moto.members())
    assert calls["TerminateInstanceInAutoScalingGroup"] == asked
    assert calls["TerminateInstances"] == 1 - asked


@pytest.mark.parametrize("account", ["123456789012", "210987654321"])
async def test_the_account_is_verified_once(moto: Moto, calls: Counter[str], account: str) -> None:
    async with at(moto.url, accountId=account) as provider:
        for _ in range(2):
            if account == "123456789012":  # which is that of moto
                assert await provider.state(UNKNOWN) is InstanceState.GONE
                continue
            with pytest.raises(ProviderRefused, match=rf"to account 123456789012, but .*accountId is {account}"):
                await provider.state(UNKNOWN)
            with pytest.raises(ProviderRefused, match="accountId"):
                await provider.terminate(UNKNOWN)
    assert calls["GetCallerIdentity"] == 1


async def test_what_is_no_instance_of_ec2_is_refused_without_any_call(moto: Moto, calls: Counter[str]) -> None:
    async with at(moto.url) as provider:
        for provider_call in (provider.state, provider.terminate):
            with pytest.raises(ProviderRefused, match="Fargate"):
                await provider_call("aws:///us-west-2a/fargate-ip-10-0-0-1")
    assert not calls


async def test_closing_twice_and_unused_is_harmless_and_nothing_is_asked_afterwards(moto: Moto) -> None:
    async with at(moto.url) as unused:
        await unused.aclose()
        with pytest.raises(ProviderUnavailable, match="closed"):
            await unused.state(UNKNOWN)
    async with at(moto.url) as provider:
        with pytest.raises(ProviderRefused):
            await provider.state(UNKNOWN)
        await provider.aclose()
        with pytest.raises(ProviderUnavailable, match="closed"):
            await provider.terminate(UNKNOWN)
