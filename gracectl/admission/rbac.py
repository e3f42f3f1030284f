"""Permissions of admission, beside those of the controller: no more than the settings need."""

from __future__ import annotations

from typing import Any

from gracectl.admission.registration import CONFIGURATIONS
from gracectl.admission.settings import AdmissionSettings
from gracectl.kube.rbac import Permission
from gracectl.kube.resources import SECRETS, Resource


def admission_permissions(settings: AdmissionSettings) -> tuple[Permission, ...]:
    """Permissions for these settings; none without admission. One Secret, and the two configurations by name, if they
    are written at all; only create cannot be limited by name."""
    if not settings.is_wanted:
        return ()
    wanted: list[Permission] = []
    if not settings.certificates.are_given:
        wanted += [_on(SECRETS, verb, settings.secret, settings.namespace) for verb in ("get", "update")]
        wanted.append(_on(SECRETS, "create", "", settings.namespace))
    for resource in CONFIGURATIONS.values() if settings.writes_configurations else ():
        verbs = ("get", "update") if settings.register else ("get", "patch")
        wanted += [_on(resource, verb, settings.name) for verb in verbs]
        if settings.register:
            wanted.append(_on(resource, "create"))
    return tuple(wanted)


def _on(resource: Resource[Any], verb: str, name: str = "", namespace: str = "") -> Permission:
    return Permission(verb, resource.plural, resource.group, namespace=namespace, name=name)
