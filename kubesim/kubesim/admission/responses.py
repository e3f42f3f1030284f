"""Responses of webhooks: decoded as Go would, verified as kube-apiserver does; anything else is a `CallFailed`.

The wording was looked up on a real server (1.33). Audit annotations are not kept: there is no audit log.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from kubesim.admission.failures import CallFailed
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import decoded_as

GROUP: Final = "admission.k8s.io"
KIND: Final = "AdmissionReview"
FIELDS: Final[Mapping[str, tuple[type, str]]] = {
    "uid": (str, "types.UID"),
    "allowed": (bool, "bool"),
    "status": (dict, "v1.Status"),
    "patch": (str, "[]uint8"),
    "patchType": (str, "v1.PatchType"),
    "warnings": (list, "[]string"),
    "auditAnnotations": (dict, "map[string]string"),
}
TYPE_META: Final = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)
NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/=\r\n]")


class Verdict(NamedTuple):
    """A verified answer. `status`: the webhook's reason for a denial, if any; `patch`: a JSON patch, or nothing."""

    allowed: bool
    status: JsonObject | None
    patch: bytes
    patch_type: str
    warnings: list[str]


def verdict(body: bytes, version: str, uid: str, *, mutating: bool) -> Verdict:
    """Read and verify the answer to a review of `version` (`v1`, `v1beta1`) and `uid`. Raises CallFailed."""
    parsed = _parsed(body)
    kind, api_version = parsed.get("kind") or "", parsed.get("apiVersion") or ""
    if kind not in ("", KIND) or api_version not in ("", f"{GROUP}/{version}"):
        raise CallFailed(f"failed to call webhook: {_unreadable(kind, api_version, version)}")
    response = parsed.get("response")
    if response is not None:
        _check_types(response)
    fault = _fault(parsed, version, uid, mutating=mutating)
    if fault:
        raise CallFailed(f"received invalid webhook response: {fault}")
    assert response is not None
    patch = _decoded(response.get("patch") or "") if mutating else b""
    # Answers of v1beta1 need not name the type of their patch.
    patch_type = response.get("patchType") or ("JSONPatch" if version == "v1beta1" else "")
    allowed = response.get("allowed") is True
    return Verdict(allowed, response.get("status"), patch, patch_type, response.get("warnings") or [])


def _parsed(body: bytes) -> JsonObject:
    trouble = "failed to call webhook: couldn't get version/kind; json parse error: "
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        # YAML is read, too, and there any word is a string.
        raise CallFailed(f"{trouble}json: cannot unmarshal string into Go value of type {TYPE_META}") from None
    if not isinstance(parsed, dict):
        raise CallFailed(f"{trouble}json: cannot unmarshal {decoded_as(parsed)} into Go value of type {TYPE_META}")
    return parsed


def _unreadable(kind: str, api_version: str, version: str) -> str:
    if kind in ("", KIND) and api_version in (f"{GROUP}/v1", f"{GROUP}/v1beta1"):
        found = api_version.rpartition("/")[2]
        return f"converting ({found}.{KIND}) to ({version}.{KIND}): unknown conversion"
    return f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:110"'


def _check_types(response: Json) -> None:
    """Raises CallFailed if a field of the response has another type than Go's."""
    unmarshal = "failed to call webhook: json: cannot unmarshal"
    if not isinstance(response, dict):
        into = "Go struct field AdmissionReview.response of type v1.AdmissionResponse"
        raise CallFailed(f"{unmarshal} {decoded_as(response)} into {into}")
    for field, (wanted, go_type) in FIELDS.items():
        value = response.get(field)
        if value is not None and not isinstance(value, wanted):
            into = f"Go struct field AdmissionResponse.response.{field} of type {go_type}"
            raise CallFailed(f"{unmarshal} {decoded_as(value)} into {into}")
    for warning in response.get("warnings") or ():
        if not isinstance(warning, str):
            into = "Go struct field AdmissionResponse.response.warnings of type string"
            raise CallFailed(f"{unmarshal} {decoded_as(warning)} into {into}")
    _decoded(response.get("patch") or "")


def _fault(parsed: JsonObject, version: str, uid: str, *, mutating: bool) -> str:
    """What is wrong with a response that could be decoded, or ""."""
    response = parsed.get("response")
    if response is None:
        return "webhook response was absent"
    if version != "v1":
        return ""
    if response.get("uid", "") != uid:
        return f'expected response.uid="{uid}", got "{response.get("uid") or ""}"'
    if parsed.get("kind") != KIND or not parsed.get("apiVersion"):
        group, _, found = (parsed.get("apiVersion") or "").rpartition("/")
        shown = f"{group}/{found}, Kind={parsed.get('kind') or ''}"
        return f"expected webhook response of {GROUP}/{version}, Kind={KIND}, got {shown}"
    patch, patch_type = response.get("patch"), response.get("patchType")
    if not mutating:
        named = "patch" if patch else "patchType" if patch_type is not None else ""
        return f"validating webhook may not return response.{named}" if named else ""
    if patch and patch_type is None:
        return "webhook returned response.patch but not response.patchType"
    if not patch and patch_type is not None:
        return "webhook returned response.patchType but not response.patch"
    return 'webhook returned invalid response.patchType of ""' if patch_type == "" else ""


def _decoded(patch: str) -> bytes:
    try:
        return base64.b64decode(patch.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        wrong = NOT_BASE64.search(patch)
        position = wrong.start() if wrong else len(patch)
        raise CallFailed(f"failed to call webhook: illegal base64 data at input byte {position}") from None
