"""Confirmation of "never" in a forecast: one reading must prove a structural cause, or two readings must agree.

The controller that writes a status lags: a budget may seem to require all of its pods while one of them is being
replaced, and a failure to count may be a failed request. Until a second reading agrees, the answer is
unknown; once an object of the cause has changed, it is unknown again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gracectl.policy.answers import Answer, CauseKey, Never, NeverCause, Sightings, Unknown
from gracectl.policy.forecast import Forecast, NodeForecast

AGREE_SECONDS: Final = 5.0
"""Minimum time between two readings that confirm a cause."""

SETTLED_SECONDS: Final = 120.0
"""Time for which a budget's own status must have allowed nothing to count as the first reading; for a budget that at
some time required fewer than all of its pods, time for which it must show the cause. Source: the disruption controller
remembers an evicted pod for this long at most (DeletionTimeout).
"""


def confirmed(forecast: Forecast, before: Sightings) -> tuple[Forecast, Sightings]:
    """Forecast that says "never" only where confirmed, else "unknown"; and the sightings for the next forecast.

    `before`: the sightings of the previous forecast.
    """
    at, allowing = forecast.at, {"/".join(key) for key in forecast.assumptions.observed.allowing}
    found = {cause for node in forecast.nodes if isinstance(node.drained, Never) for cause in node.drained.causes}
    seen = {key: before.get(key, at) for key in map(_key, found)}

    def is_confirmed(cause: NeverCause) -> bool:
        was_allowing = not allowing.isdisjoint(cause.budgets)
        has_lasted = cause.since is not None and at - cause.since >= SETTLED_SECONDS
        if has_lasted or (cause.is_settled and not was_allowing):
            return True
        return at - seen[_key(cause)] >= (SETTLED_SECONDS if was_allowing else AGREE_SECONDS)

    return _with_causes(forecast, is_confirmed, "whether this lasts"), seen


def is_unconfirmed(forecast: Forecast, seen: Sightings) -> bool:
    """Whether a second reading would turn an unknown answer into never."""
    drained = (node.drained for node in forecast.nodes)
    never = {_key(cause) for answer in drained if isinstance(answer, Never) for cause in answer.causes}
    return bool(seen.keys() - never)


def current(forecast: Forecast, changed_at: Callable[[NeverCause], float]) -> Forecast:
    """The forecast as it may be shown now. `changed_at`: the last change of an object of a cause (Unix seconds)."""
    return _with_causes(forecast, lambda cause: changed_at(cause) <= forecast.at, "what follows from a change of this")


def _key(cause: NeverCause) -> CauseKey:
    return cause.kind, " ".join(cause.budgets) or cause.pod


def _with_causes(forecast: Forecast, holds: Callable[[NeverCause], bool], doubt: str) -> Forecast:
    nodes = tuple(_node(node, holds, doubt) for node in forecast.nodes)
    return forecast if nodes == forecast.nodes else msgspec.structs.replace(forecast, nodes=nodes)


def _node(node: NodeForecast, holds: Callable[[NeverCause], bool], doubt: str) -> NodeForecast:
    if not isinstance(node.drained, Never) or all(map(holds, node.drained.causes)):
        return node
    pods = tuple(
        msgspec.structs.replace(
            pod,
            leaves=None if pod.leaves is None else _answer(pod.leaves, holds, doubt),
            gone=None if pod.gone is None else _answer(pod.gone, holds, doubt),
        )
        for pod in node.pods
    )
    return msgspec.structs.replace(node, drained=_answer(node.drained, holds, doubt), pods=pods)


def _answer(answer: Answer, holds: Callable[[NeverCause], bool], doubt: str) -> Answer:
    if not isinstance(answer, Never):
        return answer
    causes = tuple(cause for cause in answer.causes if holds(cause))
    if causes:
        return Never(causes)
    return Unknown(tuple(dict.fromkeys(f"{doubt}: {cause.reason}" for cause in answer.causes)))
