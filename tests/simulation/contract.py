"""Promises of gracectl about one object, worked out from its manifest by the documentation and not by the code.

Nothing here uses gracectl.policy. Where the contract depends on settings, it takes them as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Final

import msgspec
from kubesim.server.api import JsonObject
from kubesim.server.selectors import selector_matches
from kubesim.values import parse_seconds, parse_time

from gracectl.config import Settings
from gracectl.config.settings import NodeGroupSettings
from gracectl.model import names

NEVER: Final = float("inf")
STUCK: Final = 60.0
"""For so many seconds after its grace a pod that is still there is waited for."""
LONGEST_DURATION: Final = 60
"""Characters of a duration; a longer text is none."""

Ranges = tuple[tuple[int, float], ...]
"""Waves by priority: the least priority of each, and its seconds before a deadline; empty: the default waves."""


def own_grace(pod: JsonObject) -> int:
    """The seconds that a pod asks for; the server fills in 30 where it says nothing."""
    seconds: int = pod["spec"].get("terminationGracePeriodSeconds", 30)
    return max(seconds, 1) if seconds < 0 else seconds


def written_deadline(thing: JsonObject | None) -> float:
    """The deadline (Unix seconds) that is written on a node or claim; NEVER when none is that can be read."""
    text = ((thing or {}).get("metadata", {}).get("annotations") or {}).get(names.TERMINATION_TIMESTAMP, "")
    try:
        return float(floor(parse_time(text)))
    except ValueError:
        return NEVER


def notice_of(thing: JsonObject | None) -> tuple[str, float] | None:
    """The kind of the interruption of a node, and when its machine goes (Unix seconds; NEVER: it is not known)."""
    text = ((thing or {}).get("metadata", {}).get("annotations") or {}).get(names.INTERRUPTION)
    if text is None:
        return None
    kind, when, *_ = text.split(" ")
    return kind, NEVER if when == "unknown" else float(floor(parse_time(when)))


def is_urgent(thing: JsonObject | None, now: float, settings: Settings) -> bool:
    """Whether nothing delays the deletion of a node: its machine goes anyway, and soon."""
    notice = notice_of(thing)
    if notice is None:
        return False
    kind, at = notice
    return kind not in ("maintenance", "rebalance") or at - parse_seconds(settings.interruption.lead_time) <= now


def annotations_of(thing: JsonObject) -> Mapping[str, str]:
    """Its annotations."""
    values: Mapping[str, str] = thing["metadata"].get("annotations") or {}
    return values


def labels_of(thing: JsonObject) -> Mapping[str, str]:
    """Its labels."""
    labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return labels


def is_deleted(thing: JsonObject | None) -> bool:
    """Whether its deletion has begun."""
    return thing is not None and "deletionTimestamp" in thing["metadata"]


def has_finalizer(thing: JsonObject | None) -> bool:
    """Whether our finalizer is on it."""
    return thing is not None and not set(names.FINALIZERS).isdisjoint(thing["metadata"].get("finalizers") or ())


def condition(thing: JsonObject | None, type_: str) -> JsonObject:
    """A condition; empty if it has none of that type."""
    conditions = (thing or {}).get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == type_), {})


def is_ready(thing: JsonObject | None) -> bool:
    """Whether a pod or node is Ready, and not on its way out."""
    return condition(thing, names.READY).get("status") == names.TRUE and not is_deleted(thing)


def protected_until(pod: JsonObject, settings: Settings) -> float:
    """Until when (Unix seconds) a pod must not be evicted; NEVER: for ever, 0.0: it is not protected."""
    rules = settings.protection
    start = pod["metadata"]["creationTimestamp"] if rules.reference == "creation" else _started(pod)
    text = annotations_of(pod).get(names.DO_NOT_DISRUPT)
    if not blocks_node(pod) and text is None:
        return 0.0
    if start is None:
        return NEVER  # it counts from a start that has not come
    began, seconds = parse_time(start), NEVER if blocks_node(pod) else _duration(text or "")
    return began + min(seconds, NEVER if rules.maximum_seconds is None else rules.maximum_seconds)


def blocks_node(pod: JsonObject) -> bool:
    """Whether a pod has do-not-evict, which blocks all pods of its node as long as it protects."""
    values = (labels_of(pod).get(names.DO_NOT_EVICT), annotations_of(pod).get(names.DO_NOT_EVICT))
    return any(value not in (None, "false") for value in values)


def _started(pod: JsonObject) -> str | None:
    started: str | None = pod.get("status", {}).get("startTime")
    return started


def _duration(text: str) -> float:
    """Seconds of a positive duration; NEVER for "true", and for whatever is none."""
    try:
        seconds = parse_seconds(text) if len(text) <= LONGEST_DURATION else 0.0
    except ValueError:
        return NEVER
    return seconds if seconds > 0 else NEVER


def is_waited_for(pod: JsonObject, *, is_maintenance: bool = False) -> bool:
    """Whether a drain waits for the pod at all: it has not finished, belongs not to its node, and has not agreed to
    stay. A pod that is stuck is another question."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    owners = pod["metadata"].get("ownerReferences") or ()
    if names.MIRROR_POD in annotations_of(pod) or any(_is_node(owner) for owner in owners):
        return False
    if is_maintenance and is_daemon(pod):
        return False
    return not any(_tolerates(each) for each in pod["spec"].get("tolerations") or ())


def is_silent(node: JsonObject) -> bool:
    """Whether the kubelet of a node has stopped reporting."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (names.READY, names.UNKNOWN) for each in conditions)


def _is_node(owner: JsonObject) -> bool:
    return (owner["apiVersion"], owner["kind"]) == ("v1", names.NODE_KIND)


def _tolerates(toleration: JsonObject) -> bool:
    key, effect = toleration.get("key") or None, toleration.get("effect") or None
    if effect not in (None, names.NO_SCHEDULE):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return key in (None, names.DISRUPTED_TAINT_KEY)
    return key == names.DISRUPTED_TAINT_KEY and not toleration.get("value")


def is_daemon(pod: JsonObject) -> bool:
    """Whether a DaemonSet controls the pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["kind"] == names.DAEMON_SET for owner in owners)


def wave_of(pod: JsonObject, ranges: Ranges) -> int:
    """The wave in which a pod leaves; the least goes first."""
    priority = pod["spec"].get("priority") or 0
    if ranges:
        return max(sum(least <= priority for least, _ in ranges) - 1, 0)
    is_critical = (
        priority >= names.CRITICAL_PRIORITY or pod["spec"].get("priorityClassName") in names.CRITICAL_PRIORITY_CLASSES
    )
    return (2 if is_critical else 0) + (1 if is_daemon(pod) else 0)


def seconds_behind(wave: int, ranges: Ranges) -> float:
    """Seconds that the waves behind this one may have before a deadline, at most."""
    return floor(sum(seconds for _, seconds in ranges[wave + 1 :])) if ranges else 0.0


def group_of(settings: Settings, labels: Mapping[str, str]) -> NodeGroupSettings | None:
    """The first node group that matches these labels."""
    for group in settings.node_groups:
        if selector_matches(msgspec.to_builtins(group.selector), labels):
            return group
    return None


def is_managed(settings: Settings, labels: Mapping[str, str]) -> bool:
    """Whether gracectl manages a node with these labels."""
    if settings.node_selector is None:
        return names.CONTROL_PLANE_ROLE not in labels
    return selector_matches(msgspec.to_builtins(settings.node_selector), labels)


def ranges_of(settings: Settings, labels: Mapping[str, str]) -> Ranges:
    """The waves of a node with these labels, the lowest first."""
    group = group_of(settings, labels)
    for each in (group, settings):
        if each is None:
            continue
        if each.shutdown_grace_period_by_pod_priority is not None:
            ranges = each.shutdown_grace_period_by_pod_priority
            return tuple(sorted((one.priority, float(one.shutdown_grace_period_seconds)) for one in ranges))
        if each.shutdown_grace_period is not None:
            total = parse_seconds(each.shutdown_grace_period)
            critical = parse_seconds(each.shutdown_grace_period_critical_pods or "0")
            return ((0, total - critical), (names.CRITICAL_PRIORITY, critical)) if total else ()
    return ()


def period_of_group(settings: Settings, labels: Mapping[str, str]) -> float | None:
    """The termination grace period (seconds) of the node group of these labels; None: it has none."""
    group = group_of(settings, labels)
    text = None if group is None else group.termination_grace_period
    return None if text is None else parse_seconds(text)


def period_of_claim(claim: JsonObject) -> float | None:
    """The termination grace period (seconds) of a claim; None: its group decides. NEVER: it cannot be read."""
    text = claim["spec"].get("terminationGracePeriod")
    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ValueError:
        return NEVER


def is_open(windows: list[JsonObject], unix: float, slack: float) -> bool:
    """Whether one of these windows is open at an instant, or within `slack` seconds of it; each opens every few minutes
    of the hour (`*/2 * * * *`)."""
    for window in windows:
        every = int(window["schedule"][2]) * 60.0
        lasts = parse_seconds(window["duration"])
        if any((unix + offset) % every < lasts for offset in (-slack, 0.0, slack)):
            return True
    return not windows
