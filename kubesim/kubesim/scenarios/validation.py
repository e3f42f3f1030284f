"""Validation of a scenario beyond its form: expressions, names, bounds that exclude each other.

Invariant: a scenario that passes does not fail later for what its file says, but only for what the API server answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from kubesim.cluster import PARTS
from kubesim.faults import Rule
from kubesim.scenarios.options import definitions_of
from kubesim.scenarios.parser import ScenarioError
from kubesim.scenarios.scenario import Bound, Scenario
from kubesim.server.api import JsonObject
from kubesim.server.selectors import label_query
from kubesim.server.status import Refusal

CLAIM, NEVER = "NodeClaim", "Never"
DURATION = re.compile(r"([0-9]+[smh])+", re.ASCII)
"""As NodeClaims write durations."""


def check(scenario: Scenario, definitions: Iterable[JsonObject]) -> None:
    """Raises ScenarioError with everything that is wrong, a line each. `definitions`: see options_of."""
    complaints = [
        *_parts(scenario),
        *_selectors(scenario),
        *_faults(scenario),
        *_bounds(scenario),
        *_claims(scenario, definitions),
    ]
    if complaints:
        raise ScenarioError("\n".join(f"scenario {scenario.name}: {complaint}" for complaint in complaints))


def _parts(scenario: Scenario) -> Iterator[str]:
    for index, name in enumerate(scenario.controllers.without):
        if name not in PARTS:
            yield f"controllers.without[{index}]: there is no part {name}; choose among {', '.join(sorted(PARTS))}"


def _selectors(scenario: Scenario) -> Iterator[str]:
    selectors = {
        f"kubelet.behaviours[{index}].selector": stage.selector
        for index, stage in enumerate(scenario.kubelet.behaviours)
    }
    for index, step in enumerate(scenario.timeline):
        for field, target in (("patch", step.patch), ("delete", step.delete)):
            if target is not None:
                selectors[f"timeline[{index}].{field}.selector"] = target.selector
    for place, selector in selectors.items():
        try:
            label_query(selector)
        except Refusal as error:
            yield f"{place}: {error}; write label selectors as kubectl takes them, such as app=web,tier!=test"


def _faults(scenario: Scenario) -> Iterator[str]:
    known = set(scenario.faults)
    yield from _rules(scenario.faults, "faults")
    for index, step in enumerate(scenario.timeline):
        yield from _rules(step.add_faults, f"timeline[{index}].addFaults")
        known |= set(step.add_faults)
    for index, step in enumerate(scenario.timeline):
        for name in step.remove_faults:
            if name not in known:
                there = f"choose among {', '.join(sorted(known))}" if known else "there are none"
                yield f"timeline[{index}].removeFaults: there is no fault {name}; {there}"


def _rules(rules: Mapping[str, Rule], place: str) -> Iterator[str]:
    for name, rule in rules.items():
        for field in ("method", "path", "client"):
            try:
                re.compile(getattr(rule, field))
            except re.error as error:
                yield f"{place}.{name}.{field}: {error}; write a regular expression, such as /eviction$"
        if not 0 <= rule.probability <= 1:
            yield f"{place}.{name}.probability: {rule.probability:g} is no probability; choose from 0 to 1"


def _bounds(scenario: Scenario) -> Iterator[str]:
    bounds: dict[str, Bound | None] = {f"budgets[{index}]": bound for index, bound in enumerate(scenario.budgets)}
    for field, forms in (
        ("deployments", scenario.deployments),
        ("statefulSets", scenario.stateful_sets),
        ("daemonSets", scenario.daemon_sets),
        ("jobs", scenario.jobs),
        ("pods", scenario.pods),
    ):
        bounds |= {f"{field}[{index}].budget": form.budget for index, form in enumerate(forms)}
    for place, bound in bounds.items():
        if bound is not None and bound.min_available is not None and bound.max_unavailable is not None:
            yield f"{place}: minAvailable and maxUnavailable exclude each other; keep one of them"
    for index, budget in enumerate(scenario.budgets):
        if bool(budget.app) == (budget.selector is not None):
            yield f"budgets[{index}]: says not which pods; give it one of app and selector"


def _claims(scenario: Scenario, definitions: Iterable[JsonObject]) -> Iterator[str]:
    groups = {f"nodes[{index}]": group for index, group in enumerate(scenario.nodes)}
    for index, step in enumerate(scenario.timeline):
        groups |= {f"timeline[{index}].addNodes[{number}]": group for number, group in enumerate(step.add_nodes)}
    served = {definition["spec"]["names"]["kind"] for definition in definitions_of(scenario, definitions)}
    for place, group in groups.items():
        if group.claims is None:
            continue
        if CLAIM not in served:
            why = "the scenario's own definition is created after the nodes; leave it out"
            remedy = why if scenario.server.crds else "server.crds is false (--no-crds); let it be true"
            yield f"{place}.claims: there can be no NodeClaims: {remedy}"
        for field, text, also in (
            ("terminationGracePeriod", group.claims.termination_grace_period, ""),
            ("expireAfter", group.claims.expire_after, NEVER),
        ):
            if text and text != also and not DURATION.fullmatch(text):
                remedy = f"write whole seconds, minutes and hours, such as 15m or 1h30m{f', or {also}' if also else ''}"
                yield f"{place}.claims.{field}: {text!r} is none; {remedy}"
