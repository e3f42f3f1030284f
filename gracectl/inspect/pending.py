"""Voluntary terminations that are due and wait, from the objects of the cluster alone.

It uses the functions of the disruption controller, so it is right whether or not a controller runs. What only a
controller knows is missing: replacements that are not Ready yet, and refusals of the server. Changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from itertools import chain

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.disruption.candidate import (
    DisruptionCandidate,
    candidate_keys,
    find_candidate,
    pods_that_may_block,
)
from gracectl.controllers.disruption.pace import CircuitBreaker, terminations_in_progress
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import LONGEST
from gracectl.kube.resources import NODE_CLAIM_VERSIONS
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.budgets import Allowance
from gracectl.policy.disruption import (
    DueTermination,
    Hold,
    due_at,
    explain_due,
    hold_of_claims,
    hold_of_node_budget,
    hold_of_pace,
    hold_of_pods,
)
from gracectl.policy.freeze import hold_of_budget_windows, hold_to_begin
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.nodebudgets import disruption_verdict, remedy_of, selects_node
from gracectl.policy.pace import explain_maximum, maximum_of, rank_of
from gracectl.policy.pending import is_pending, pending_since
from gracectl.policy.voluntary import Cause, Trigger, triggers_of, voluntary_blockers


class DueCandidate(msgspec.Struct, frozen=True):
    """Node or claim with a due termination for health, label or age."""

    candidate: DisruptionCandidate
    found: DueTermination

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it is shown on."""
        return self.candidate.managed or self.candidate.nodes


class DueNode(msgspec.Struct, frozen=True, kw_only=True):
    """Node with a due termination. `hold` None: nothing that the cluster shows blocks it.

    `is_known` False: its pods have not been listed yet.
    """

    due: tuple[Trigger, ...]
    hold: Hold | None
    is_known: bool = True


class PendingStatus(msgspec.Struct, frozen=True):
    """A termination for health, label or age that is due. `causes`: empty if only a controller knows.

    `hold`: the name of what holds it back, as in the condition; empty: nothing that the cluster shows. `since`: when
    (Unix seconds) it was due, or is known to wait; None: unknown. `waits_for`: one line.
    """

    causes: tuple[Cause, ...]
    hold: str
    since: float | None
    waits_for: str


def due_candidates(cluster: ClusterCache, settings: TerminationSettings, now: float) -> tuple[DueCandidate, ...]:
    """All that is due at `now`; needs nodes and claims only."""

    @cache
    def counts(at: float) -> UnhealthyNodes:
        """Counted only if a node is unhealthy."""
        breaker = CircuitBreaker(partial(cluster.manages, settings.managed), settings.policy.health)
        for node in cluster.nodes.values():
            breaker.note(None, node)
        return breaker.counts(at)

    found = []
    for key in candidate_keys(cluster):
        candidate = find_candidate(cluster, settings.managed, NODE_CLAIM_VERSIONS[0], key)
        if candidate is not None:
            triggers = triggers_of(candidate.managed, candidate.claim, settings.policy)
            due = due_at(now, triggers, counts, settings.policy) if triggers else None
            if due is not None and (due.due or due.suspended):
                found.append(DueCandidate(candidate, due))
    return tuple(found)


def names_of(due: Iterable[DueCandidate]) -> frozenset[str]:
    """Names of the nodes that are due."""
    return frozenset(node.name for each in due for node in each.nodes)


def due_nodes(
    cluster: ClusterCache,
    settings: TerminationSettings,
    due: Collection[DueCandidate],
    now: float,
    *,
    node_budgets: Collection[NodeDisruptionBudget] = (),
    has_pods: Callable[[str], bool] = lambda node: True,
) -> Mapping[str, DueNode]:
    """Due nodes with their holds, by name. `has_pods`: whether the pods of a node have been listed."""
    holds: dict[str, DueNode] = {}

    def show(each: DueCandidate, hold: Hold | None, *, is_known: bool = True) -> None:
        triggers = each.found.due or each.found.suspended
        holds.update({node.name: DueNode(due=triggers, hold=hold, is_known=is_known) for node in each.nodes})

    ready = []
    for each in due:
        if each.found.is_urgent:
            show(each, None)
            continue
        hold = each.found.hold if not each.found.due else _hold_to_begin(cluster, settings, each, node_budgets, now)
        if hold is None and not all(has_pods(node.name) for node in each.candidate.nodes):
            show(each, None, is_known=False)
        elif hold is not None or (hold := _hold_of_pods(cluster, settings, each, now)) is not None:
            show(each, hold)
        else:
            ready.append(each)
    policy = settings.policy
    managed = sum(cluster.manages(settings.managed, node) for node in cluster.nodes.values())
    slots = maximum_of(policy.voluntary, managed) - terminations_in_progress(cluster, settings.managed)
    ready.sort(key=lambda each: rank_of(each.found.due, each.candidate.created, each.candidate.key.name))
    for each in ready:
        if slots <= 0:
            show(each, hold_of_pace(explain_maximum(policy.voluntary, managed), policy))
        else:
            hold = _hold_of_node_budgets(each.candidate, node_budgets, now)
            slots -= hold is None
            show(each, hold)
    return holds


def pending_status(node: Node, due: DueNode | None, now: float) -> PendingStatus:
    """Reason why its voluntary termination waits.

    As the cluster shows; else as a controller has written it, which may know more, or have other settings. One of the
    two is there.
    """
    shown = condition_of(node.conditions, names.TERMINATION_PENDING) if is_pending(node) else None
    since = None if shown is None else pending_since((node,), now)
    causes = () if due is None else tuple(dict.fromkeys(trigger.cause for trigger in due.due))
    if shown is not None and (due is None or due.hold is None):
        written = shown.message if due is None else shown.message.removeprefix(f"{explain_due(due.due)} but ")
        text = "; ".join(filter(None, (", ".join(causes), f"{shown.reason}: {written}")))
        return PendingStatus(causes, shown.reason, since, harmless(text, LONGEST))
    assert due is not None
    if since is None:
        since = min((trigger.at for trigger in due.due if trigger.at > -math.inf), default=None)
    if due.hold is not None:
        text = f"{', '.join(causes)}; {due.hold.reason}: {due.hold.text}"
        return PendingStatus(causes, due.hold.reason, since, harmless(text, LONGEST))
    reason = "nothing blocks it; a leading controller deletes it now" if due.is_known else "pods not listed yet"
    return PendingStatus(causes, "", since, f"{', '.join(causes)}; {reason}")


def _hold_to_begin(
    cluster: ClusterCache,
    settings: TerminationSettings,
    each: DueCandidate,
    node_budgets: Collection[NodeDisruptionBudget],
    now: float,
) -> Hold | None:
    windows = settings.policy.voluntary.windows
    hold = hold_to_begin(cluster.freeze(now), windows, "voluntary.windows", now)
    found = None if hold is not None else hold_of_budget_windows(node_budgets, each.candidate.nodes, now)
    return hold if found is None else found[1]


def _hold_of_pods(cluster: ClusterCache, settings: TerminationSettings, each: DueCandidate, now: float) -> Hold | None:
    if each.candidate.is_contested:
        return hold_of_claims()
    if each.found.is_forced:
        return None
    pods = pods_that_may_block(cluster, each.candidate, settings.policy)
    budgets = cluster.budgets_by_pod(tuple(chain.from_iterable(pods.values())))
    found = (voluntary_blockers(those, budgets, now, settings.policy) for those in pods.values())
    blockers = tuple(chain.from_iterable(found))
    return hold_of_pods(blockers) if blockers else None


def _hold_of_node_budgets(
    candidate: DisruptionCandidate, budgets: Iterable[NodeDisruptionBudget], now: float
) -> Hold | None:
    for budget in budgets:
        for node in candidate.nodes:
            if selects_node(budget, node):
                verdict = disruption_verdict(budget, node, now)
                if verdict.allowance not in {Allowance.UNCHARGED, Allowance.ALLOWED}:
                    return hold_of_node_budget(f"{verdict.reason}; {remedy_of(budget, verdict.allowance)}")
    return None
