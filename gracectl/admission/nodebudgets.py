"""Validation of NodeDisruptionBudgets: whether a budget can be evaluated, and whether it does what it seems to.

The schema of the CRD also rejects most invalid values, with less helpful messages. Always allowed: writes that keep the
spec, and objects that are being deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gracectl.admission import reviews
from gracectl.kube.cache import Cache
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget, scaled_value
from gracectl.model.node import Node
from gracectl.policy.explain import counted
from gracectl.policy.nodebudgets import bound_of, desired_of, invalid_reason, selects_node
from gracectl.policy.windows import invalid_window

WHOLE: Final = 100
"""Percent."""


class NodeBudgetValidator:
    """Validating webhook for created and updated budgets; `nodes` tell how many nodes a budget selects now."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        raw = reviews.required(request.object, "object")
        if not reviews.is_spec_new(request, NODE_BUDGETS.kind):
            return reviews.ALLOWED
        try:
            budget = NODE_BUDGETS.decode(raw)
        except msgspec.DecodeError as error:
            field_error = reviews.type_error(error)
            if not field_error.field.startswith("spec"):
                raise reviews.InvalidReview(f"request.object is not a NodeDisruptionBudget: {error}") from error
            return reviews.AdmissionResponse(reviews.invalid(request, _named(request), [field_error]))
        if errors := [*_errors(budget)]:
            return reviews.AdmissionResponse(reviews.invalid(request, _named(request), errors))
        return reviews.AdmissionResponse(warnings=tuple(self._warnings(budget)))

    def _warnings(self, budget: NodeDisruptionBudget) -> Iterator[str]:
        selector = budget.selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            yield "spec.selector: empty, selects no node; set matchLabels for the budget to have an effect"
            return
        bound = bound_of(budget)
        if _never_allows(budget):
            yield f"spec: {bound} never allows the deletion of a Ready node"
        elif self._nodes.live:
            selected = sum(selects_node(budget, node) for node in self._nodes.values())
            if selected and desired_of(budget, selected) >= selected:
                nodes = counted(selected, "node")
                yield f"spec: {bound} allows no deletion of a Ready node while it selects {nodes}, as now"


def _errors(budget: NodeDisruptionBudget) -> Iterator[reviews.FieldError]:
    if budget.selector_error:
        yield reviews.FieldError("spec.selector", budget.selector_error)
    if problem := invalid_window(budget.windows, "spec.windows"):
        field, _, text = problem.partition(": ")
        yield reviews.FieldError(field, text)
    problem = invalid_reason(msgspec.structs.replace(budget, selector_error=""))
    if problem is not None:
        field, _, text = problem.partition(": ")
        yield reviews.FieldError(field, text)
        return
    for field, value in (("minAvailable", budget.min_available), ("maxUnavailable", budget.max_unavailable)):
        if isinstance(value, str) and scaled_value(value, WHOLE, round_up=True) > WHOLE:
            yield reviews.FieldError(f"spec.{field}", f"{value!r} is more than all nodes; set 100% or less")


def _never_allows(budget: NodeDisruptionBudget) -> bool:
    if budget.max_unavailable is not None:
        return scaled_value(budget.max_unavailable, WHOLE, round_up=True) == 0
    value = budget.min_available
    return isinstance(value, str) and scaled_value(value, WHOLE, round_up=True) >= WHOLE


def _named(request: reviews.AdmissionRequest) -> str:
    return f"NodeDisruptionBudget {request.name}".rstrip()
