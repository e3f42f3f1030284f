"""Pods and volume attachments with the fields that decisions need: immutable, small enough for 150,000 pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.model.meta import ClusterObject, NamespacedObject, OwnerReference

LONGEST_DURATION: Final = 60
"""Maximum characters of a do-not-disrupt that can be a duration; a longer value is invalid.

The chart's ValidatingAdmissionPolicy (templates/protection-policy.yaml) has the same bound.
"""

LONGEST_RELEASE: Final = 400
"""Characters of a released-from: an instant, the kind and name of a workload, a label and its value."""


LONGEST_GRACE: Final = 2**31 - 1
"""Seconds, 68 years: a server stores graces of up to 2**63 - 1, with which an instant has no parts of a second left."""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """An entry of spec.tolerations. No operator means Equal, no effect all effects, no key all keys."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Pod(NamespacedObject, frozen=True, gc=False):
    """One pod. A pod is identified by its uid; a namesake with another uid is another pod.

    Maps and tuples may be shared between pods: they are for reading only.
    """

    node_name: str = ""
    """Empty while the pod is not bound."""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only the keys that decisions read, each value cut to one character more than LONGEST_DURATION (released-from: to
    LONGEST_RELEASE)."""
    owners: tuple[OwnerReference, ...] = ()
    created: float = 0.0
    """Instant of metadata.creationTimestamp."""
    started: float | None = None
    """Instant of status.startTime: when the kubelet saw the pod first. Kept only for pods with annotations, or with the
    label do-not-evict: protection counts from it, and nothing else does."""
    deletion_timestamp: float | None = None
    """Instant at which the grace of a deleted pod ends; it may lie in the past while the pod still stops."""
    deletion_grace_seconds: int | None = None
    """The grace that a deleted pod was granted, in seconds; LONGEST_GRACE at most, either way."""
    grace_seconds: int | None = None
    """spec.terminationGracePeriodSeconds; LONGEST_GRACE at most, either way."""
    priority: int | None = None
    priority_class: str = ""
    tolerations: tuple[Toleration, ...] = ()
    phase: str = ""
    ready: bool = False
    """Whether the condition Ready is "True"."""
    claims: tuple[str, ...] = ()
    """Names of the PersistentVolumeClaims it mounts, including generic ephemeral volumes."""
    completes: bool = False
    """Whether its containers are not restarted when they succeed (restartPolicy Never or OnFailure)."""
    empty_dir: bool = False
    """Whether it has an emptyDir volume; its data is lost with the pod."""
    inline_volumes: tuple[str, ...] = ()
    """Ids of the disks that its spec names itself, without a claim; they are attached to its node as well."""
    scheduler: str = ""
    """spec.schedulerName; empty for the default scheduler."""

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls it, and replaces it when it goes; None if there is none."""
        return next((owner for owner in self.owners if owner.controller), None)


class UnknownPod(Pod, frozen=True, gc=False):
    """A pod whose object cannot be decoded: only its envelope is known.

    Whether it is protected, ignored, or may be evicted cannot be decided.
    """

    error: str = ""


class VolumeAttachment(ClusterObject, frozen=True, gc=False):
    """A volume that is attached to a node, or will be."""

    node_name: str = ""
    volume_name: str = ""
    """The PersistentVolume; empty for an inline volume."""
    attached: bool = False
    deletion_timestamp: float | None = None
    driver: str = ""
    """The CSI driver that attaches and detaches it."""
    volume_handle: str = ""
    """Id of an inline volume, as its driver knows it; empty for a PersistentVolume."""


class PersistentVolumeClaim(NamespacedObject, frozen=True, gc=False):
    """Joins a pod's volume to the PersistentVolume that an attachment names."""

    volume_name: str = ""
    """Empty until the claim is bound."""
    access_modes: tuple[str, ...] = ()
