"""Shrinking of a plan that fails: parts are left out, one after another, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable

from simulation.plan import LISTS, REFUGE, Plan


def shrink(plan: Plan, fails: Callable[[Plan], bool], tries: int = 400) -> Plan:
    """The smallest plan found by so many tries; `fails` runs one, and says whether it breaks the same rule."""
    left = [tries]

    def is_enough(smaller: Plan) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        return fails(smaller)

    before = None
    while before != plan and left[0] > 0:
        before = plan
        for name in LISTS:
            plan = _shorter(plan, name, is_enough)
        for simpler in plan.simpler():
            if is_enough(simpler):
                plan = simpler
                break
    return plan


def _shorter(plan: Plan, name: str, is_enough: Callable[[Plan], bool]) -> Plan:
    """With the parts of one list left out: first half of them at once, then fewer."""
    size = len(getattr(plan, name))
    while size:
        start = 0
        while start < len(getattr(plan, name)):
            smaller = plan.without(name, start, start + size)
            kept = name != "nodes" or any(node.name == REFUGE for node in smaller.nodes)
            if kept and is_enough(smaller):
                plan = smaller
            else:
                start += size
        size //= 2
    return plan
