"""Validation of workloads that make pods of a template, in the real server's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubesim.kinds.podvalidation import restart_faults, spec_faults
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_string_map
from kubesim.server.selectors import label_selector_faults, selector_matches
from kubesim.server.status import INVALID, Cause, invalid_value, required

MISMATCH: Final = "`selector` does not match template `labels`"


def template_faults(kind: str, spec: JsonObject, restarts: tuple[str, ...]) -> Iterator[Cause]:
    """Faults of a workload's spec: replicas, selector, template. `restarts`: how its pods may be restarted."""
    replicas = spec.get("replicas")
    if isinstance(replicas, int) and replicas < 0:
        yield invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
    template = spec.get("template") or {}
    yield from selector_faults(kind, spec.get("selector"), (template.get("metadata") or {}).get("labels"))
    pod = template.get("spec") or {}
    yield from spec_faults(pod, "spec.template.spec")
    yield from restart_faults(pod, restarts, "spec.template.spec")


def selector_faults(kind: str, selector: Json, labels: Json) -> Iterator[Cause]:
    """Faults of a selector that must select the pods of its own template."""
    if selector is None:
        yield required("spec.selector")
    elif not any(selector.get(part) for part in ("matchLabels", "matchExpressions")):
        why = f"Invalid value: {go_selector(None)}: empty selector is invalid for {kind.lower()}"
        yield Cause(INVALID, why, "spec.selector")
        return
    faults = list(label_selector_faults(selector or {}, "spec.selector"))
    if faults:
        yield from faults
        return
    if not selector_matches(selector, labels or {}):
        why = f"Invalid value: {go_string_map(labels)}: {MISMATCH}"
        yield Cause(INVALID, why, "spec.template.metadata.labels")


def go_selector(selector: Json) -> str:
    """A selector as Go prints it. Expressions are not spelled out."""
    labels = go_string_map((selector or {}).get("matchLabels"))
    return f"v1.LabelSelector{{MatchLabels:{labels}, MatchExpressions:[]v1.LabelSelectorRequirement(nil)}}"


def immutable_selector(new: JsonObject, old: JsonObject) -> Iterator[Cause]:
    """The fault of a change of what a workload selects."""
    selector = new["spec"].get("selector")
    if selector != old["spec"].get("selector"):
        why = f"Invalid value: {go_selector(selector)}: field is immutable"
        yield Cause(INVALID, why, "spec.selector")
