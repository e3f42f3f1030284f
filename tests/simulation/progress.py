"""Rules about what is not done: a termination that nothing holds goes on, and one that waits says for what.

Judged while nothing disturbs (see Observer.calm_since). What holds a termination is worked out from what the server
stores, its admission and its cloud.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from kubesim.server.api import JsonObject
from kubesim.server.selectors import selector_matches

from gracectl.config import Settings
from gracectl.model import names
from simulation.contract import (
    NEVER,
    blocks_node,
    condition,
    group_of,
    has_finalizer,
    is_daemon,
    is_deleted,
    is_managed,
    is_urgent,
    labels_of,
    notice_of,
    protected_until,
    ranges_of,
    wave_of,
)
from simulation.deadlines import RETRIES
from simulation.machines import has_node, volumes_on, waits_for_volumes
from simulation.observer import Observer, PodFacts, Rule, ThingFacts

TICK: Final = 5.0
"""Seconds between two looks."""

PROMPT_TICK: Final = 0.25
"""Likewise, where it is judged whether pods are evicted at once."""

SHOWN: Final = 90.0
"""A state that lasts a minute is shown; until its condition or Event is written, some seconds pass."""

REFUSED: Final = 30.0
"""For so many seconds a refusal by the server, which admission or another object causes, holds what was refused."""


Wait = tuple[ThingFacts, str, tuple[str, ...]]
"""A node or claim whose termination waits, its state, and what it waits for."""


class Hold(msgspec.Struct, frozen=True):
    """What a termination waits for. `is_held`: something else must happen first; else a controller has to act."""

    state: str
    subjects: tuple[str, ...]
    is_held: bool


class Progress(Rule):
    """A drain that nothing holds advances, and each pod that nothing holds leaves, within the stated time; so does a
    node whose machine has ended. Objects at which the server is at work hold themselves only."""

    name = "stall"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._free: dict[str, tuple[str, float]] = {}  # by uid of a pod or node, what is free, and since when
        self._reported: set[tuple[str, str]] = set()

    def tick(self) -> None:
        if self.seen.now < self.seen.calm_since:
            return
        conditions: dict[str, tuple[str, str]] = {}
        for node in self.seen.living_nodes():
            if is_ours(self.seen, node):
                hold, free = hold_of(self.seen, node)
                for pod in free:
                    conditions[pod.uid] = (f"pod {pod.name} on node {node.name}", "may be evicted")
                if not hold.is_held and not free and not _is_at_work(self.seen, "nodes", node.name):
                    conditions[node.uid] = (f"node {node.name}", hold.state)
        for claim in self.seen.claims.values():
            if claim.gone == NEVER and (state := self._of_claim(claim)):
                conditions[claim.uid] = (f"claim {claim.name}", state)
        for uid, (what, state) in conditions.items():
            before = self._free.get(uid)
            since = before[1] if before is not None and before[0] == state else self.seen.now
            self._free[uid] = state, since
            limit = self.seen.terms.stall_seconds
            if self.seen.now - since > limit and (uid, state) not in self._reported:
                self._reported.add((uid, state))
                self.violated(f"{what} {state}: nothing holds it, and nothing has happened for {limit:g} s")
        self._free = {uid: self._free[uid] for uid in conditions}

    def _of_claim(self, claim: ThingFacts) -> str:
        """What a controller has to do about a claim that is being deleted; empty: nothing."""
        if claim.deleted == NEVER or not has_finalizer(claim.object):
            return ""
        nodes = [each for each in self.seen.living_nodes() if claim.uid in each.claims]
        if nodes and has_node(claim):
            return ""  # its nodes are judged themselves; a budget for nodes may hold them
        if any(each.uid != claim.uid and each.provider_id == claim.provider_id for each in self.seen.claims.values()):
            return ""
        is_hindered = was_refused(self.seen, "nodeclaims", claim.name) or provider_failed(self.seen, claim)
        if is_hindered or self.seen.instance_state(claim.instance) == "shutting-down":
            return ""
        return "waits for its instance or its finalizer"

    def end(self, calm: bool) -> None:
        """When the time that the terms grant is over, what still terminates is held by something."""
        self.tick()


class Interruptions(Rule):
    """The node of a machine that goes soon is deleted at once, whatever budgets, the pace, or its pods say."""

    name = "unheard"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._since: dict[str, float] = {}

    def tick(self) -> None:
        if self.seen.now < self.seen.calm_since:
            return
        late = {node.uid: node.name for node in self.seen.living_nodes() if self._is_late(node)}
        self._since = {uid: self._since.get(uid, self.seen.now) for uid in late}
        for uid, since in self._since.items():
            if self.seen.now - since > self.seen.terms.stall_seconds:
                self.violated(f"node {late[uid]} is interrupted, and was not deleted for {self.seen.now - since:.0f} s")

    def _is_late(self, node: ThingFacts) -> bool:
        settings = self.seen.settings[-1]
        if not is_managed(settings, labels_of(node.object)) or any(
            claim.deleted < NEVER for claim in self.seen.claims_of(node)
        ):
            return False
        is_hindered = was_refused(self.seen, "nodes", node.name) or _is_at_work(self.seen, "nodes", node.name)
        return node.deleted == NEVER and is_urgent(node.object, self.seen.unix, settings) and not is_hindered


class Promptness(Rule):
    """A pod that nothing holds is evicted within the time that the terms grant: no wake-up is lost that a probe, or
    another change, would make good later."""

    name = "not prompt"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._free: dict[str, float] = {}  # by uid of a pod, since when it may be evicted
        self._reported: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled, closely while the terms grant a time."""
        while True:
            is_judged = self.seen.terms.prompt_seconds < NEVER
            if is_judged:
                self._look()
            await self.seen.stage.clock.sleep(PROMPT_TICK if is_judged else TICK)

    def _look(self) -> None:
        nodes = [node for node in self.seen.living_nodes() if is_ours(self.seen, node)]
        free = {pod.uid: pod for node in nodes for pod in hold_of(self.seen, node)[1]}
        self._free = {uid: self._free.get(uid, self.seen.now) for uid in free}
        limit = self.seen.terms.prompt_seconds
        for uid, since in self._free.items():
            if self.seen.now - since > limit and uid not in self._reported:
                self._reported.add(uid)
                self.violated(f"pod {free[uid].name} may be evicted, and was not for {limit:g} s")


class Visibility(Rule):
    """A termination that waits for longer than a minute says for what, by a condition or an Event on its object."""

    name = "not shown"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._waits: dict[str, tuple[tuple[str, ...], float]] = {}
        self._reported: set[tuple[str, str]] = set()

    def tick(self) -> None:
        if self.seen.now < self.seen.calm_since:
            return
        waiting = [*self._nodes(), *self._claims()]
        for facts, state, subjects in waiting:
            self._look(facts, state, subjects)
        self._waits = {facts.uid: self._waits[facts.uid] for facts, _, _ in waiting}

    def _nodes(self) -> Iterator[Wait]:
        for node in self.seen.living_nodes():
            if is_ours(self.seen, node):
                hold, _ = hold_of(self.seen, node)
                yield node, hold.state, hold.subjects
            elif node.deleted == NEVER and self._is_due(node) and not self._has_begun(node):
                yield node, "is pending", ()

    def _claims(self) -> Iterator[Wait]:
        """Claims that are being deleted, as long as no node that is being deleted shows it for them."""
        for claim in self.seen.claims.values():
            if claim.deleted < claim.gone == NEVER and has_finalizer(claim.object):
                nodes = [each for each in self.seen.living_nodes() if claim.uid in each.claims]
                living = tuple(each.name for each in nodes if each.deleted == NEVER)
                if living and has_node(claim):
                    yield claim, "waits for the deletion of its nodes", living
                elif len(living) == len(nodes):
                    yield claim, "waits", ()

    def _has_begun(self, node: ThingFacts) -> bool:
        """Whether its claim is being deleted: its termination is pending no more, and the claim says what it waits for,
        also in the moment before the node is deleted with it."""
        return any(claim.deleted < NEVER for claim in self.seen.claims_of(node))

    def _is_due(self, node: ThingFacts) -> bool:
        is_labelled = labels_of(node.object).get(names.LIFECYCLE_PHASE) == names.LIFECYCLE_PHASE_TERMINABLE
        return (is_labelled or notice_of(node.object) is not None) and is_managed(
            self.seen.settings[-1], labels_of(node.object)
        )

    def _look(self, facts: ThingFacts, state: str, subjects: tuple[str, ...]) -> None:
        before = self._waits.get(facts.uid)
        # Each pod or volume that leaves is progress.
        kept = before is not None and before[0][0] == state and {*before[0][1:]} <= {*subjects}
        since = before[1] if before is not None and kept else self.seen.now
        self._waits[facts.uid] = (state, *subjects), since
        if self.seen.now - since <= SHOWN or (facts.uid, state) in self._reported:
            return
        if not is_shown(self.seen, facts, state, subjects):
            self._reported.add((facts.uid, state))
            listed = f" ({', '.join(subjects[:3])})" if subjects else ""
            self.violated(f"{facts.name} {state}{listed} for {self.seen.now - since:.0f} s, and nothing says so")


def is_ours(seen: Observer, node: ThingFacts) -> bool:
    """Whether a controller is to drain the node: it is deleted and held by our finalizer, or to be kept drained."""
    if not is_managed(seen.settings[-1], labels_of(node.object)):
        return False
    return seen.is_kept(node) or (is_deleted(node.object) and has_finalizer(node.object))


def hold_of(seen: Observer, node: ThingFacts) -> tuple[Hold, list[PodFacts]]:
    """What a node waits for, and the pods that may be evicted now."""
    is_kept = seen.is_kept(node)
    waited = [pod for pod in seen.pods_on(node.name) if pod.waited < NEVER and not seen.is_stuck(pod, seen.now)]
    waited = [pod for pod in waited if not (is_kept and is_daemon(pod.object))]
    if waited:
        free = [] if _is_at_work(seen, "nodes", node.name) else list(_free(seen, node, waited))
        return Hold("waits for pods", tuple(sorted(pod.name for pod in waited)), is_held=True), free
    if seen.now < node.deleted + minimum_seconds(seen.settings[-1], node):
        return Hold("is empty for too short a time", (), is_held=True), []
    if is_kept:
        return Hold("is drained", (), is_held=True), []
    if left := volumes_on(seen, node.name):
        return Hold("waits for volumes", tuple(left), is_held=True), []
    state, provider = seen.instance_state(node.instance), seen.stage.provider
    is_confirmed = state == "terminated" or node.provider_id in provider.said_gone
    if (not is_confirmed or not node.provider_id) and not seen.has_rivals(node):
        is_held = state == "shutting-down" or provider_failed(seen, node)
        return Hold("waits for its instance", (), is_held=is_held), []
    is_held = was_refused(seen, "nodes", node.name) or _has_living_claim(seen, node) or seen.has_rivals(node)
    # The end of a machine is known when the provider says so, again to a process that has started since.
    said, failed = (each.get(node.provider_id, -NEVER) for each in (provider.said_gone, provider.failures))
    is_unknown = failed > said and provider_failed(seen, node)
    return Hold("waits for its finalizer", (), is_held=is_held or is_unknown), []


def minimum_seconds(settings: Settings, node: ThingFacts) -> float:
    """How long a drain takes at least, and some time until its condition is written."""
    group = group_of(settings, labels_of(node.object))
    return 2.0 + (settings.drain if group is None or group.drain is None else group.drain).minimum_seconds


def _free(seen: Observer, node: ThingFacts, waited: list[PodFacts]) -> Iterator[PodFacts]:
    """The pods of the current wave that nothing holds."""
    settings = seen.settings[-1]
    ranges = ranges_of(settings, labels_of(node.object))
    wave = min(wave_of(pod.object, ranges) for pod in waited)
    protected = {pod.uid for pod in waited if pod.asked == NEVER and protected_until(pod.object, settings) > seen.unix}
    if any(blocks_node(pod.object) and protected_until(pod.object, settings) > seen.unix for pod in waited):
        return  # until such pods are gone, also while they end
    for pod in waited:
        is_turn = wave_of(pod.object, ranges) == wave and pod.asked == NEVER and pod.uid not in protected
        if is_turn and not waits_for_volumes(seen, pod) and _budgets_allow(seen, pod) and not is_hindered(seen, pod):
            yield pod


def is_hindered(seen: Observer, pod: PodFacts) -> bool:
    """Whether the server is at work on its eviction, or has refused it just now for another reason than a budget."""
    if _is_at_work(seen, "pods", pod.name) or _is_full(seen, pod.namespace):
        return True
    table = seen.stage.server.store.table("namespaces")
    return is_deleted(table.get("", pod.namespace)) or was_refused(seen, "pods", pod.name)


def _budgets_allow(seen: Observer, pod: PodFacts) -> bool:
    table = seen.stage.server.store.table("poddisruptionbudgets.policy").in_namespace(pod.namespace).values()
    budgets = [each for each in table if selector_matches(each["spec"].get("selector"), labels_of(pod.object))]
    if len(budgets) > 1:
        return False
    if not budgets:  # it may have lost one just now
        changed = max(seen.selectors_changed.get(pod.namespace, -NEVER), pod.relabelled)
        return seen.now >= changed + max(each.eviction.settle_seconds for each in seen.settings)
    return all(_allows(budget) for budget in budgets)


def _allows(budget: JsonObject) -> bool:
    status = budget.get("status", {})
    is_counted = status.get("observedGeneration") == budget["metadata"]["generation"]
    return bool(is_counted and status.get("disruptionsAllowed", 0) > 0)


def _is_full(seen: Observer, namespace: str) -> bool:
    """Whether the server is at work on as many pods of a namespace as may be requested at once."""
    operations = (each.operation for each in seen.stage.transport.in_work.values())
    busy = sum(each.plural == "pods" and each.namespace == namespace for each in operations)
    return busy >= seen.settings[-1].eviction.max_in_flight


def _is_at_work(seen: Observer, plural: str, name: str) -> bool:
    operations = (each.operation for each in seen.stage.transport.in_work.values())
    return any((each.plural, each.name) == (plural, name) for each in operations)


def was_refused(seen: Observer, plural: str, name: str) -> bool:
    """Whether the server has refused a write to this object just now."""
    for each in reversed(seen.stage.transport.executed):
        if seen.now - each.instant > REFUSED:
            return False
        if (each.operation.plural, each.operation.name) == (plural, name) and each.status >= 400:
            return each.request.method != "GET" and each.status != 404
    return False


def provider_failed(seen: Observer, facts: ThingFacts) -> bool:
    """Whether the provider has failed for this instance within its longest pause, or does not know it."""
    failed = seen.stage.provider.failures.get(facts.provider_id, -NEVER)
    refused = any(each.what.startswith("refused") for each in seen.journal(facts.instance)[-1:])
    return not facts.provider_id or refused or seen.now - failed < RETRIES


def _has_living_claim(seen: Observer, node: ThingFacts) -> bool:
    return any(claim.deleted == NEVER for claim in seen.claims_of(node))


def is_shown(seen: Observer, facts: ThingFacts, state: str, subjects: tuple[str, ...]) -> bool:
    """Whether a condition on the object says that it waits, and names one of the subjects, if any. An Event will do
    where no condition is for that, or the server has refused to write one."""
    types = WORDS.get(state, ())
    conditions = (condition(facts.object, type_) for type_ in types or ALL)
    shown = [f"{each.get('reason')} {each.get('message', '')}" for each in conditions if each]
    if not types or was_refused(seen, "nodes", facts.name) or was_refused(seen, "nodeclaims", facts.name):
        events = seen.stage.server.store.table("events")
        about = (each for each in events if each.get("involvedObject", {}).get("uid") == facts.uid)
        ours = (each for each in about if each.get("source", {}).get("component") == names.EVENT_COMPONENT)
        shown += [str(each.get("message", "")) for each in ours]
    if not subjects:
        return bool(shown)
    return any(subject in text or names.STEP_FAILING in text for subject in subjects for text in shown)


ALL: Final = (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING, names.TERMINATION_PENDING)
WORDS: Final = {
    "waits for pods": (names.DRAINED,),
    "waits for volumes": (names.VOLUMES_DETACHED,),
    "waits for its instance": (names.INSTANCE_TERMINATING,),
    "is pending": (names.TERMINATION_PENDING,),
    "waits for the deletion of its nodes": (names.DRAINED,),
    "is drained": (names.DRAINED,),
}
"""Conditions that say so, by state."""
