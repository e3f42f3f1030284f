"""What is wrong with a LabelSelector, in the real server's words and order (ValidateLabelSelector of apimachinery)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubesim.server.api import JsonObject
from kubesim.server.names import VALUE_RULE, is_value, key_faults
from kubesim.server.status import Cause, forbidden_value, invalid_value, required


def label_selector_faults(selector: JsonObject, field: str) -> Iterator[Cause]:
    """Faults of the selector at `field`."""
    labels: Mapping[str, str] = selector.get("matchLabels") or {}
    for key, value in labels.items():
        yield from key_faults(key, f"{field}.matchLabels")
        yield from _value_faults(value, f"{field}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        yield from _term_faults(term, f"{field}.matchExpressions[{index}]")


def _term_faults(term: JsonObject, field: str) -> Iterator[Cause]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden_value(f"{field}.values", why)
    else:
        yield invalid_value(f"{field}.operator", operator, "not a valid selector operator")
    yield from key_faults(term.get("key", ""), f"{field}.key")
    for index, value in enumerate(values):
        yield from _value_faults(value, f"{field}.values[{index}]")


def _value_faults(value: str, field: str) -> Iterator[Cause]:
    if not is_value(value):
        yield invalid_value(field, value, VALUE_RULE)
