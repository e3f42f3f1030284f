"""Release of a pod from its ReplicaSet, and its return: what is written to the pods, and what can be read from them.

The selector of a ReplicaSet has a label that no Service has, `pod-template-hash`. If a pod has another value there, its
ReplicaSet drops it and creates a replacement, while Services and budgets keep selecting both. With the old value, the
ReplicaSet adopts the pod again. Invariant: one write changes the label and the annotation that says what it was, so the
pod alone says how it is returned.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.pod import LONGEST_RELEASE, Pod
from gracectl.model.selectors import is_subdomain, validate_label_value
from gracectl.model.times import format_time, parse_time

LABELS: Final = (names.POD_TEMPLATE_HASH, names.ROLLOUT_HASH, names.REPLACE_FIRST)
"""Labels by which a pod can be released, in order of preference."""

CHEAPEST: Final = str(-(2**31))
"""Lowest pod-deletion-cost: a ReplicaSet removes this pod before any other that is as Ready."""

_PARTS: Final = 4

Patched = dict[str, object]


class Release(msgspec.Struct, frozen=True):
    """What a pod is released from. `at`: Unix seconds. `kind`, `workload`: of the object that a person knows, a
    Deployment, Rollout or ReplicaSet; `label`, `value`: what was changed.
    """

    at: float
    kind: str
    workload: str
    label: str
    value: str

    @property
    def replica_set(self) -> str:
        """Name of the ReplicaSet."""
        return self.workload if self.kind == names.REPLICA_SET else f"{self.workload}-{self.value}"

    @property
    def text(self) -> str:
        """Value of the annotation: `2026-01-01T00:00:00Z Deployment/web pod-template-hash 6d4cf56db6`."""
        return f"{format_time(self.at)} {self.kind}/{self.workload} {self.label} {self.value}"


def release_of(pod: Pod) -> Release | None:
    """What this pod is released from; None if it is not released, or its annotation is not ours."""
    text = pod.annotations.get(names.RELEASED_FROM, "")
    parts = text.split(" ")
    if len(parts) != _PARTS or len(text) >= LONGEST_RELEASE:
        return None
    kind, _, workload = parts[1].partition("/")
    if parts[2] not in LABELS or pod.labels.get(parts[2]) != names.RELEASED:
        return None
    try:
        # What is written back to the label, and selected by: the server would refuse other text each time.
        validate_label_value(parts[3])
        release = Release(parse_time(parts[0]), harmless(kind), workload, parts[2], parts[3])
    except ValueError:
        return None
    return release if is_subdomain(release.replica_set) else None


def release_patch(release: Release) -> Patched:
    """Merge patch that releases a pod; send it with the pod's UID and resourceVersion."""
    annotations = {names.RELEASED_FROM: release.text, names.REPLACEMENT_FAILED: None}
    return {"metadata": {"labels": {release.label: names.RELEASED}, "annotations": annotations}}


def return_patch(release: Release, *, failed_at: float | None = None) -> Patched:
    """Merge patch that returns a released pod; send it with the pod's UID and resourceVersion.

    `failed_at`: the instant of the return, if its replacement was not Ready in time.
    """
    failed = {} if failed_at is None else {names.REPLACEMENT_FAILED: format_time(failed_at)}
    annotations = {names.RELEASED_FROM: None, **failed}
    return {"metadata": {"labels": {release.label: release.value}, "annotations": annotations}}


def surplus_patch() -> Patched:
    """Merge patch of the replacement, sent before the return: the ReplicaSet then removes it, not the old pod."""
    return {"metadata": {"annotations": {names.POD_DELETION_COST: CHEAPEST}}}
