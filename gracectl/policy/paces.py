"""Forecast of drains by several owners: gracectl's own, those that it assists, and those that it does not.

Another owner evicts when it looks, not when a budget allows it. So of an unassisted drain the earliest end is
that of a drain by gracectl, and the latest is known only where no budget and no protection is in the way, or where a
deadline ends it. Otherwise the end is unknown. Invariant: such a drain makes the end of every other drain unknown that
waits for the same budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gracectl.policy.answers import Answer, Unknown, Window
from gracectl.policy.explain import listed
from gracectl.policy.forecast import Assumptions, Bounds, Forecast, NodeForecast, PodForecast, forecast
from gracectl.policy.other_drains import PACES
from gracectl.policy.owners import DrainOwner
from gracectl.policy.plan import Outcome
from gracectl.policy.scenario import DrainingNode, RemovalMethod

FREE_SECONDS: Final = 15.0
"""Karpenter's four groups, each found by a look per second and evicted a second later; its minimum of five seconds."""

LATE_SECONDS: Final = 13.0
"""Karpenter deletes for a deadline after a backoff of up to 10 s, a pod has a second, and it looks each second."""

STUCK_SECONDS: Final = 62.0
"""Karpenter waits this long for a pod that has outlived its grace."""


def forecast_all(draining: Iterable[DrainingNode], now: float, assumptions: Assumptions) -> Forecast:
    """See `forecast`. Each unassisted drain is simulated alone: its order among the others is unknown."""
    nodes = tuple(draining)
    others = [each for each in nodes if each.view.is_unassisted]
    if not others:
        return forecast(nodes, now, assumptions)
    joint = forecast((each for each in nodes if not each.view.is_unassisted), now, assumptions)
    contested = {budget.key: each for each in others for found in each.view.budgets.values() for budget in found}
    found = {each.name: _contested(each, contested) for each in joint.nodes}
    for each in others:
        (alone,) = forecast((each,), now, assumptions).nodes
        found[alone.name] = _at_own_pace(alone)
    in_order = tuple(found[each.view.node.name] for each in nodes)
    return msgspec.structs.replace(joint, nodes=in_order)


def _at_own_pace(node: NodeForecast) -> NodeForecast:
    """The forecast of a drain that its owner carries out alone."""
    other = node.draining.view.other
    assert other is not None
    pods = tuple(_pod_at_own_pace(node, pod) for pod in node.pods)
    if not isinstance(node.drained, Window):
        return msgspec.structs.replace(node, pods=pods)
    drained = _latest(node, node.drained, [pod for pod in node.pods if pod.is_waited_for])
    return msgspec.structs.replace(node, pods=pods, drained=drained)


def _pod_at_own_pace(node: NodeForecast, pod: PodForecast) -> PodForecast:
    if not pod.is_waited_for:
        return pod
    before = [each for each in node.pods if each.is_waited_for and each.entry.wave < pod.entry.wave]
    leaves, gone = (
        _latest(node, answer, [*before, pod]) if isinstance(answer, Window) else answer
        for answer in (pod.leaves, pod.gone)
    )
    return msgspec.structs.replace(
        pod,
        leaves=leaves,
        gone=gone,
        removal=_bounded(pod.removal, leaves),
        terminated=_bounded(pod.terminated, gone),
        removals=() if RemovalMethod.DELETED in pod.methods else pod.removals,
    )


def _bounded(bounds: Bounds | None, answer: Answer | None) -> Bounds | None:
    if bounds is None:
        return None
    return Bounds(bounds.earliest, answer.latest if isinstance(answer, Window) else None)


def _latest(node: NodeForecast, answer: Window, pods: Iterable[PodForecast]) -> Answer:
    """The answer with the latest instant at the owner's pace. `pods`: what it depends on."""
    other, view = node.draining.view.other, node.draining.view
    assert other is not None
    pods = tuple(pods)
    is_terminating = all(pod.entry.outcome is Outcome.TERMINATING for pod in pods)
    is_free = is_terminating or not any(pod.entry.budgets or pod.entry.protection for pod in pods)
    if other.owner is not DrainOwner.KARPENTER or not (is_free or view.deadline is not None):
        return Unknown((PACES[other.owner],), answer.earliest)
    latest = answer.latest + FREE_SECONDS
    if view.deadline is not None:
        late = max(view.deadline, node.at) + LATE_SECONDS
        latest = min(latest, late) if is_free else late
    ends = (pod.entry.pod.deletion_timestamp for pod in pods)
    if not view.node.ready or any(end is not None and end <= node.at for end in ends):
        latest += STUCK_SECONDS
    return Window(answer.earliest, max(latest, answer.latest))


def _contested(node: NodeForecast, contested: dict[tuple[str, str], DrainingNode]) -> NodeForecast:
    """The forecast of a drain by gracectl, of which another owner may take the budgets."""
    keys = {key: contested[key] for pod in node.pods for key in pod.entry.budgets if key in contested}
    if not keys or not isinstance(node.drained, Window) or node.draining.view.deadline is not None:
        return node
    owners = listed(sorted({each.view.other.owner for each in keys.values() if each.view.other is not None}))
    budgets = listed(sorted("/".join(key) for key in keys))
    missing = f"how often {owners} takes what budget {budgets} allows"
    drained = Unknown((missing,), node.drained.earliest)

    def unknown(pod: PodForecast) -> PodForecast:
        if not keys.keys() & {*pod.entry.budgets}:
            return pod
        leaves, gone = (
            Unknown((missing,), answer.earliest) if isinstance(answer, Window) else answer
            for answer in (pod.leaves, pod.gone)
        )
        return msgspec.structs.replace(pod, leaves=leaves, gone=gone)

    return msgspec.structs.replace(node, drained=drained, pods=tuple(map(unknown, node.pods)))
