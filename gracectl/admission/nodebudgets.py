"""Whether a NodeDisruptionBudget that somebody writes can be counted by, and whether it does what it seems to.

The definition's schema refuses most of it as well, in words that a schema has. Never held up: what leaves the spec as
it was, whatever was let in before, and what is being deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gracectl.admission.findings import Finding, invalid, misread
from gracectl.admission.reviews import YES, Answer, NotAReview, Question, present
from gracectl.kube.cache import Cache
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.intorpercent import scaled_value
from gracectl.model.node import Node
from gracectl.model.nodebudget import NodeDisruptionBudget
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import Object
from gracectl.policy.nodebudgets import bound_of, desired_of, invalid_reason, selects_node

WHOLE: Final = 100
"""Percent."""


class NodeBudgetWriting:
    """Validating, of budgets that are made or changed; `nodes` say how many a budget selects now."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes

    async def __call__(self, question: Question) -> Answer:
        """See reviews.Handler."""
        raw = present(question.object, "object")
        written = _read(raw)
        if written.metadata.deletion_timestamp is not None:
            return YES
        if question.old_object is not None and _canonical(_read(question.old_object)) == _canonical(written):
            return YES
        try:
            budget = NODE_BUDGETS.decode(raw)
        except msgspec.DecodeError as error:
            fault = misread(error)
            if not fault.field.startswith("spec"):
                raise NotAReview(f"request.object is no NodeDisruptionBudget: {error}") from error
            return Answer(invalid(question, _named(question), [fault]))
        if findings := [*_findings(budget)]:
            return Answer(invalid(question, _named(question), findings))
        return Answer(warnings=tuple(self._warnings(budget)))

    def _warnings(self, budget: NodeDisruptionBudget) -> Iterator[str]:
        selector = budget.selector
        if selector is None or not (selector.match_labels or selector.match_expressions):
            yield "spec.selector: is empty and selects no node; name labels (matchLabels) for it to have an effect"
            return
        bound = bound_of(budget)
        if _lets_nobody_go(budget):
            yield f"spec: {bound} lets no Ready node end, ever"
        elif self._nodes.live:
            selected = sum(selects_node(budget, node) for node in self._nodes.values())
            if selected and desired_of(budget, selected) >= selected:
                yield f"spec: {bound} lets no Ready node end as long as it selects {_nodes(selected)}, as it does now"


def _findings(budget: NodeDisruptionBudget) -> Iterator[Finding]:
    if budget.selector_error:
        yield Finding("spec.selector", budget.selector_error)
    problem = invalid_reason(msgspec.structs.replace(budget, selector_error=""))
    if problem is not None:
        field, _, text = problem.partition(": ")
        yield Finding(field, text)
        return
    for field, value in (("minAvailable", budget.min_available), ("maxUnavailable", budget.max_unavailable)):
        if isinstance(value, str) and scaled_value(value, WHOLE, round_up=True) > WHOLE:
            yield Finding(f"spec.{field}", f"{value!r} is more than all nodes; give 100% or less")


def _lets_nobody_go(budget: NodeDisruptionBudget) -> bool:
    if budget.max_unavailable is not None:
        return scaled_value(budget.max_unavailable, WHOLE, round_up=True) == 0
    value = budget.min_available
    return isinstance(value, str) and scaled_value(value, WHOLE, round_up=True) >= WHOLE


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _named(question: Question) -> str:
    return f"NodeDisruptionBudget {question.name}".rstrip()


class _Meta(Object):
    deletion_timestamp: str | None = None


class _Written(Object):
    """What decides whether there is anything to look at."""

    metadata: _Meta
    spec: object = None


def _read(raw: msgspec.Raw) -> _Written:
    try:
        return _WRITTEN.decode(raw)
    except msgspec.DecodeError as error:
        raise NotAReview(f"request.object is no NodeDisruptionBudget: {error}") from error


def _canonical(written: _Written) -> bytes:
    """The spec, so that two that say the same are the same. (To Python, 1 is true.)"""
    return msgspec.json.encode(written.spec, order="deterministic")


_WRITTEN = Decoder(_Written)
