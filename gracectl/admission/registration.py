"""The webhook configurations: their desired state, checks of the current state, and writes.

Only `gracectl webhooks` writes them, with the rights of a person or of the chart's hook. Every replica looks at them
every few seconds, says in readiness, log and metrics what is wrong, and answers on plain paths while they name those.

A manifest has every field, defaults too, so it can be compared with the server's. The bundle of a configuration that
others maintain (cert-manager) is kept.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from gracectl.admission.rotation import CertificateState
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import CONFIGURATIONS, LABELS, OUR_NAMES, WEBHOOKS, Kind, manifest
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.resources import Resource
from gracectl.runtime.certificates import authorities_in, issuers_of
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""Between two looks, and after one that failed."""

INJECTION: Final = "cert-manager.io/inject-ca-from"
REMEDY: Final = "run gracectl webhooks --apply"

Configuration = dict[str, Any]


def is_complete(state: CertificateState, settings: AdmissionSettings) -> bool:
    """Whether the Secret has what the configurations need."""
    files = settings.certificates
    has_authority = bool(state.authorities) and (files.are_given or bool(state.authority_key))
    return bool(state.segment) and (has_authority or (files.are_given and not files.ca_file))


def wanted(settings: AdmissionSettings, state: CertificateState) -> Mapping[Kind, Configuration]:
    """Both configurations, for a complete state."""
    bundle = b64encode(_bundle_for(settings, state))
    found: dict[Kind, Configuration] = {}
    for kind, resource in CONFIGURATIONS.items():
        metadata: dict[str, Any] = {"name": settings.name, "labels": dict(LABELS)}
        if settings.certificates.inject_from:
            metadata["annotations"] = {INJECTION: settings.certificates.inject_from}
        webhooks = [manifest(each, settings, bundle, state.segment) for each in WEBHOOKS if each.kind == kind]
        envelope = {"apiVersion": resource.api_version, "kind": resource.kind}
        found[kind] = {**envelope, "metadata": metadata, "webhooks": webhooks}
    return found


async def register(client: KubeClient, settings: AdmissionSettings, state: CertificateState) -> tuple[str, ...]:
    """Create the configurations, or bring them up to date; returns a line for each. Raises ApiError."""
    return tuple([await _write(client, CONFIGURATIONS[kind], body) for kind, body in wanted(settings, state).items()])


async def _write(client: KubeClient, resource: Resource[Configuration], body: Configuration) -> str:
    name = body["metadata"]["name"]
    shown = f"{resource.kind} {name}"
    before = await _read(client, resource, name)
    if before is None:
        await client.create(resource, "", body)
        return f"{shown}: created"
    _keep_bundles(body["webhooks"], before)
    metadata = {**before["metadata"]}
    for field in ("labels", "annotations"):
        if field in body["metadata"]:
            metadata[field] = {**(metadata.get(field) or {}), **body["metadata"][field]}
    if metadata == before["metadata"] and before.get("webhooks") == body["webhooks"]:
        return f"{shown}: unchanged"
    await client.update(resource, ("", name), {**before, "metadata": metadata, "webhooks": body["webhooks"]})
    return f"{shown}: updated"


async def _read(client: KubeClient, resource: Resource[Configuration], name: str) -> Configuration | None:
    try:
        return await client.get(resource, ("", name))
    except NotFound:
        return None


class RegistrationWatch:
    """Looks at the configurations, in every replica."""

    def __init__(self, client: KubeClient, settings: AdmissionSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._found: Mapping[Kind, Configuration | None] = {}
        self._failure = "not read yet"
        self._since: dict[bytes, float] = {}
        self._logged = ""

    async def look(self, state: CertificateState) -> None:
        """Look once, and log a changed problem. Raises nothing."""
        try:
            self._found = {
                kind: await _read(self._client, resource, self._settings.name)
                for kind, resource in CONFIGURATIONS.items()
            }
            self._failure = ""
        except ApiError as error:
            self._failure = str(error)
        else:
            self._note_authorities()
        problem = self.problem(state)
        if problem and problem != self._logged:
            logger.warning("%s", problem)
        self._logged = problem

    @property
    def names_plain_paths(self) -> bool:
        """Whether a configuration sends API servers to the paths without a secret segment, as one of an earlier version
        does, or one that a person wrote."""
        plain = {each.path for each in WEBHOOKS}
        return any(_path_of(webhook, self._settings) in plain for webhook in self._webhooks())

    def problem(self, state: CertificateState) -> str:
        """Problem with the registration, and its remedy; "" without a known problem."""
        if self._failure:
            return f"webhook configurations {self._settings.name}: unknown: {self._failure}"
        for kind, body in self._found.items():
            reason = self._reason(kind, body, state)
            if reason:
                return f"{CONFIGURATIONS[kind].kind} {self._settings.name}: {reason}; {REMEDY}"
        return ""

    @property
    def is_known(self) -> bool:
        """Whether the last look succeeded."""
        return not self._failure

    def trusted_for(self, authority: bytes) -> float:
        """Seconds for which all configurations have had an authority, as far as seen."""
        now = self._clock.monotonic()
        return now - self._since.get(authority, now)

    def _reason(self, kind: Kind, body: Configuration | None, state: CertificateState) -> str:
        if body is None:
            return "missing, so API servers do not call gracectl"
        if not is_complete(state, self._settings):
            return ""  # to be compared with nothing yet
        if _bundle_for(self._settings, state) and not self._fits(_trusted(body), state):
            return "caBundle does not have the authority of the certificate"
        ours = {webhook["name"]: webhook for webhook in _ours(body)}
        for webhook in wanted(self._settings, state)[kind]["webhooks"]:
            different = _differences(ours.get(webhook["name"]), webhook)
            if different:
                return f"{webhook['name']}: not as the settings have it ({', '.join(different)})"
        return ""

    def _fits(self, trusted: set[bytes], state: CertificateState) -> bool:
        """Whether clients that trust these authorities accept what is served, now and after the next renewal."""
        try:
            named = authorities_in(state.authorities)
            is_own = not self._settings.certificates.are_given
            served = issuers_of(state.pair.certificate, named) if is_own else named
        except ValueError:
            return False
        return bool(trusted.intersection(served)) and named[-1] in trusted

    def _note_authorities(self) -> None:
        bodies = self._found.values()
        trusted = set.intersection(*(_trusted(body) if body else set() for body in bodies))
        now = self._clock.monotonic()
        self._since = {each: self._since.get(each, now) for each in trusted}

    def _webhooks(self) -> Iterator[dict[str, Any]]:
        for body in self._found.values():
            yield from _ours(body or {})


def _bundle_for(settings: AdmissionSettings, state: CertificateState) -> bytes:
    """Authorities to trust (PEM); empty where others maintain the bundle, or no authority is known."""
    files = settings.certificates
    return b"" if files.are_given and not files.ca_file else state.authorities


def _differences(found: Mapping[str, Any] | None, webhook: Mapping[str, Any]) -> list[str]:
    """Fields that differ. A field that is not there was dropped by an older server."""
    if found is None:
        return ["missing"]
    fields = [name for name in webhook if name != "clientConfig" and name in found and found[name] != webhook[name]]
    theirs, ours = ({**each["clientConfig"], "caBundle": ""} for each in (found, webhook))
    return [*fields, "clientConfig"] if theirs != ours else fields


def _path_of(webhook: Mapping[str, Any], settings: AdmissionSettings) -> str:
    client = webhook["clientConfig"]
    if "url" not in client:
        return str((client.get("service") or {}).get("path") or "")
    return urlsplit(str(client["url"])).path.removeprefix(urlsplit(settings.url).path.rstrip("/"))


def _ours(body: Configuration) -> Iterator[dict[str, Any]]:
    return (each for each in body.get("webhooks") or () if each["name"] in OUR_NAMES)


def _trusted(body: Configuration) -> set[bytes]:
    """Authorities that all of gracectl's webhooks in a configuration trust."""
    found = [_bundle(each["clientConfig"].get("caBundle") or "") for each in _ours(body)]
    return set.intersection(*found) if found else set()


def _bundle(text: str) -> set[bytes]:
    try:
        return set(authorities_in(b64decode(text)))
    except (NotBase64, ValueError):
        return set()


def _keep_bundles(webhooks: list[dict[str, Any]], before: Configuration) -> None:
    """Keep the bundles that others maintain."""
    bundles = {each["name"]: each["clientConfig"].get("caBundle") for each in _ours(before)}
    for webhook in webhooks:
        if "caBundle" not in webhook["clientConfig"] and (bundle := bundles.get(webhook["name"])):
            webhook["clientConfig"]["caBundle"] = bundle
