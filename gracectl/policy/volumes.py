"""Attached volumes: which attachments a drain waits for, and which pods leave after them.

A volume is detached when its pod is gone and the kubelet has unstaged it, with the CSI node plugin of its driver.
Plugins run as DaemonSet pods. Nothing reliable shows which DaemonSet serves which driver, so all DaemonSet pods stay
until the volumes of drained pods are detached: without its plugin a volume stays attached indefinitely. Sources:
kubernetes-sigs/aws-ebs-csi-driver#1955, kubernetes-sigs/karpenter#944.

Invariant: a pod with volumes of its own waits for no volume, so that pods never wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import natural_key
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.waves import is_daemon

VolumesByClaim = Mapping[tuple[str, str], str]
"""Names of PersistentVolumes by the UID of a pod and the name of a claim that it mounts."""

STILL_ATTACHED_SECONDS = 60.0
"""Time after which a volume that is still attached without its pod gets an Event."""

_NO_PODS: Final[Mapping[str, str]] = {}

SHOWN = 3
"""Attachments in a message."""


def has_volumes(pod: Pod) -> bool:
    """Whether the pod mounts volumes that may be attached to its node."""
    return bool(pod.claims or pod.inline_volumes)


def uses_volumes(pod: Pod) -> bool:
    """Whether volumes may be attached to its node for the pod now."""
    return has_volumes(pod) and pod.phase not in (names.SUCCEEDED, names.FAILED)


def waits_for_volumes(pod: Pod) -> bool:
    """Whether the pod leaves after the volumes of drained pods are detached."""
    return is_daemon(pod) and pod.deletion_timestamp is None and not has_volumes(pod)


def attachments_to_await(
    attachments: Iterable[VolumeAttachment], staying: Sequence[Pod], volumes: VolumesByClaim
) -> tuple[VolumeAttachment, ...]:
    """Attachments of drained pods: all except the attachments of `staying` pods, which detach when the node ends."""
    names = {volumes.get((pod.uid, claim)) for pod in staying for claim in pod.claims}
    inline = {_last_segment(volume) for pod in staying for volume in pod.inline_volumes}
    return tuple(
        each
        for each in attachments
        if (each.volume_name not in names if each.volume_name else _last_segment(each.volume_handle) not in inline)
    )


def unread_claims(staying: Iterable[Pod], volumes: VolumesByClaim) -> tuple[tuple[Pod, str], ...]:
    """Claims of staying pods with an unknown volume, which may be one of the attached ones."""
    return tuple((pod, claim) for pod in staying for claim in pod.claims if (pod.uid, claim) not in volumes)


def describe(attachment: VolumeAttachment, pod: str = "") -> str:
    """`pvc-1 of shop/db-0 (attachment csi-5f3a, driver ebs.csi.aws.com)`."""
    volume = harmless(attachment.volume_name or attachment.volume_handle or "inline volume")
    of = f" of {pod}" if pod else ""
    return f"{volume}{of} (attachment {attachment.name}, driver {harmless(attachment.driver) or 'unknown'})"


def listed_attachments(attachments: Iterable[VolumeAttachment], pods: Mapping[str, str] = _NO_PODS) -> str:
    """The first few, by volume, and how many more there are. `pods`: by PersistentVolume, the pods that are known."""
    in_order = sorted(attachments, key=lambda each: natural_key(each.volume_name or each.name))
    more = [f"and {len(in_order) - SHOWN} more"] if len(in_order) > SHOWN else []
    shown = [describe(each, pods.get(each.volume_name, "")) for each in in_order[:SHOWN]]
    return ", ".join([*shown, *more])


def _last_segment(volume: str) -> str:
    """The name of an inline volume without its zone or project: CSI migration writes `aws://zone/vol-1` as `vol-1`, and
    a disk `d` of GCE as `projects/…/disks/d`."""
    return volume.rpartition("/")[2]
