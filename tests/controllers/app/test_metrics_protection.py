"""What the metrics say of protection: how many pods are protected, for how long, and how long they have held drains."""

from __future__ import annotations

import socket

import aiohttp
import anyio
import pytest
from support.servers import free_port
from support.stage import a_pod_manifest, staged, the_settings
from support.stories import (
    HOUR,
    delete_at_start,
    edit,
    lasting,
    made_at_start,
    patiently,
    protected,
    until,
    with_grace_period,
)

from gracectl.app.controller import Controller
from gracectl.config import ConfigError
from gracectl.model import names
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry.metrics import PROTECTION_HELD

PODS, ENDING, LONGEST = (
    "gracectl_protected_pods",
    "gracectl_protected_pods_terminating",
    "gracectl_protection_remaining_seconds_max",
)


GAUGES = (PODS, ENDING, LONGEST)


def gauges(controller: Controller) -> dict[tuple[str, ...], float]:
    """By name and labels, what is not 0."""
    return {
        (sample.metric.name, *sample.labels): sample.value
        for sample in filter(None, controller.process.samples())
        if sample.metric.name in GAUGES and not isinstance(sample.value, Distribution) and sample.value
    }


def held(controller: Controller) -> dict[tuple[str, ...], tuple[int, float]]:
    """By labels, how many have held a drain, and for how long together."""
    return {
        sample.labels: (sum(sample.value.counts), sample.value.total)
        for sample in filter(None, controller.process.samples())
        if sample.metric is PROTECTION_HELD and isinstance(sample.value, Distribution) and any(sample.value.counts)
    }


async def test_protected_pods_are_counted_by_what_protects_them_and_until_when() -> None:
    settings = patiently(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with lasting(settings=settings) as stage, stage.controller() as controller:
        for name, pool in (("n1", "mine"), ("n2", "mine"), ("n3", "yours")):
            await stage.add_nodes(name, labels={"pool": pool})
        await controller.wait_live()
        stays = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
        await made_at_start(
            stage,
            *(protected(f"time-{n}", value) for n, value in enumerate(("1h", "2h", "90m"))),
            *(protected(f"ever-{n}", "true", node) for n, node in enumerate(("n1", "n2"))),
            protected("odd", "always", "n2"),
            a_pod_manifest("old", "n2", labels={names.DO_NOT_EVICT: "true"}),
            a_pod_manifest("no", "n2", labels={names.DO_NOT_EVICT: "false"}),
            protected("not-ours", "true", "n3"),
            protected("stays", "true", tolerations=stays),
            protected("done", "true", behaviour={"exit-seconds": 1}, restartPolicy="Never"),
            protected("going", "true", behaviour={"stop-seconds": 20}),
            protected("free", None),
        )
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/going")
        await until(stage, 10.0)
        expected: dict[tuple[str, ...], float] = {
            (PODS, "do-not-disrupt", "time"): 3,
            (PODS, "do-not-disrupt", "forever"): 2,
            (PODS, "do-not-disrupt", "invalid"): 1,
            (PODS, "do-not-evict", "forever"): 1,
        }
        assert gauges(controller) == {**expected, (LONGEST, "do-not-disrupt"): 2 * HOUR - 10}
        await stage.delete_node("n1")
        await until(stage, 20.0)
        expected |= {(ENDING, "do-not-disrupt", "time"): 3, (ENDING, "do-not-disrupt", "forever"): 1}
        assert gauges(controller) == {**expected, (LONGEST, "do-not-disrupt"): 2 * HOUR - 20}
        await until(stage, 1.5 * HOUR)
        expected |= {(PODS, "do-not-disrupt", "time"): 1, (ENDING, "do-not-disrupt", "time"): 1}
        assert gauges(controller) == {**expected, (LONGEST, "do-not-disrupt"): HOUR / 2}


async def test_how_long_each_has_held_the_drain_and_why_that_ended() -> None:
    async with lasting("n1", settings=with_grace_period("2h")) as stage, stage.settled() as controller:
        await made_at_start(
            stage,
            protected("elapsed", "1h"),
            protected("lifted", "true"),
            protected("shorter", "3h"),
            protected("finished", "3h", behaviour={"exit-seconds": 300}, restartPolicy="Never"),
            protected("deleted", "true"),
            protected("overdue", "3h", terminationGracePeriodSeconds=60),
            protected("stubborn", "true", terminationGracePeriodSeconds=60, behaviour={"ignores-sigterm": "true"}),
            protected("free", None),
        )
        await delete_at_start(stage, "n1")
        await until(stage, 100.0)
        await edit(stage, "lifted", None)
        await until(stage, 200.0)
        await edit(stage, "shorter", "2m")
        await until(stage, 400.0)
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/deleted")
        await stage.until_gone("n1")
        assert held(controller) == {
            ("do-not-disrupt", "elapsed"): (1, HOUR),
            ("do-not-disrupt", "lifted"): (2, 300.0),
            ("do-not-disrupt", "left"): (2, 700.0),
            ("do-not-disrupt", "deadline"): (2, pytest.approx(2 * (2 * HOUR - 60), abs=1.0)),
        }


async def test_after_a_restart_a_pod_has_held_the_drain_since_it_began() -> None:
    async with lasting("n1") as stage:
        async with stage.settled(mortal=True) as controller:
            await made_at_start(stage, protected("job", "4h"))
            await delete_at_start(stage, "n1")
            await until(stage, HOUR)
        async with stage.controller() as controller:
            await stage.until_gone("n1")
            assert held(controller) == {("do-not-disrupt", "elapsed"): (1, 4 * HOUR)}


@pytest.mark.real_time
async def test_they_are_served_as_long_as_the_controller_runs() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    async with staged("n1", settings=the_settings(metrics={"listen": f"127.0.0.1:{port}"})) as stage:
        async with stage.controller() as controller, aiohttp.ClientSession() as session:
            await stage.settle(controller)
            await stage.create(protected("job", "4h"))
            async with session.get(url) as answer:
                assert f'{PODS}{{kind="do-not-disrupt",until="time"}} 1.0\n' in await answer.text()
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url)


@pytest.mark.real_time
@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
async def test_an_address_that_cannot_be_had_is_told_with_its_field_before_anything_is_changed(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"{host}:{taken.getsockname()[1]}"
        async with staged("n1", settings=the_settings(metrics={"listen": listen})) as stage:
            controller = Controller(stage.settings, stage.transport.line(), stage.clock, stage.provider)
            with pytest.raises(ConfigError) as caught:
                await controller.run(anyio.Event())
            assert str(caught.value).startswith(f"metrics.listen: cannot listen on {listen}: ")
            assert str(caught.value).endswith("; choose another address")
            assert stage.transport.executed == []
            assert stage.provider.is_closed
