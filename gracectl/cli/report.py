"""JSON that commands print: the encoder, and the objects that several commands share.

Instants are RFC 3339 by the server's clock; a field that ends in `Seconds` is a number of seconds. Invariants: fields
are added, never renamed or removed; lists have the order of the table.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from gracectl.model.encoding import INDENTED, encode
from gracectl.model.foreign import visible_json
from gracectl.model.times import format_time
from gracectl.policy.answers import Answer, Never, NeverCause, Unknown, Window
from gracectl.policy.eviction_queues import QueuePosition
from gracectl.policy.owners import Ownership
from gracectl.policy.protection import Protection
from gracectl.policy.warnings import PlanWarning

Json = dict[str, Any]
"""A JSON object as it is printed."""


class JsonObject(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all JSON objects: immutable, names in camelCase."""


def to_json(value: object, *, indent: int = 2) -> str:
    """One JSON object; `indent` 0: on one line."""
    return visible_json(encode(value, INDENTED if indent else 0).decode())


def to_yaml(value: object) -> str:
    """Return the object as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=1000).rstrip()


def structured(value: object, output: str) -> str:
    """The object for a program, in the notation that `-o` names: yaml, or json."""
    return to_yaml(value) if output == "yaml" else to_json(value)


def instant(at: float | None) -> str | None:
    """RFC 3339; None for None."""
    return None if at is None else format_time(at)


def queue_position_report(position: QueuePosition | None) -> Json | None:
    """Position (from 1) of a pod in the queue of its budget, if it waits for one; `after`: the pod before it.

    `undecided`: pods of several nodes are equal, so it may have the position of any of them.
    """
    if position is None:
        return None
    ahead = None if position.ahead is None else "/".join(position.ahead.entry.pod.key)
    return {"number": position.number, "of": position.of, "after": ahead, "undecided": position.is_undecided}


def protection_report(protection: Protection | None) -> Json | None:
    """Protection of a pod. `until` null: until it is removed; `valid` false: the value cannot be parsed."""
    if protection is None:
        return None
    return {
        "kind": protection.kind,
        "value": protection.value,
        "until": instant(protection.until),
        "valid": protection.is_valid,
        "capped": protection.is_capped,
    }


def warning_report(warning: PlanWarning) -> Json:
    """A warning of a plan or a status. `blocking`: the node will not be drained, or not gracefully."""
    return {
        "kind": warning.kind.value,
        "blocking": warning.kind.is_blocking,
        "message": warning.message,
        "objects": warning.objects,
        "remedy": warning.remedy or None,
    }


def answer_report(answer: Answer | None, at: float) -> Json | None:
    """When something happens: `answer` is range, unknown or never; what an answer does not have is null or empty.

    Seconds count from `at`, and are never negative. `expected`: when it probably happens. `missing`: what is not known.
    `causes`: why never.
    """
    if answer is None:
        return None
    earliest = None if isinstance(answer, Never) else answer.earliest
    latest, expected = (answer.latest, answer.expected) if isinstance(answer, Window) else (None, None)
    return {
        "answer": answer.__struct_config__.tag,
        "earliest": instant(earliest),
        "latest": instant(latest),
        "expected": instant(expected),
        "earliestSeconds": _seconds(earliest, at),
        "latestSeconds": _seconds(latest, at),
        "expectedSeconds": _seconds(expected, at),
        "certain": isinstance(answer, Window) and answer.is_certain,
        "missing": answer.missing if isinstance(answer, Unknown) else (),
        "causes": tuple(map(_never_cause, answer.causes)) if isinstance(answer, Never) else (),
    }


def _never_cause(cause: NeverCause) -> Json:
    return {"kind": cause.kind.value, "message": cause.reason, "pod": cause.pod, "budgets": cause.budgets}


def _seconds(instant: float | None, at: float) -> float | None:
    return None if instant is None else max(round(instant - at, 3), 0.0)


def owner_report(owner: Ownership | None, *, is_assisted: bool) -> Json | None:
    """The other controller that drains a node, what shows it, and whether gracectl evicts its pods, too."""
    return None if owner is None else {"name": owner.owner.value, "reason": owner.reason, "assisted": is_assisted}
