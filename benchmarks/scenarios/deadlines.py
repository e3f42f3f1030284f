"""How punctual preemptive deletes are: ten thousand armed deadlines, and a drain of 500 pods beside them.

Every armed pod is protected, so that only its deadline can end it: its grace before the end of its node. Deadlines and
graces have whole seconds, so the instants of the run are seconds, in each of which some fifty pods are due at once.
Meanwhile nodes with 500 pods under a tight budget are drained by the same process, and a tenth of the armed pods is in
a namespace whose webhook never answers the API server: they must not delay the others. What is measured is when the
body of a DELETE is handed to the socket, against an instant that is computed here from the node's annotation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec
from kubesim.controllers.behaviour import PREFIX

from benchmarks.contenders.assisted import AssistedKarpenter
from benchmarks.contenders.contender import EVICTION
from benchmarks.contenders.gracectl import Program, running
from benchmarks.contenders.karpenter import Karpenter
from benchmarks.ground.ground import LABEL, Ground, Pace
from benchmarks.ground.hanging import hanging
from benchmarks.ground.nodes import delete, together, until_gone, until_held
from benchmarks.ground.site import NEW, OLD, RAW_PODS, ROLE, App, Site, site
from benchmarks.ground.waiting import Waiting
from benchmarks.report import Figure, Outcome, Series
from gracectl.kube.resources import NODES
from gracectl.model.names import DO_NOT_DISRUPT, TERMINATION_TIMESTAMP
from gracectl.model.pod import Pod
from gracectl.model.times import parse_time

ARMED = "armed"
"""The role of the nodes that have a deadline, and the app of their pods."""
PODS_OF_A_NODE = 100
HANGING = 10
"""Each pod whose number this divides is in the namespace whose webhook hangs."""
PATIENCE_OF_PEERS = 10.0
"""Seconds after the last instant in which others may still act."""


LATENESS, LATENESS_ASSISTED = 50.0, 500.0
"""Milliseconds."""


class Scale(msgspec.Struct, frozen=True):
    """`armed` pods whose instants are spread over `seconds`, of which the first `watched` are waited for; they begin
    `lead` seconds after the deletion of their nodes. Meanwhile `drained` pods leave, `at_once` at a time."""

    armed: int
    drained: int
    at_once: int
    seconds: int
    watched: int
    lead: int

    @property
    def drained_nodes(self) -> int:
        """As many as they fill."""
        return self.drained // PODS_OF_A_NODE


EMBEDDED = Scale(armed=10_000, drained=500, at_once=5, seconds=200, watched=25, lead=12)
ELSEWHERE = Scale(armed=1_000, drained=100, at_once=2, seconds=60, watched=40, lead=20)
"""A foreign control plane takes minutes for ten thousand pods."""


class Seen(msgspec.Struct, frozen=True):
    """What has come of it: the instants that were `due`, when each DELETE `left`, and when the watch had `told` of it
    (Unix seconds, by pod); how many were armed at the first instant; what the drain beside it has taken."""

    due: Mapping[str, float]
    left: Mapping[str, float]
    told: Mapping[str, float]
    armed: float
    drain: float
    evictions: int
    cpu: float


def _late(due: Mapping[str, float], done: Mapping[str, float]) -> list[float]:
    """Milliseconds by which each was late, in order."""
    return sorted(1000 * (done[name] - at) for name, at in due.items() if name in done)


async def run(ground: Ground) -> Outcome:
    """Measure once; the drain has to last as long as the deadlines do."""
    scale = EMBEDDED if ground.is_embedded else ELSEWHERE
    async with site(ground, "deadlines") as one:
        await one.add_nodes(OLD, scale.drained_nodes)
        app = App("drained", scale.drained, {"maxUnavailable": scale.at_once})
        await one.deploy(app, pace=Pace())
        await one.add_nodes(NEW, scale.drained_nodes)
        armed = await one.add_nodes(ARMED, scale.armed // PODS_OF_A_NODE, cordoned=True)
        async with hanging(one) as webhook:
            graces = await _arm(one, scale, armed, webhook.namespace)
            seen = await _measure(one, scale, armed, graces)
    late, hung = (
        _late({name: at for name, at in seen.due.items() if _hangs(name) is hangs}, seen.left)
        for hangs in (False, True)
    )
    theirs: tuple[Figure, ...] = ()
    if ground.karpenter:
        grace = scale.seconds + scale.lead
        theirs = await _of_karpenter(ground, scale, Karpenter(ground.karpenter, grace))
        theirs += await _of_karpenter(ground, scale, AssistedKarpenter(ground.karpenter, grace), LATENESS_ASSISTED)
    return Outcome(
        scenario="deadlines",
        about=f"of {scale.armed:,} armed deletes those that are due leave the process, while it drains other nodes",
        figures=(
            Figure("lateness p99", late[int(0.99 * len(late))], " ms", LATENESS),
            Figure("lateness p50", late[len(late) // 2], " ms"),
            Figure("lateness max", late[-1], " ms"),
            Figure("earliest", late[0], " ms", at_least=0),
            Figure("deletes that were due", len(seen.due)),
            Figure("of these never sent", len(seen.due) - len(late) - len(hung), "", 0),
            Figure("deletes that the hanging webhook has held", webhook.asked),
            Figure("lateness p99 in its namespace", hung[int(0.99 * len(hung))], " ms"),
            Figure("armed at the beginning", seen.armed, "", at_least=scale.armed),
            Figure("most that were due in the same instant", max(Counter(seen.due.values()).values())),
            Figure("the drain beside it took", seen.drain, " s"),
            Figure("evictions beside it", seen.evictions, "", at_least=scale.drained),
            Figure("of a processor", 100 * seen.cpu, " %"),
            *_seen("gracectl", _late(seen.due, seen.told)),
            *theirs,
        ),
        parameters=msgspec.to_builtins(scale),
        series=(Series("lateness, ms", _shares(late)),),
        notes=() if ground.is_embedded else ("Ten thousand are armed on the embedded cluster only.",),
    )


def _hangs(name: str) -> bool:
    return int(name.rpartition("-")[2]) % HANGING == 0


async def _arm(one: Site, scale: Scale, nodes: Sequence[str], held: str) -> dict[str, int]:
    """Create the pods that only a deadline ends; returns their graces by name."""
    chance = random.Random(1)
    graces = {f"{ARMED}-{number}": chance.randint(1, scale.seconds) for number in range(scale.armed)}
    create = partial(one.client.create, RAW_PODS)
    await together(
        partial(create, held if _hangs(name) else one.name, _armed(name, nodes[number // PODS_OF_A_NODE], grace))
        for number, (name, grace) in enumerate(graces.items())
    )
    return graces


def _armed(name: str, node: str, grace: int) -> dict[str, Any]:
    # They take some time to end, as pods do; all at once they would keep the server busy that has to answer the others.
    annotations = {DO_NOT_DISRUPT: "true", f"{PREFIX}stop-seconds": "0.5", f"{PREFIX}jitter": "0.6"}
    containers = [{"name": "main", "image": "registry.invalid/hollow:1"}]
    spec = {"nodeName": node, "terminationGracePeriodSeconds": grace, "containers": containers}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


async def _measure(one: Site, scale: Scale, armed: Sequence[str], graces: Mapping[str, int]) -> Seen:
    group = {"selector": {"matchLabels": {ROLE: ARMED}}, "terminationGracePeriod": f"{scale.seconds + scale.lead}s"}
    settings = {
        "nodeSelector": {"matchLabels": {LABEL: one.name}},
        "leaderElection": {"namespace": one.name},
        "nodeGroups": [group],
    }
    drained = [f"{one.name}-{OLD}-{number}" for number in range(scale.drained_nodes)]
    noted, clock, told = one.ground.folder / "left.json", one.clock, _told(one)
    witnessed = ("benchmarks.contenders.witnessed", str(noted))
    async with running(one.way.kubeconfig, settings, one.ground.folder, command=witnessed) as program:
        await until_held(one.client, [*armed, *drained], program.last_words)
        await delete(one.client, armed)
        deadlines = [await _deadline(one, node) for node in armed]
        first = min(deadlines) - scale.seconds
        await clock.sleep(first - 1 - clock.now())
        at_first, before, began = await _armed_pods(program), await program.reading(), clock.monotonic()
        await delete(one.client, drained)
        await until_gone(one.client, drained)
        drain = clock.monotonic() - began
        await clock.sleep(first + scale.watched + 2 - clock.now())
        usage, seconds = (await program.reading()).since(before), clock.monotonic() - began
    return Seen(
        due=_due(scale, deadlines, graces)[0],
        told=told,
        left=msgspec.json.decode(await anyio.Path(noted).read_bytes(), type=dict[str, float]),
        armed=at_first,
        drain=drain,
        evictions=usage.requests[EVICTION],
        cpu=(usage.cpu or 0) / seconds,
    )


async def _of_karpenter(
    ground: Ground, scale: Scale, karpenter: Karpenter, budget: float | None = None
) -> tuple[Figure, ...]:
    """The same deadlines under Karpenter, without a drain beside them. `budget`: milliseconds of 99 in 100."""
    async with site(ground, "deadlines-karpenter" if budget is None else "deadlines-assisted") as one:
        armed = await one.add_nodes(ARMED, scale.armed // PODS_OF_A_NODE, cordoned=True)
        graces, told = await _arm(one, scale, armed, one.name), _told(one)
        async with karpenter.entered(one, armed) as entry:
            await entry.go()
            deadlines = [await karpenter.deadline(one, node) for node in armed]
            due, last = _due(scale, deadlines, graces)
            await one.clock.sleep(last + PATIENCE_OF_PEERS - one.clock.now())
    late = _late(due, told)
    return (*_seen(karpenter.name, late, budget), Figure(f"{karpenter.name}: never sent", len(due) - len(late)))


def _due(scale: Scale, deadlines: Sequence[float], graces: Mapping[str, int]) -> tuple[dict[str, float], float]:
    """When each pod is due of those that are waited for, and when the last of them is."""
    last = min(deadlines) - scale.seconds + scale.watched
    due = {name: deadlines[n // PODS_OF_A_NODE] - grace for n, (name, grace) in enumerate(graces.items())}
    return {name: at for name, at in due.items() if at <= last}, last


def _told(one: Site) -> dict[str, float]:
    """When the watch has told of each pod's deletion, as it does."""
    told: dict[str, float] = {}

    def saw(_: Pod | None, new: Pod | None) -> None:
        if new is not None and new.deletion_timestamp is not None:
            told.setdefault(new.name, one.clock.now())

    one.pods.subscribe(saw)
    return told


def _seen(name: str, late: Sequence[float], budget: float | None = None) -> tuple[Figure, ...]:
    """Lateness with what server and watch take. `budget`: of 99 in 100."""
    if not late:
        return ()
    shares = {"p50": late[len(late) // 2], "p99": late[int(0.99 * len(late))], "max": late[-1], "earliest": late[0]}
    return tuple(
        Figure(f"{name}: seen by a watch, {share}", value, " ms", budget if share == "p99" else None)
        for share, value in shares.items()
    )


async def _armed_pods(program: Program) -> float:
    """How many pods are armed, as the program says."""
    series = (await program.values())["gracectl_deadline_pods"]
    return sum(value for labels, value in series if labels["state"] == "armed")


async def _deadline(one: Site, node: str) -> float:
    """The deadline that the controller has written on a node."""
    waiting = Waiting(f"{node}: waiting for its deadline", lambda: "none")
    while TERMINATION_TIMESTAMP not in (found := await one.client.get(NODES, ("", node))).annotations:
        if waiting.has_stalled:
            raise waiting.stalled(f"no annotation {TERMINATION_TIMESTAMP}")
        await one.clock.sleep(0.1)
    return parse_time(found.annotations[TERMINATION_TIMESTAMP])


def _shares(late: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """What share (%) was at most so many milliseconds late, at each percent."""
    return tuple((late[min(len(late) - 1, share * len(late) // 100)], float(share)) for share in range(101))
