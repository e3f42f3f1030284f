"""Validation of webhook configurations, in kube-apiserver's words and order.

Source: ValidateValidatingWebhookConfiguration and its mutating twin, compared with a real Kubernetes 1.33.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kubesim.admission.conditions import condition_fault
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_strings
from kubesim.server.names import LABEL_1035_RULE, SUBDOMAIN_RULE, is_label_1035, is_subdomain, key_faults
from kubesim.server.selectors import label_selector_faults
from kubesim.server.status import (
    DUPLICATE,
    INVALID,
    Cause,
    invalid_value,
    not_supported,
    required,
)

OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
SCOPES: Final = ("*", "Cluster", "Namespaced")
SIDE_EFFECTS: Final = ("None", "NoneOnDryRun")
REVIEW_VERSIONS: Final = ("v1", "v1beta1")
WORDS: Final = {
    "failurePolicy": ("Fail", "Ignore"),
    "matchPolicy": ("Equivalent", "Exact"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
}
URL_FORM: Final = "; desired format: https://host[/path]"
MAX_CONDITIONS: Final = 64


def faults_of(webhooks: Sequence[JsonObject]) -> list[Cause]:
    """Faults of a configuration's webhooks."""
    causes: list[Cause] = []
    names: set[str] = set()
    for index, webhook in enumerate(webhooks):
        field, name = f"webhooks[{index}]", webhook.get("name", "")
        causes += _webhook_faults(webhook, field)
        causes += _condition_faults(webhook.get("matchConditions") or [], f"{field}.matchConditions")
        causes += _version_faults(webhook.get("admissionReviewVersions") or [], f"{field}.admissionReviewVersions")
        if name in names:
            causes.append(_duplicate(f"{field}.name", name))
        elif name:
            names.add(name)
    return causes


def _webhook_faults(webhook: JsonObject, field: str) -> list[Cause]:
    causes = _name_faults(webhook.get("name", ""), f"{field}.name")
    for index, rule in enumerate(webhook.get("rules") or ()):
        causes += _rule_faults(rule, f"{field}.rules[{index}]")
    for key in ("failurePolicy", "matchPolicy"):
        causes += _word_faults(webhook, key, field)
    effects = webhook.get("sideEffects")
    if effects is None:
        causes.append(required(f"{field}.sideEffects", f"must specify one of {', '.join(SIDE_EFFECTS)}"))
    elif effects not in SIDE_EFFECTS:
        causes.append(not_supported(f"{field}.sideEffects", f'"{effects}"', SIDE_EFFECTS))
    seconds = webhook["timeoutSeconds"]
    if not 1 <= seconds <= 30:
        causes.append(
            invalid_value(f"{field}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
        )
    for key in ("namespaceSelector", "objectSelector"):
        causes += label_selector_faults(webhook[key], f"{field}.{key}")
    causes += _word_faults(webhook, "reinvocationPolicy", field)
    return causes + _client_faults(webhook.get("clientConfig") or {}, f"{field}.clientConfig")


def _name_faults(name: str, field: str) -> list[Cause]:
    if not name:
        return [required(field)]
    if not is_subdomain(name):
        return [invalid_value(field, name, SUBDOMAIN_RULE)]
    if name.count(".") < 2:
        return [invalid_value(field, name, "should be a domain with at least three segments separated by dots")]
    return []


def _word_faults(webhook: JsonObject, key: str, field: str) -> list[Cause]:
    word = webhook.get(key)
    if word is None or word in WORDS[key]:
        return []
    return [not_supported(f"{field}.{key}", f'"{word}"', WORDS[key])]


def _rule_faults(rule: JsonObject, field: str) -> list[Cause]:
    operations: list[str] = rule.get("operations") or []
    causes = _alone(operations, f"{field}.operations", "operations", "[]admissionregistration.OperationType")
    causes += [
        not_supported(f"{field}.operations[{index}]", f'"{operation}"', OPERATIONS)
        for index, operation in enumerate(operations)
        if operation not in OPERATIONS
    ]
    causes += _alone(rule.get("apiGroups") or [], f"{field}.apiGroups", "API groups")
    versions: list[str] = rule.get("apiVersions") or []
    causes += _alone(versions, f"{field}.apiVersions", "API versions")
    causes += [required(f"{field}.apiVersions[{index}]") for index, version in enumerate(versions) if not version]
    causes += _resource_faults(rule.get("resources") or [], f"{field}.resources")
    if rule["scope"] not in SCOPES:
        causes.append(not_supported(f"{field}.scope", f'"{rule["scope"]}"', SCOPES))
    return causes


def _alone(words: list[str], field: str, noun: str, go_type: str = "[]string") -> list[Cause]:
    """Faults of a list that must not be empty, and in which `*` stands alone."""
    if not words:
        return [required(field)]
    if len(words) > 1 and "*" in words:
        return [_invalid_list(field, words, f"if '*' is present, must not specify other {noun}", go_type)]
    return []


def _resource_faults(resources: list[str], field: str) -> list[Cause]:
    if not resources:
        return [required(field)]
    causes = [required(f"{field}[{index}]") for index, resource in enumerate(resources) if not resource]
    if len(resources) > 1 and "*/*" in resources:
        causes.append(_invalid_list(field, resources, "if '*/*' is present, must not specify other resources"))
    return causes


def _client_faults(client: JsonObject, field: str) -> list[Cause]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [required(field, "exactly one of url or service is required")]
    if service is not None:
        return _service_faults(service, f"{field}.service")
    assert isinstance(url, str)
    return url_faults(url, f"{field}.url")


def url_faults(url: str, field: str) -> list[Cause]:
    """Faults of a webhook's URL: https, with a host, without user, fragment and query."""
    try:
        split: SplitResult = urlsplit(url)
        wrong = 'invalid character " " in host name' if " " in split.netloc else ""
    except ValueError as error:
        split, wrong = SplitResult("", "", "", "", ""), str(error)
    if wrong:
        return [required(field, f'url must be a valid URL: parse "{url}": {wrong}{URL_FORM}')]
    causes: list[Cause] = []
    if split.scheme != "https":
        why = f"'https' is the only allowed URL scheme{URL_FORM}"
        causes.append(invalid_value(field, split.scheme, why))
    user, at, host = split.netloc.rpartition("@")
    if not host:
        causes.append(invalid_value(field, host, f"host must be specified{URL_FORM}"))
    if at:
        causes.append(invalid_value(field, user, "user information is not permitted in the URL"))
    if split.fragment:
        causes.append(invalid_value(field, split.fragment, "fragments are not permitted in the URL"))
    if split.query:
        causes.append(invalid_value(field, split.query, "query parameters are not permitted in the URL"))
    return causes


def _service_faults(service: JsonObject, field: str) -> list[Cause]:
    missing = [key for key in ("name", "namespace") if not service.get(key)]
    causes = [required(f"{field}.{key}", f"service {key} is required") for key in missing]
    port = service["port"]
    if not 1 <= port <= 65535:
        causes.append(invalid_value(f"{field}.port", port, "port is not valid: must be between 1 and 65535, inclusive"))
    path: str = service.get("path") or ""
    if path in ("", "/"):
        return causes
    if not path.startswith("/"):
        causes.append(invalid_value(f"{field}.path", path, "must start with a '/'"))
    for index, segment in enumerate(path[1:].removesuffix("/").split("/")):
        if not segment:
            causes.append(invalid_value(f"{field}.path", path, f"segment[{index}] may not be empty"))
        elif not is_subdomain(segment):
            causes.append(invalid_value(f"{field}.path", path, f"segment[{index}]: {SUBDOMAIN_RULE}"))
    return causes


def _condition_faults(conditions: list[JsonObject], field: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(conditions) > MAX_CONDITIONS:
        message = f"Too many: {len(conditions)}: must have at most {MAX_CONDITIONS} items"
        causes.append(Cause("FieldValueTooMany", message, field))
    names: set[str] = set()
    for index, condition in enumerate(conditions):
        name, expression = condition.get("name", ""), condition.get("expression", "").strip()
        if not expression:
            causes.append(required(f"{field}[{index}].expression"))
        elif fault := condition_fault(expression):
            causes.append(invalid_value(f"{field}[{index}].expression", expression, fault))
        causes += key_faults(name, f"{field}[{index}].name") if name else [required(f"{field}[{index}].name")]
        if name in names:
            causes.append(_duplicate(f"{field}[{index}].name", name))
        elif name:
            names.add(name)
    return causes


def _version_faults(versions: list[str], field: str) -> list[Cause]:
    known = ", ".join(REVIEW_VERSIONS)
    if not versions:
        return [required(field, f"must specify one of {known}")]
    causes: list[Cause] = []
    for index, version in enumerate(versions):
        if version in versions[:index]:
            causes.append(invalid_value(f"{field}[{index}]", version, "duplicate version"))
        elif not is_label_1035(version):
            causes.append(invalid_value(f"{field}[{index}]", version, LABEL_1035_RULE))
    if not set(versions) & set(REVIEW_VERSIONS):
        causes.append(_invalid_list(field, versions, f"must include at least one of {known}"))
    return causes


def _duplicate(field: str, value: Json) -> Cause:
    return Cause(DUPLICATE, f'Duplicate value: "{value}"', field)


def _invalid_list(field: str, values: list[str], why: str, go_type: str = "[]string") -> Cause:
    return Cause(INVALID, f"Invalid value: {go_strings(values, go_type)}: {why}", field)
