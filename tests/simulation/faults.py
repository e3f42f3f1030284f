"""Faults: between the controllers and the server, in admission, in the cloud, and of the processes themselves.

`ACTS` has each kind of fault: how often, what it needs by chance, and what it does. None outlasts its time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
from kubesim.admission.caller import Reply
from kubesim.admission.failures import CallFailed
from kubesim.faults import (
    CutBody,
    DropWatch,
    Expire,
    FreezeWatch,
    Latency,
    LateWatch,
    Partition,
    Refuse,
    RefuseEviction,
    Reset,
    Rule,
    SlowTail,
    StaleReads,
)
from kubesim.server.api import JsonObject
from support.contest import Candidate
from support.inprocess import Stutter

from gracectl.model import names
from gracectl.model.times import format_time
from simulation.plan import CLOCKS, COPIED, LYING, RACE, Act
from simulation.providers import ERRORS
from simulation.refusals import EVICTIONS, WRITES
from simulation.scene import Scene, wait_for

SECONDS = 75.0
"""Within so many seconds from the start all faults begin."""
DURATIONS = (1.0, 4.0, 8.0, 14.0, 20.0, 40.0)
NEAR_SECONDS = 400.0
"""Deadlines that are further away are not waited for."""
STEPS_SECONDS = 30.0
"""A process that makes too few steps meanwhile is struck all the same."""
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
TABLES = ("nodes", "pods", "poddisruptionbudgets.policy", "nodeclaims.karpenter.sh", "leases.coordination.k8s.io")

Draw = Callable[[random.Random, bool], dict[str, Any]]
Perform = Callable[[Scene, Act], Awaitable[None]]


class Kind(NamedTuple):
    """Kind of fault: its weight among others, what it needs, what it does."""

    weight: float
    draw: Draw
    perform: Perform


def some_faults(chance: random.Random, kinds: Sequence[str] = (), *, elects: bool) -> tuple[Act, ...]:
    """What goes wrong, in order; only of these kinds, if some are named."""
    kinds = kinds or [*ACTS]
    weights = [ACTS[kind].weight for kind in kinds]
    drawn = chance.choices(kinds, weights, k=chance.choice([0, 1, 2, 4, 6, 9]))
    return tuple(sorted((a_fault(chance, kind, elects=elects) for kind in drawn), key=lambda act: act.at))


def a_fault(chance: random.Random, kind: str, *, elects: bool) -> Act:
    """One fault of this kind."""
    return Act(at=round(chance.uniform(0, SECONDS), 3), what=kind, **ACTS[kind].draw(chance, elects))


async def perform(scene: Scene, act: Act) -> None:
    """Carry out one fault, at its time; returns when it is over."""
    await scene.stage.clock.sleep(act.at)
    scene.note("fault", _short(act))
    await ACTS[act.what].perform(scene, act)
    if act.seconds:
        scene.note("fault", f"end of {act.what} {act.subject}".rstrip())


def _short(act: Act) -> str:
    if act.what not in ("line", "refusals", RACE):
        return str(act)
    rules = "; ".join(_rule_text(each["rule"], each["side"]) for each in act.value)
    return f"{act.what} of {act.subject} for {act.seconds:g} s: {rules}"


def _rule_text(rule: dict[str, Any], side: str) -> str:
    fault = dict(rule["fault"])
    body = fault.pop("body", None)
    text = body["message"] if isinstance(body, dict) else body
    fields = ", ".join(f"{key} {value}" for key, value in fault.items() if key != "type" and value is not None)
    where = " ".join(filter(None, (rule.get("method", ""), rule.get("path", ""))))
    parts = (
        f"{fault['type']} {fields}{f' ({text})' if text else ''} of {where or 'all'}, p {rule.get('probability', 1)}"
    )
    return parts if side == "before" else f"{parts}, when it is done"


# -- draws -------------------------------------------------------------------------------------------------------------


def rule(side: str, fault: Any, **fields: Any) -> dict[str, Any]:
    return {"side": side, "rule": msgspec.to_builtins(Rule(fault=fault, **fields))}


def _share(chance: random.Random) -> float:
    return round(chance.uniform(0.05, 0.6), 2)


SMALL = [rule("before", Latency(0.0, 0.005), path="pods|nodes"), rule("behind", Latency(0.005, 0.01))]
"""So that a kill finds requests that were carried out and not answered."""

RESOURCES = (
    "",
    "/pods/",
    "/eviction",
    "/nodes/",
    "/nodes/[^/]+$",
    "/status$",
    "/nodeclaims",
    "/events",
    "poddisruptionbudgets",
)

LINES: tuple[Callable[[random.Random], list[dict[str, Any]]], ...] = (
    lambda c: [rule("before", Refuse(c.choice([500, 503, 504])), probability=_share(c))],
    lambda c: [rule("before", Refuse(429, retry_after=c.randint(1, 4)), probability=_share(c))],
    lambda c: [rule("before", Reset(), probability=_share(c))],
    lambda c: [rule("behind", Reset(carried_out=True), path=c.choice(RESOURCES), probability=_share(c))],
    lambda c: [rule("behind", Refuse(c.choice([500, 504])), path=c.choice(RESOURCES), probability=_share(c))],
    lambda c: [rule("behind", Latency(0.0, 2.0)), rule("before", Latency(0.0, 1.0))],
    lambda c: [rule("behind", Latency(25.0, 40.0), probability=_share(c) / 4)],
    lambda c: [rule("behind", Latency(90.0, 90.0), path=c.choice(RESOURCES))],
    lambda c: [rule("before", Latency(0.5, 4.0), path="/(nodes|pods)")],
    lambda c: [rule("before", SlowTail(0.2, 20.0))],
    lambda c: [rule("behind", CutBody(round(c.random(), 2)), probability=_share(c))],
    lambda c: [rule("before", RefuseEviction(c.choice([None, 10])), probability=_share(c))],
    lambda c: [rule("before", Expire(), probability=_share(c))],
    lambda c: [rule("before", DropWatch(round(c.uniform(0.1, 20), 2)), probability=_share(c))],
    lambda c: [rule("before", FreezeWatch(round(c.uniform(0.1, 20), 2)), probability=_share(c))],
    lambda c: [rule("before", LateWatch(0.0, c.choice([0.2, 3.0, 20.0])), path="nodes|pods|claims|budgets")],
    lambda c: [rule("before", Partition())],
    lambda c: [rule("before", Refuse(409), method="PUT|PATCH", probability=_share(c))],
    lambda c: [rule("before", Refuse(500), path="leases")],
)


def _line(chance: random.Random, elects: bool) -> dict[str, Any]:
    subject = chance.choice(["all", "leader", "leader", "other"]) if elects else "all"
    return {"subject": subject, "seconds": chance.choice(DURATIONS), "value": chance.choice(LINES)(chance)}


def _refusals(chance: random.Random, elects: bool) -> dict[str, Any]:
    """Of every recorded kind, in a row; some say what is not so (before) or not what is (behind)."""
    refusals: list[dict[str, Any]] = []
    for name in chance.sample([*WRITES], 3):
        method, path = chance.choice(
            [
                ("DELETE", "/pods/"),
                ("POST", "/eviction"),
                ("PATCH", "/nodes/"),
                ("PATCH", "/status$"),
                ("DELETE", "/node"),
                ("POST", "/events"),
                ("P", "nodeclaims"),
            ]
        )
        refusals.append(
            rule(
                chance.choice(["before", "before", "behind"]),
                WRITES[name],
                method=method,
                path=path,
                probability=_share(chance),
            )
        )
    name = chance.choice([*EVICTIONS])
    refusals.append(rule("before", EVICTIONS[name], method="POST", path="/eviction", probability=_share(chance)))
    return {"subject": "all", "seconds": chance.choice(DURATIONS), "value": refusals}


def _webhook(chance: random.Random, elects: bool) -> dict[str, Any]:
    resources, operations = chance.choice(
        [
            (["pods"], ["DELETE"]),
            (["pods"], ["CREATE"]),
            (["pods/eviction"], ["CREATE"]),
            (["nodes"], ["UPDATE"]),
            (["nodes"], ["DELETE"]),
            (["nodes/status"], ["UPDATE"]),
            (["nodeclaims", "nodeclaims/status"], ["UPDATE", "DELETE"]),
            (["events"], ["CREATE", "UPDATE"]),
        ]
    )
    return {
        "seconds": chance.choice(DURATIONS),
        "value": {
            "resources": resources,
            "operations": operations,
            "mode": chance.choice(["slow", "slow", "fails", "nonsense", "denies", "denies"]),
            "delay": chance.choice([1.0, 2.0, 5.0, 10.5, 29.0]),
            "timeout": chance.choice([1, 10, 30]),
            "policy": chance.choice(["Fail", "Fail", "Ignore"]),
            "names": chance.choice(["", "1", "bare", "app0", "n2"]),
            "status": chance.choice(
                [None, {"code": 403, "message": "change freeze"}, {"code": 429, "message": "later"}]
            ),
        },
    }


def _provider(chance: random.Random, elects: bool) -> dict[str, Any]:
    mood = chance.choice(
        ["raises", "raises", "raises", "late", "late", "lies", "nonsense", "cannot tell", "loses answers"]
    )
    return {
        "seconds": chance.choice(DURATIONS),
        "value": {
            "mood": mood,
            "verbs": chance.choice([["state"], ["terminate"], ["state", "terminate"]]),
            "error": chance.choice([*ERRORS]),
            "delay": chance.choice([1.0, 10.0, 70.0]),
            "probability": chance.choice([0.5, 1.0]),
        },
    }


def _process(*seconds: float) -> Draw:
    """A fault of one process; `steps` of the event loop until it strikes."""

    def draw(chance: random.Random, elects: bool) -> dict[str, Any]:
        subject = chance.choice(["leader", "leader", "other"]) if elects else "leader"
        return {
            "subject": subject,
            "seconds": chance.choice(seconds),
            "value": {"steps": chance.choice([0, chance.randint(1, 40), chance.randint(1, 400)])},
        }

    return draw


def _near(chance: random.Random, elects: bool) -> dict[str, Any]:
    early = chance.choice([-0.1, -0.025, -0.006, -0.0005, 0.0, 0.0005, 0.004, 0.02])
    return {
        "subject": "leader",
        "seconds": chance.choice([0.0, 0.0, 0.002, 0.3, 3.0]),
        "value": {
            "node": chance.choice(["n1", "n2", "n3", "n4"]),
            "before": chance.choice([0, 0, 1, 5, 20, 30]) + early,
            "steps": 0,
        },
    }


def _clock(*offsets: float) -> Draw:
    def draw(chance: random.Random, elects: bool) -> dict[str, Any]:
        return {"subject": "leader", "seconds": chance.choice([5.0, 31.0]), "value": chance.choice(offsets)}

    return draw


def _disagreement(chance: random.Random, elects: bool) -> dict[str, Any]:
    subject = chance.choice(["leader", "other", "all"])
    return {"subject": subject, "seconds": chance.choice([5.0, 31.0]), "value": chance.choice([-3600.0, 3600.0])}


def _kubelet(chance: random.Random, elects: bool) -> dict[str, Any]:
    return {"subject": chance.choice(["n1", "n2", "n3"]), "seconds": chance.choice([5.0, 30.0, 60.0])}


# -- faults ------------------------------------------------------------------------------------------------------------


async def _lines(scene: Scene, act: Act) -> None:
    remove = scene.add_rules(act)
    await scene.stage.clock.sleep(act.seconds)
    remove()


async def _outage(scene: Scene, act: Act) -> None:
    """Connections to the server are refused."""
    for each in scene.contest.living:
        each.wire.is_listening = False
    await scene.stage.clock.sleep(act.seconds)
    for each in scene.contest.living:
        each.wire.is_listening = True


async def _stutters(scene: Scene, act: Act) -> None:
    scene.set_stutter(Stutter(*act.value))
    await scene.stage.clock.sleep(act.seconds)
    scene.set_stutter(Stutter())


async def _forgets(scene: Scene, act: Act) -> None:
    store = scene.stage.server.store
    store.table(act.subject).forget(store.revision)


async def _kill(scene: Scene, act: Act) -> None:
    """SIGKILL between any two steps of the event loop; another process starts later."""

    def strike(one: Candidate) -> None:
        one.kill()

    await _ended(scene, act, strike)


async def _kill_near(scene: Scene, act: Act) -> None:
    """A few milliseconds around an instant that counts: a deadline, or a pod's grace before it."""
    node, before = act.value["node"], act.value["before"]
    if not await wait_for(scene, lambda: scene.judge is not None and scene.judge.due(node) is not None, SECONDS):
        return
    assert scene.judge is not None
    due = scene.judge.due(node)
    if due is not None and 0.0 <= due.at - before - scene.stage.clock.monotonic() <= NEAR_SECONDS:
        await scene.stage.clock.sleep(due.at - before - scene.stage.clock.monotonic())
        await _kill(scene, act)


async def _term(scene: Scene, act: Act) -> None:
    await _ended(scene, act, lambda one: one.term())


async def _ended(scene: Scene, act: Act, strike: Callable[[Candidate], None]) -> None:
    for one in scene.some(act.subject):
        struck = anyio.Event()

        def now(one: Candidate = one, struck: anyio.Event = struck) -> None:
            struck.set()
            if one in scene.contest.living:
                scene.ended(one)
                scene.note(one.name, "is killed" if act.what == "kill" else "is told to stop")
                strike(one)

        one.process.after_steps(act.value["steps"], now)
        with anyio.move_on_after(STEPS_SECONDS if act.value["steps"] else 0.0):
            await struck.wait()
        one.process.after_steps(0, now)
        if not struck.is_set():
            now()
    await scene.stage.clock.sleep(act.seconds)
    if len(scene.contest.living) < scene.plan.processes:
        scene.contest.born()


async def _freeze(scene: Scene, act: Act) -> None:
    """SIGSTOP, and SIGCONT later: perhaps when its lease is another's."""
    for one in scene.some(act.subject):
        one.process.after_steps(act.value["steps"], one.freeze) if act.value["steps"] else one.freeze()
        await scene.stage.clock.sleep(act.seconds)
        one.process.thaw()


async def _sleep(scene: Scene, act: Act) -> None:
    """Its machine sleeps: its monotonic clock does not run meanwhile."""
    for one in scene.some(act.subject):
        one.freeze()
        await scene.stage.clock.sleep(act.seconds)
        one.clock.missed += act.seconds
        one.process.thaw()


async def _second(scene: Scene, act: Act) -> None:
    """One process more, as while a Deployment is rolled out."""
    if scene.plan.elects:
        scene.contest.born()


async def _reads_are_stale(scene: Scene, act: Act) -> None:
    """Lists from a cache of the server show what was; what names its client is the world itself."""
    rule = Rule(fault=StaleReads(act.value), client="^$")
    scene.stage.server.faults.add(rule)
    await scene.stage.clock.sleep(act.seconds)
    scene.stage.server.faults.remove(rule)


async def _clock_is_wrong(scene: Scene, act: Act) -> None:
    """Of one process, until it has learnt the server's."""
    for one in scene.some(act.subject):
        one.clock.offset += act.value
        await scene.stage.clock.sleep(act.seconds)
        one.clock.offset = scene.stage.cluster.server_clock.offset


async def _clocks_disagree(scene: Scene, act: Act) -> None:
    """By more than can be corrected: the earlier time counts, and no deadline."""
    chosen = scene.some(act.subject)
    for one in chosen:
        one.clock.adjust(scene.stage.cluster.server_clock.offset + min(act.value, 0.0), True)
    await scene.stage.clock.sleep(act.seconds)
    for one in chosen:
        one.clock.adjust(scene.stage.cluster.server_clock.offset, False)


async def _providerid_is_copied(scene: Scene, act: Act) -> None:
    """Another node takes the machine of `subject`, which misses its heartbeats for a while, and is deleted."""
    victim, name = scene.stage.node(act.subject), f"{act.subject}-copy"
    if victim is None or not victim["spec"].get("providerID"):
        return
    labels = {**victim["metadata"]["labels"], "kubernetes.io/hostname": name}
    copy = {"metadata": {"name": name, "labels": labels}, "spec": {"providerID": victim["spec"]["providerID"]}}
    if not await scene.insist("POST", "/api/v1/nodes", copy):
        return
    kubelet = scene.stage.cluster.kubelet
    for _ in range(3):
        kubelet.partition(act.subject)
        await scene.stage.clock.sleep(act.seconds)
        await scene.attempt("DELETE", f"/api/v1/nodes/{name}")
        kubelet.heal(act.subject)
        await scene.stage.clock.sleep(5.0)


async def _kubelet_lies(scene: Scene, act: Act) -> None:
    """It writes what only gracectl writes: its node is drained, its volumes are detached, its machine is gone."""
    for _ in range(3):
        forged = [
            {
                "type": type_,
                "status": "True",
                "reason": reason,
                "lastTransitionTime": format_time(scene.stage.clock.now()),
            }
            for type_, reason in (
                (names.INSTANCE_TERMINATING, names.INSTANCE_GONE),
                (names.DRAINED, "Drained"),
                (names.VOLUMES_DETACHED, "Detached"),
            )
        ]
        path, kind = f"/api/v1/nodes/{act.subject}/status", "application/strategic-merge-patch+json"
        await scene.attempt("PATCH", path, {"status": {"conditions": forged}}, kind)
        await scene.stage.clock.sleep(act.seconds / 3)


async def _server_clock_jumps(scene: Scene, act: Act) -> None:
    """And the processes learn it later."""
    scene.stage.cluster.server_clock.offset += act.value
    await scene.stage.clock.sleep(act.seconds)
    for one in scene.contest.living:
        one.clock.offset = scene.stage.cluster.server_clock.offset


async def _provider_has_a_mood(scene: Scene, act: Act) -> None:
    scene.set_mood(act.value)
    await scene.stage.clock.sleep(act.seconds)
    scene.set_mood(None)


async def _webhook_stands_in_the_way(scene: Scene, act: Act) -> None:
    """Slow, failing, or refusing objects with some text in their names."""
    value = act.value
    name = f"hook{round(act.at * 1000)}"
    url = f"https://{name}.example/"

    async def answer(review: JsonObject) -> JsonObject | Reply:
        request = review["request"]
        allowed: JsonObject = {"uid": request["uid"], "allowed": True}
        if value["names"] in (request.get("name") or ""):
            match value["mode"]:
                case "slow":
                    await scene.stage.clock.sleep(value["delay"])
                case "fails":
                    await scene.stage.clock.sleep(0.1)
                    raise CallFailed("failed to call webhook: EOF")
                case "nonsense":
                    return Reply(200, b"<html>", "text/html")
                case "denies":
                    allowed = {"uid": request["uid"], "allowed": False}
                    if value["status"]:
                        allowed["status"] = value["status"]
        return {**review, "request": None, "response": allowed}

    scene.webhooks.register(url, answer)
    rule = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": value["operations"],
        "resources": value["resources"],
    }
    hook = {
        "name": "hook.example.com",
        "clientConfig": {"url": url},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": value["policy"],
        "timeoutSeconds": value["timeout"],
        "rules": [rule],
    }
    await scene.attempt("POST", WEBHOOKS, {"metadata": {"name": name}, "webhooks": [hook]})
    await scene.stage.clock.sleep(act.seconds)
    await scene.attempt("DELETE", f"{WEBHOOKS}/{name}")


ACTS: dict[str, Kind] = {
    "line": Kind(8, _line, _lines),
    "refusals": Kind(4, _refusals, _lines),
    "latency": Kind(0, lambda c, e: {"subject": "all", "seconds": 60.0, "value": SMALL}, _lines),
    RACE: Kind(0, lambda c, e: {"subject": "all", "seconds": 60.0, "value": []}, _lines),
    "outage": Kind(2, lambda c, e: {"seconds": round(c.uniform(0.1, 28.0), 1)}, _outage),
    "stutter": Kind(2, lambda c, e: {"seconds": 30.0, "value": [_share(c), c.choice([0.05, 0.5, 5.0])]}, _stutters),
    "stale reads": Kind(
        1, lambda c, e: {"seconds": c.choice(DURATIONS), "value": c.choice([1.0, 5.0, 20.0])}, _reads_are_stale
    ),
    "forget": Kind(2, lambda c, e: {"subject": c.choice(TABLES)}, _forgets),
    "kill": Kind(5, _process(0.0, 0.1, 1.0, 20.0), _kill),
    "kill near": Kind(3, _near, _kill_near),
    "term": Kind(1, _process(0.0, 1.0, 20.0), _term),
    "freeze": Kind(3, _process(0.5, 5.0, 12.0, 14.9, 15.5, 17.0, 60.0), _freeze),
    "sleep": Kind(1, _process(5.0, 60.0), _sleep),
    "second process": Kind(1, lambda c, e: {}, _second),
    "clock": Kind(1, _clock(-40.0, -5.0, 5.0, 40.0), _clock_is_wrong),
    "server clock": Kind(0.5, _clock(-20.0, -2.0, 2.0, 20.0), _server_clock_jumps),
    CLOCKS: Kind(0, _disagreement, _clocks_disagree),
    COPIED: Kind(0, _kubelet, _providerid_is_copied),
    LYING: Kind(0, _kubelet, _kubelet_lies),
    "provider": Kind(4, _provider, _provider_has_a_mood),
    "webhook": Kind(5, _webhook, _webhook_stands_in_the_way),
}
