"""What the metrics of this room say: what budgets for nodes allow, and how those were answered who asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gracectl.nodebudgets.admitter import ANSWERS, Admitter
from gracectl.policy.budgets import Allowance
from gracectl.policy.nodebudgets import allowance_of
from gracectl.telemetry.metrics import NODE_ADMISSIONS, NODE_BUDGETS, Sample

STATES = {
    Allowance.ALLOWED: "allowing",
    Allowance.EXHAUSTED: "spent",
    Allowance.NOT_COUNTABLE: "uncounted",
    Allowance.NOT_OBSERVED: "unobserved",
}
"""How a budget stands, in the word that metrics and `gracectl budgets` have for it."""


def gate_samples(gate: Admitter) -> Iterator[Sample]:
    """For every value of every label."""
    node_statuses = Counter(allowance_of(budget) for budget in gate.budgets.values())
    for allowance, state in STATES.items():
        yield Sample(NODE_BUDGETS, (state,), node_statuses[allowance])
    answers = gate.statistics()
    for answer in ANSWERS:
        yield Sample(NODE_ADMISSIONS, (answer,), answers[answer])
