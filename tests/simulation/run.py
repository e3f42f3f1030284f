"""Run of a plan: unmodified controllers, one event loop, virtual time."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
from kubesim.admission.caller import InProcessWebhooks
from kubesim.controllers.cloud import CloudSettings
from support.contest import ANYBODYS, Contest
from support.stage import Stage, is_held, staged, the_settings
from support.virtual import VirtualLoop

from gracectl.cli.crds import shipped_definitions
from gracectl.cloud.provider import ProviderError
from gracectl.model import names
from simulation import campaigns, faults, history
from simulation.contract import notice_of
from simulation.forecasts import Counts
from simulation.invariants import Invariants
from simulation.plan import Plan
from simulation.scene import Scene, wait_for

CALM_SECONDS = 165.0
"""After the last fault watches that show nothing are given up."""
BLOCKED_SECONDS, BLOCKED_SHARE = 300.0, 3
"""What blocks drains is left for so long, in one of so many seeds: what waits must say so, and ask for little."""
QUIET_SECONDS = 25.0
"""At the end nothing is left to do for so long: tasks are counted."""
READY_SECONDS = 60.0
SETTLING_SECONDS = 60.0
"""How long a world may take until it is up, and controllers until they see it."""


class Result(msgspec.Struct):
    """What came of a run. `fingerprint`: equal for equal runs; `story`: (seconds, who, what)."""

    plan: Plan
    violations: list[str]
    story: list[tuple[float, str, str]]
    fingerprint: str = ""
    seconds: float = 0.0
    forecasts: Counts = msgspec.field(default_factory=Counts)


def run(plan: Plan) -> Result:
    """Run a plan on virtual time."""
    return anyio.run(simulate, plan, backend="asyncio", backend_options={"loop_factory": VirtualLoop})


async def simulate(plan: Plan) -> Result:
    """Run a plan on this event loop."""
    webhooks = InProcessWebhooks()
    options: dict[str, Any] = {**plan.cluster, "cloud": CloudSettings(**plan.cluster.get("cloud", {}))}
    options["definitions"] = shipped_definitions() if plan.knows_claims else ()
    settings = the_settings(**plan.settings, **({"leaderElection": {"enabled": True}} if plan.elects else {}))
    looks = any(act.what == "install karpenter" for act in (*plan.history, *plan.faults))
    violations: list[str] = []
    with logged_errors(violations):
        async with staged(
            seed=plan.seed, webhooks=webhooks, settings=settings, looks_for_karpenter=looks, **options
        ) as stage:
            if any(act.what == "settings" for act in plan.history):
                stage.reread = lambda: stage.settings
            async with anyio.create_task_group() as house:
                scene = Scene(stage, Contest(stage, house, plan.seed), plan, webhooks)
                await build(scene)
                scene.judge = judge = Invariants(stage, plan.terms)
                scene.contest.judge = judge.writers.judge
                async with judge.watching():
                    await play(scene, violations)
                house.cancel_scope.cancel()
            violations += [*judge.violations, *scene.contest.broken]
            return Result(
                plan, violations, told(scene), fingerprint(scene), stage.clock.monotonic(), judge.forecasts.counts
            )


async def play(scene: Scene, violations: list[str]) -> None:
    """The history with the faults, and the calm after them."""
    for _ in range(scene.plan.processes):
        scene.contest.born()
    if not await wait_for(scene, lambda: is_settled(scene.stage), SETTLING_SECONDS):
        violations.append("the controllers did not take charge of the nodes")
    scene.begin()
    async with anyio.create_task_group() as group:
        for act in scene.plan.history:
            group.start_soon(history.perform, scene, act)
        for act in scene.plan.faults:
            group.start_soon(faults.perform, scene, act)
    scene.calm()
    if not scene.contest.living:
        scene.contest.born()
    if scene.plan.seed % BLOCKED_SHARE == 0:
        await scene.stage.clock.sleep(BLOCKED_SECONDS)
    await history.mend(scene)
    scene.note("run", "is calm")
    left = await end(scene)
    scene.end(calm=not left)
    violations += left


async def build(scene: Scene) -> None:
    """What the plan has, as far as it fits together."""
    stage, plan = scene.stage, scene.plan
    for node in plan.nodes:
        await stage.add_nodes(node.name, labels=node.labels, claim=node.claim if plan.knows_claims else None)
    for manifest in plan.objects:
        if manifest["kind"] == "NodeDisruptionBudget":
            await scene.attempt("POST", history.NODE_BUDGETS, manifest)
        elif manifest["spec"].get("nodeName", "") in {"", *scene.nodes}:
            await stage.cluster.create(manifest)
    with anyio.move_on_after(READY_SECONDS):
        await stage.cluster.until_ready()


def is_settled(stage: Stage) -> bool:
    """Whether all nodes and claims have the finalizer."""
    return all(is_held(each) for each in (*stage.nodes(), *stage.claims()))


async def end(scene: Scene) -> list[str]:
    """All that was begun comes to its end; returns what does not."""
    stage, terms = scene.stage, scene.plan.terms
    began, until = scene.now, scene.now + terms.calm_seconds
    await stage.clock.sleep(3.0)
    while going(stage):
        if not await wait_for(scene, lambda: not going(stage), until - scene.now):
            return [f"{scene.now:.0f}: not over: {name}: {_stuck(scene, name)}" for name in going(stage)]
        await stage.clock.sleep(3.0)
    if scene.plan.faults:  # a stream that is late stays so, and one that is frozen until it is given up
        await stage.clock.sleep(CALM_SECONDS - (scene.now - began))
    await stage.clock.sleep(QUIET_SECONDS)
    return []


def going(stage: Stage) -> list[str]:
    """Nodes and claims that are being terminated, or are to be."""
    return [
        each["metadata"]["name"]
        for each in (*stage.nodes(), *stage.claims())
        if "deletionTimestamp" in each["metadata"]
        or each["metadata"].get("labels", {}).get(names.LIFECYCLE_PHASE) == names.LIFECYCLE_PHASE_TERMINABLE
        or notice_of(each) is not None
    ] + campaigns.unfinished(stage.server.store.table("nodedrains.gracectl.io"))


def _stuck(scene: Scene, name: str) -> str:
    """Why something is not over, as its condition says."""
    stage = scene.stage
    thing = stage.node(name) or stage.claim(name) or {}
    conditions = thing.get("status", {}).get("conditions", [])
    said = [
        f"{each['type']}={each['status']} {each.get('message', '')}"
        for each in conditions
        if each["type"] in (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING)
    ]
    return f"{'; '.join(said)}; pods {[pod['metadata']['name'] for pod in stage.pods_on(name)]}"


def told(scene: Scene) -> list[tuple[float, str, str]]:
    """All that was done, in order: acts, and the writes of the processes."""
    lines = list(scene.log)
    for each in scene.stage.transport.executed:
        if each.request.method != "GET" and each.operation.plural not in ANYBODYS:
            answer = "" if each.status < 300 else f": {each.status}"
            lines.append((each.instant - scene.start, each.sender, f"{each.operation}{answer}"))
    for entry in scene.stage.cluster.cloud.journal:
        instant = entry.instant - scene.stage.clock.now() + scene.stage.clock.monotonic()
        lines.append((instant - scene.start, "cloud", f"{entry.id} {entry.what}"))
    return sorted(lines, key=lambda line: line[0])


def fingerprint(scene: Scene) -> str:
    """Digest of all that was done."""
    digest = hashlib.sha256()
    for each in scene.stage.transport.executed:
        digest.update(f"{each.instant:.6f} {each.operation} {each.status}\n".encode())
    for entry in scene.stage.cluster.cloud.journal:
        digest.update(f"{entry.instant:.6f} {entry.id} {entry.what}\n".encode())
    return digest.hexdigest()[:16]


@contextmanager
def logged_errors(violations: list[str]) -> Iterator[None]:
    """Whatever gracectl logs with a traceback is a violation, unless a provider has raised it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if error is not None and not isinstance(error, ProviderError):
                violations.append(f"logged by {record.name}: {record.getMessage()[:200]}: {error!r}"[:500])

    handler, logger = Handler(logging.ERROR), logging.getLogger("gracectl")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
