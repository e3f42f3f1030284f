"""The columns of volumes, their claims, classes and attachments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.printers.cells import AGE, NAME, count, path
from kubesim.server.api import JsonObject
from kubesim.server.resource import Cell, Column

UNSET: Final = "<unset>"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _phase(object_: JsonObject, now: float) -> str:
    if "deletionTimestamp" in object_["metadata"]:
        return "Terminating"
    phase: str = (object_.get("status") or {}).get("phase", "")
    return phase


def _modes(part: str) -> Cell:
    read = path(part, "accessModes", missing=())
    # In the order of the abbreviations' own list, not in the object's.
    return lambda object_, now: ",".join(short for mode, short in MODES.items() if mode in read(object_, now))


def _claim(volume: JsonObject, now: float) -> str:
    claim = volume["spec"].get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _class_name(class_: JsonObject, now: float) -> str:
    is_default = (class_["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    return f"{class_['metadata'].get('name', '')}{' (default)' if is_default else ''}"


ATTRIBUTES: Final = Column("VolumeAttributesClass", path("spec", "volumeAttributesClassName", missing=UNSET))
STORAGE_CLASS: Final = Column("StorageClass", path("spec", "storageClassName", missing=""))
MODE: Final = Column("VolumeMode", path("spec", "volumeMode", missing=UNSET), wide=True)

COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "persistentvolumes": (
        NAME,
        Column("Capacity", path("spec", "capacity", "storage", missing="")),
        Column("Access Modes", _modes("spec")),
        Column("Reclaim Policy", path("spec", "persistentVolumeReclaimPolicy", missing="")),
        Column("Status", _phase),
        Column("Claim", _claim),
        STORAGE_CLASS,
        ATTRIBUTES,
        Column("Reason", path("status", "reason", missing="")),
        AGE,
        MODE,
    ),
    "persistentvolumeclaims": (
        NAME,
        Column("Status", _phase),
        Column("Volume", path("spec", "volumeName", missing="")),
        Column("Capacity", path("status", "capacity", "storage", missing="")),
        Column("Access Modes", _modes("status")),
        STORAGE_CLASS,
        ATTRIBUTES,
        AGE,
        MODE,
    ),
    "storageclasses": (
        NAME._replace(cell=_class_name),
        Column("Provisioner", path("provisioner", missing="")),
        Column("ReclaimPolicy", path("reclaimPolicy", missing="Delete")),
        Column("VolumeBindingMode", path("volumeBindingMode", missing="Immediate")),
        Column("AllowVolumeExpansion", path("allowVolumeExpansion", missing=False), "boolean"),
        AGE,
    ),
    "csinodes": (NAME, Column("Drivers", count("spec", "drivers"), "integer"), AGE),
    "volumeattachments": (
        NAME,
        Column("Attacher", path("spec", "attacher", missing="")),
        Column("PV", path("spec", "source", "persistentVolumeName", missing="")),
        Column("Node", path("spec", "nodeName", missing="")),
        Column("Attached", path("status", "attached", missing=False), "boolean"),
        AGE,
    ),
}
