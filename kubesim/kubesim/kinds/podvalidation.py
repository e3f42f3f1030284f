"""Validation of pod specs, in the real server's words: the mistakes that people make in manifests.

Far from everything that Kubernetes checks; what is not checked here is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubesim.server.api import Json, JsonObject
from kubesim.server.names import LABEL_RULE, SUBDOMAIN_RULE, is_label, is_subdomain
from kubesim.server.status import DUPLICATE, Cause, invalid_value, not_supported, required

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
OPERATORS: Final = ("Equal", "Exists")


def spec_faults(spec: JsonObject, path: str = "spec") -> Iterator[Cause]:
    """The faults of a pod's spec that stands at `path` and has its defaults."""
    volumes = spec.get("volumes") or ()
    yield from _duplicates(volumes, f"{path}.volumes")
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    names = {volume.get("name") for volume in volumes}
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield from _container_faults(container, f"{path}.{field}[{index}]", names, seen)
    yield from _word_faults(spec, path)
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        yield from _toleration_faults(toleration, f"{path}.tolerations[{index}]")
    node = spec.get("nodeName")
    if node and not is_subdomain(node):
        yield invalid_value(f"{path}.nodeName", node, SUBDOMAIN_RULE)


def _word_faults(spec: JsonObject, path: str) -> Iterator[Cause]:
    for field, known in (("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)):
        word = spec.get(field)
        if word and word not in known:
            yield not_supported(f"{path}.{field}", f'"{word}"', known)


def _container_faults(container: JsonObject, path: str, volumes: set[Json], seen: set[str]) -> Iterator[Cause]:
    name = container.get("name")
    if not name:
        yield required(f"{path}.name")
    elif not is_label(name):
        yield invalid_value(f"{path}.name", name, LABEL_RULE)
    elif name in seen:
        yield Cause(DUPLICATE, f'Duplicate value: "{name}"', f"{path}.name")
    else:
        seen.add(name)
    if not container.get("image"):
        yield required(f"{path}.image")
    for index, port in enumerate(container.get("ports") or ()):
        if not port.get("containerPort"):
            yield required(f"{path}.ports[{index}].containerPort")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            yield Cause(
                "FieldValueNotFound", f'Not found: "{mount.get("name", "")}"', f"{path}.volumeMounts[{index}].name"
            )


def _toleration_faults(toleration: JsonObject, path: str) -> Iterator[Cause]:
    operator = toleration.get("operator")
    if operator == "Exists" and toleration.get("value"):
        yield invalid_value(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
    elif operator and operator not in OPERATORS:
        yield not_supported(f"{path}.operator", f'"{operator}"', OPERATORS)


def _duplicates(items: Sequence[JsonObject], path: str) -> Iterator[Cause]:
    seen: set[Json] = set()
    for index, item in enumerate(items):
        if item.get("name") in seen:
            yield Cause(DUPLICATE, f'Duplicate value: "{item.get("name")}"', f"{path}[{index}].name")
        seen.add(item.get("name"))


def restart_faults(spec: JsonObject, allowed: tuple[str, ...], path: str) -> Iterator[Cause]:
    """Faults of a template of a kind that restricts the restart policy."""
    policy = spec.get("restartPolicy")
    if policy in allowed or policy not in RESTART_POLICIES:
        return
    if "Always" in allowed:
        yield not_supported(f"{path}.restartPolicy", f'"{policy}"', allowed)
    else:
        words = ", ".join(f'"{word}"' for word in allowed)
        yield required(f"{path}.restartPolicy", f"valid values: {words}")
