"""What tenants, kubelets and foreign clients may send to a controller, and the drain of another node beside it.

In each story there is one node that is attacked and one that is not; both are deleted. However the first fares, the
second is drained, the process lives, leads on, and holds less than the chart lets it. Nothing here measures time.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson
import pytest
from e2e_support import manifests
from e2e_support.balancer import HOST
from e2e_support.flood import unverified
from e2e_support.forger import EVICTION, LEASE
from e2e_support.names import LABEL
from e2e_support.siege import (
    AGAIN,
    MARK,
    MOST_MEMORY,
    PATIENCE,
    VICTIM,
    Attack,
    Siege,
    annotated,
    besieged,
    chart_access,
    lead,
    marked,
    node,
    until_told,
)
from e2e_support.story import Story
from kubesim.controllers.objects import is_terminating
from kubesim.server.api import JsonObject
from support.admission import a_review
from support.servers import free_ports
from support.thorough import thorough

from gracectl.model.names import (
    DO_NOT_DISRUPT,
    LIFECYCLE_PHASE,
    LIFECYCLE_PHASE_TERMINABLE,
    TERMINATION_TIMESTAMP,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc"),
]

DEPTH = 9_990
"""One of the API server's own limits is 10,000."""
FAR_FUTURE = "Fri, 01 Jan 2099 00:00:00 GMT"
FAR_PAST = "Sat, 01 Jan 2022 00:00:00 GMT"
YEAR = "31536000"


def nested() -> bytes:
    """Ends the annotations, goes down, and begins something for what else stood among them."""
    fields = b'{"f:a":' * DEPTH + b"{}" + b"}" * DEPTH
    return b'"a":"b"},"managedFields":[{"manager":"tenant","fieldsV1":' + fields + b'}],"ignored":{"a":"b"'


def requirements(number: int) -> JsonObject:
    """A budget whose selector is forged."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"hostile-{number}"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {MARK: "requirements"}}},
    }


def many_requirements() -> bytes:
    """Matches the attacked pods. The requirement that excludes other pods comes last."""
    every = [{"key": f"absent-{number}", "operator": "DoesNotExist"} for number in range(2_000)]
    written = orjson.dumps([*every, {"key": VICTIM, "operator": "DoesNotExist"}])
    return b'"matchExpressions":' + written


UNKNOWN = "an object that is none"
"""Its pod blocks its node: it cannot be decoded."""

GRACES = "graces of centuries"
"""They overflow in the API server: their pods get a deletionTimestamp that has passed."""

ATTACKS: dict[str, Attack] = {
    "fields nested too deep": Attack({marked("nested"): nested()}, 1, annotated("nested")),
    UNKNOWN: Attack({marked("none"): b'"a":{"b":["c"]}'}, 1, lambda number: {"labels": {MARK: "none"}}),
    "bytes that are no text": Attack({marked("latin-1"): b'"a":"\xe9\xff"'}, 1, annotated("latin-1")),
    GRACES: Attack(
        {},
        3,
        lambda number: {
            "spec": {"terminationGracePeriodSeconds": (2**63 - 1, 10**10, 2**40)[number]},
            "behaviour": {"stop-seconds": ("1", "4", "4")[number]},
        },
    ),
    "durations of 250 KB": Attack(
        {marked("long", DO_NOT_DISRUPT): marked("1h" + "0h" * 125_000, DO_NOT_DISRUPT)},
        100,
        lambda number: {"labels": {"app": f"p{number}"}, **annotated("long", DO_NOT_DISRUPT)(number)},
    ),
    "budgets with 2,000 requirements": Attack(
        {f'"matchLabels":{{"{MARK}":"requirements"}}'.encode(): many_requirements()},
        100,
        lambda number: {"labels": {"app": f"p{number}"}},
        # As many as are not set aside: they would block the other node's pods, which are in their namespace.
        tuple(map(requirements, range(6))),
    ),
    "90,000 labels": Attack(
        {marked("labels"): b",".join(b'"l%05d":"v"' % number for number in range(90_000))},
        60,
        lambda number: {"labels": {"app": f"p{number}", MARK: "labels"}},
    ),
    "15,000 volumes": Attack(
        {
            f'"name":"{MARK}"'.encode(): b'"name":"first"},'
            + b",".join(
                b'{"name":"v%05d","persistentVolumeClaim":{"claimName":"missing-%05d"}}' % (n, n) for n in range(15_000)
            )
            + b',{"name":"last"'
        },
        60,
        lambda number: {"labels": {"app": f"p{number}"}, "spec": {"volumes": [{"name": MARK, "emptyDir": {}}]}},
    ),
    "pods of 1.3 MB": Attack(
        # As the server writes control characters: six bytes for one.
        {marked("large"): b'"a":"' + b"\\u0001" * 1_300_000 + b'"'},
        60,
        annotated("large"),
    ),
}


FLOODS = {name for name, attack in ATTACKS.items() if attack.pods > 3}
"""What only a mass of it makes an attack."""


@pytest.mark.parametrize("name", [*(name for name in ATTACKS if name not in FLOODS), *thorough(*sorted(FLOODS))])
async def test_another_node_is_drained_during_the_attack(story: Story, name: str) -> None:
    siege = await besieged(story, ATTACKS[name])
    await siege.end()
    for mark in ATTACKS[name].forgeries:
        arrived = siege.forger.watched[mark]
        assert arrived >= min(AGAIN, ATTACKS[name].pods) or ATTACKS[name].others
    if name == GRACES:
        await siege.unharmed(until=siege.attacked)
        gone = story.sight.gone("Node", siege.node)
        for pod in siege.pods:
            over = story.sight.over(pod)
            assert over, "the node has gone from under a pod"
            assert gone
            assert over.version < gone.version
    if name == UNKNOWN:
        told = partial(story.events_about, story.sees("Pod", "hostile-0"), "Undecodable")
        await story.sight.until("the pod is told of", told)
        message = story.condition(siege.attacked, "Drained")["message"]
        assert f"{story.namespace}/hostile-0 (cannot decide: unknown pod" in message
        assert not is_terminating(story.sees("Pod", "hostile-0"))


HOSTILE_BUDGETS = 60


def many_values() -> bytes:
    values = b",".join(b'"%06d"' % number for number in range(140_000))
    return b'"matchExpressions":[{"key":"app","operator":"In","values":[' + values + b"]}]"


def many_labels() -> bytes:
    return b'"matchLabels":{' + b",".join(b'"%06d":""' % number for number in range(120_000)) + b"}"


@pytest.mark.parametrize("selector", [many_values, *thorough(many_labels)])
async def test_budgets_of_megabytes_in_another_namespace(story: Story, selector: Callable[[], bytes]) -> None:
    large = selector()
    marks = {f'"matchLabels":{{"{MARK}":"values"}}'.encode(): large}
    try:
        siege = await besieged(story, Attack(marks, 1, annotated("true")), before=crowded)
        await siege.end()
        assert siege.forger.sent[next(iter(marks))] >= HOSTILE_BUDGETS
        assert siege.program.peak() < MOST_MEMORY
        await siege.unharmed(until=siege.attacked)
    finally:
        with anyio.CancelScope(shield=True):
            await story.api.call("DELETE", f"/api/v1/namespaces/{story.run}-hostile")


async def crowded(story: Story, node: str) -> None:
    """Budgets of another namespace, whose selectors are forged."""
    namespace = f"{story.run}-hostile"
    whole = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert (await story.api.call("POST", "/api/v1/namespaces", whole))[0] == 201
    for number in range(HOSTILE_BUDGETS):
        budget = requirements(number)
        budget["spec"]["selector"]["matchLabels"][MARK] = "values"
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        assert (await story.api.call("POST", path, budget))[0] == 201


POISONS = ("0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "10000-01-01T23:58:59Z")
"""Instants that a kubelet may write; a server gives back the second as the third."""


async def test_nodes_with_poisoned_instants_are_drained_like_any_other(story: Story) -> None:
    marks = {f'"200{number}-02-03T04:05:06Z"'.encode(): f'"{each}"'.encode() for number, each in enumerate(POISONS)}
    siege = await besieged(story, Attack(marks, 1, annotated("true", DO_NOT_DISRUPT)), before=poisoned)
    plan = await asked(siege, "plan", siege.attacked, siege.leaving, "-o", "json")
    assert {each["name"] for each in orjson.loads(plan)["nodes"]} == {siege.attacked, siege.leaving}
    await siege.end()
    assert siege.attacked in await asked(siege, "status", "-o", "json")
    for mark in marks:
        assert siege.forger.watched[mark] > 0
    await story.patch("Pod", "hostile-0", {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}})
    await siege.unharmed(until=siege.attacked)


async def poisoned(story: Story, node: str) -> None:
    """Conditions as a kubelet writes them, with an instant each that will be forged, and an annotation as it is."""
    conditions = [
        {"type": f"Poisoned{number}", "status": "False", "lastTransitionTime": f"200{number}-02-03T04:05:06Z"}
        for number in range(len(POISONS))
    ]
    await story.patch("Node", node, {"status": {"conditions": conditions}}, status=True)
    await story.patch("Node", node, {"metadata": {"annotations": {TERMINATION_TIMESTAMP: POISONS[1]}}})


async def test_a_node_that_no_patch_can_change_is_terminated(story: Story) -> None:
    """Its kubelet has written an instant of the year 10000, and the server refuses each patch that leaves it there."""
    siege = await besieged(story, Attack({}, 1, annotated("true")), before=unreadable)
    await siege.end()
    await siege.unharmed(until=siege.attacked)
    assert len(siege.program.text()) < 300_000


async def unreadable(story: Story, node: str) -> None:
    entry = {"type": "Poisoned", "status": "False", "lastTransitionTime": "9999-12-31T23:59:59-23:59"}
    written = await story.patch("Node", node, {"status": {"conditions": [entry]}}, status=True)
    [found] = [each for each in written["status"]["conditions"] if each["type"] == "Poisoned"]
    assert found["lastTransitionTime"].startswith("10000-")


async def test_a_copied_providerid_and_a_forged_end_of_the_instance(story: Story, tmp_path: Path) -> None:
    """The kubelet of the attacked node has copied the victim's providerID, and says that the instance is gone."""
    calls = tmp_path / "calls"
    calls.touch()
    script = f'echo "$GRACECTL_ACTION $GRACECTL_PROVIDER_ID" >> {calls}; echo \'{{"state": "running"}}\''
    ends = f'if [ $GRACECTL_ACTION = terminate ] || grep -q "terminate $GRACECTL_PROVIDER_ID" {calls}; then'
    script = f"{ends} {script.replace('running', 'gone')}; else {script}; fi"
    provider = {"name": "exec", "options": {"command": ["/bin/sh", "-c", script]}}
    victim = f"{story.run}-victim"
    story.adopt(victim)
    spec = {"spec": {"providerID": f"{story.run}://victim"}}
    await story.create({**manifests.node(victim, story.run), **spec})

    async def copies(story: Story, node: str) -> None:
        await story.patch("Node", node, spec)
        message = f"instance {story.run}://victim is gone"
        await story.patch("Node", node, condition("InstanceTerminating", "True", "InstanceGone", message), status=True)
        await story.patch("Node", f"{story.run}-leaving", {"spec": {"providerID": f"{story.run}://leaving"}})

    siege = await besieged(story, Attack({}, 1, annotated("true", DO_NOT_DISRUPT)), before=copies, provider=provider)
    await siege.end()
    assert not is_terminating(story.sees("Pod", "hostile-0"))
    # The record of an end would keep the instance, too: from now on only the providerID is copied.
    await story.patch("Node", siege.attacked, condition("InstanceTerminating", "False", "Copied", ""), status=True)
    async with anyio.create_task_group() as group:
        group.start_soon(silence, story, victim, lambda: False)
        await story.patch("Pod", "hostile-0", {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}})
        await siege.unharmed(until=siege.attacked)
        group.cancel_scope.cancel()
    assert not is_terminating(story.sees("Node", victim))
    asked_for = calls.read_text().splitlines()
    assert f"terminate {story.run}://leaving" in asked_for
    assert f"terminate {story.run}://victim" not in asked_for


async def test_a_protected_pod_keeps_no_slot_from_a_dead_node(story: Story) -> None:
    """The attacked node takes the only slot for as long as its pod is protected."""
    voluntary = {"maximumAtOnce": 1, "pendingPatience": "1s", "waitForReplacement": False}
    siege = await besieged(story, Attack({}, 1, annotated("true", DO_NOT_DISRUPT)), voluntary=voluntary)
    dead = await node(story, "dead")
    await siege.end()
    await story.patch("Node", dead, {"metadata": {"labels": {LIFECYCLE_PHASE: LIFECYCLE_PHASE_TERMINABLE}}})

    def is_begun() -> bool:
        found = story.sight.get("Node", dead)
        return found is None or is_terminating(found)

    async with anyio.create_task_group() as group:
        group.start_soon(silence, story, dead, is_begun)
        await until_told(story, "the dead node is being terminated", siege.program, is_begun)
        group.cancel_scope.cancel()
    await siege.unharmed(until=dead)
    assert is_terminating(story.sees("Node", siege.attacked))
    assert not is_terminating(story.sees("Pod", "hostile-0"))


async def silence(story: Story, node: str, is_over: Callable[[], bool]) -> None:
    """Report a node as NotReady again and again: a kubelet of the cluster may report in between."""
    while not is_over():
        await story.patch("Node", node, condition("Ready", "Unknown", "NodeStatusUnknown", ""), status=True)
        await story.clock.sleep(0.1)


def condition(type_: str, status: str, reason: str, message: str) -> JsonObject:
    """Patch of a node's status with one condition."""
    return {"status": {"conditions": [{"type": type_, "status": status, "reason": reason, "message": message}]}}


HANGING_PODS = 60
"""More than evictions of one namespace that may be in flight."""


async def test_evictions_that_hang_in_the_same_namespace(story: Story) -> None:
    """A webhook that hangs for the pods of one workload, each under a budget of its own; the other node is drained."""
    settings: Any = {"eviction": {"maxInFlight": 10}}
    siege = await besieged(story, Attack({}, HANGING_PODS, lambda n: {"labels": {"app": f"hostile-{n}"}}), **settings)
    for number in range(HANGING_PODS):
        await story.budget(f"hostile-{number}", f"hostile-{number}", minAvailable=0)
    siege.forger.hanging = re.compile(r"/pods/hostile-\d+(/eviction)?$")
    await story.delete("Node", siege.attacked)
    await until_told(story, "evictions hang", siege.program, lambda: len(siege.forger.hung) >= 10)
    await siege.other_leaves()
    assert len(siege.forger.hung) < HANGING_PODS, "some still waited for their turn"


async def asked(siege: Siege, command: str, *arguments: str) -> str:
    """What a command prints that sees the same as the controller."""
    line = [sys.executable, "-m", "gracectl", command, "--kubeconfig", str(siege.forger.kubeconfig), *arguments]
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(line, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(("date", "period"), [(FAR_FUTURE, "240h"), (FAR_PAST, "5s")])
async def test_a_drain_with_server_dates_of_another_year(story: Story, date: str, period: str) -> None:
    """No pod is deleted for a deadline while clocks contradict each other, and that is shown; the wait is a minute."""
    groups = [{"selector": {"matchLabels": {LABEL: story.run}}, "terminationGracePeriod": period}]
    siege = await besieged(story, Attack({}, 1, annotated("true", DO_NOT_DISRUPT)), nodeGroups=groups)
    siege.forger.headers["Date"] = date
    siege.forger.pauses += [(EVICTION, YEAR), (LEASE, YEAR)]
    lease = await story.api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{story.namespace}/leases/gracectl")
    told = partial(story.events_about, lease[1], "ClocksDisagree")
    await story.sight.until("the dispute is reported", told, seconds=PATIENCE)
    # It offers the Lease to other processes, of which there are none, and so takes it again.
    await siege.end(is_same_term=False)
    assert siege.forger.pauses == [], "both were told"
    assert siege.forger.answers > 25, "enough answers were forged"
    assert not is_terminating(story.sees("Pod", "hostile-0"))
    assert story.sight.get("Node", siege.attacked) is not None


# -- sockets -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_half_open_and_idle_connections_to_its_servers(story: Story) -> None:
    metrics, webhook = free_ports(2)
    own = {"url": f"https://{HOST}:{webhook}", "name": story.run, "secret": f"{story.run}-tls"}
    settings: Any = {"metrics": {"listen": f"{HOST}:{metrics}"}, "admission": {"listen": f"{HOST}:{webhook}", **own}}
    try:
        siege = await besieged(story, Attack({}, 0, lambda number: {}), **settings)
        await siege.program.until_said("in use, valid until", PATIENCE)
        _, secret = await story.api.call("GET", f"/api/v1/namespaces/kube-system/secrets/{story.run}-tls")
        path = f"/{b64decode(secret['data']['path']).decode()}/validate/nodes"  # of a client that knows it
        async with flood(metrics, webhook, path) as sent:
            await siege.end()
            with anyio.fail_after(PATIENCE):
                assert await sent()
            await until_served(webhook, path)
            assert await lead(story) == siege.lead
        assert siege.program.peak() < MOST_MEMORY
    finally:
        with anyio.CancelScope(shield=True):
            await story.api.call("DELETE", f"/api/v1/namespaces/kube-system/secrets/{story.run}-tls")


FORGED_REVIEWS = 400
FORGED_NODE = "forged"


async def test_forged_reviews(budget_story: Story) -> None:
    """They name a Ready node with its UID, or nodes that do not exist; without the secret path they change nothing and
    cost no request."""
    story = budget_story
    [webhook] = free_ports(1)
    own = {"url": f"https://{HOST}:{webhook}", "name": story.run, "secret": f"{story.run}-tls"}
    try:
        forger = await story.forger({}, await chart_access(story))
        program = await story.controller(through=forger, admission={"listen": f"{HOST}:{webhook}", **own})
        await program.until_said("in use, valid until", PATIENCE)
        ready, _ = await story.nodes("a", "b")
        budget = await story.node_budget("pool", maxUnavailable=1)
        await forge_reviews(webhook, FORGED_REVIEWS, story.sees("Node", ready))
        assert not [path for path in forger.asked if path.startswith(f"/api/v1/nodes/{FORGED_NODE}-")]
        status = story.sees("NodeDisruptionBudget", budget)["status"]
        assert not status.get("disruptedNodes")
        assert status["disruptionsAllowed"] == 1
    finally:
        with anyio.CancelScope(shield=True):
            await story.api.call("DELETE", f"/api/v1/namespaces/kube-system/secrets/{story.run}-tls")


async def forge_reviews(port: int, count: int, ready: JsonObject) -> None:
    """Ask for the deletion of a node, and of nodes that do not exist, 50 at a time."""
    connections = aiohttp.TCPConnector(ssl=unverified(), limit=50)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    statuses: Counter[int] = Counter()
    async with aiohttp.ClientSession(connector=connections) as session:

        async def ask(path: str, node: JsonObject) -> None:
            url = f"https://{HOST}:{port}{path}"
            async with session.post(url, json=a_review("DELETE", "nodes", None, node)) as answer:
                statuses[answer.status] += 1

        async with anyio.create_task_group() as group:
            for number in range(count):
                meta = {"name": f"{FORGED_NODE}-{number}", "uid": f"u{number}", "resourceVersion": "9" * 20}
                ghost = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}
                group.start_soon(ask, "/validate/nodes", ghost if number % 2 else ready)
                group.start_soon(ask, f"/{number:032x}/validate/nodes", ready)
    assert statuses == {404: 2 * count}


@asynccontextmanager
async def flood(metrics: int, webhook: int, path: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Foreign connections to these two ports; yields what waits until all of them are there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-m", "e2e_support.flood", str(metrics), str(webhook), path]
    async with await anyio.open_process(line, stderr=None, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.receive
        finally:
            process.kill()


async def until_served(port: int, path: str) -> None:
    """An invalid request is answered again: 400, as ever."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=unverified())) as session:
        with anyio.fail_after(PATIENCE):
            while True:
                with suppress(aiohttp.ClientError, TimeoutError):
                    url = f"https://{HOST}:{port}{path}"
                    async with session.post(url, data=b"{}", timeout=aiohttp.ClientTimeout(total=20)) as answer:
                        assert answer.status == 400
                        return
                await anyio.sleep(0.2)
