"""The kinds MutatingWebhookConfiguration and ValidatingWebhookConfiguration: where served, defaults, generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.admission.validation import faults_of
from kubesim.printers.columns import AGE, NAME
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Column, Occasion, Resource, Strategy
from kubesim.server.status import Cause

GROUP: Final = "admissionregistration.k8s.io"
MUTATING: Final = "mutatingwebhookconfigurations"
VALIDATING: Final = "validatingwebhookconfigurations"
DEFAULTS: Final[Mapping[str, Json]] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "timeoutSeconds": 10,
}
SERVICE_PORT: Final = 443
WEBHOOKS: Final = Column("Webhooks", lambda object_, now: len(object_.get("webhooks") or ()), "integer")


class ConfigurationStrategy(Strategy):
    """Webhook configurations: everything at the top level, a generation for each change of the webhooks."""

    unconditional_update = False
    empty: Mapping[str, Json] = {}

    def __init__(self, *, mutating: bool) -> None:
        self._defaults = {**DEFAULTS, "reinvocationPolicy": "Never"} if mutating else DEFAULTS

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        return {**new, "metadata": {**new["metadata"], "generation": 1}}

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        new = self.normalise(new)
        if new.get("webhooks") == old.get("webhooks"):
            return new
        return {**new, "metadata": {**new["metadata"], "generation": old["metadata"].get("generation", 0) + 1}}

    def validate(self, new: JsonObject) -> list[Cause]:
        return faults_of(new.get("webhooks") or [])

    def normalise(self, new: JsonObject) -> JsonObject:
        webhooks = new.get("webhooks")
        if not webhooks:
            return {key: value for key, value in new.items() if key != "webhooks"}
        return {**new, "webhooks": [self._filled(webhook) for webhook in webhooks]}

    def _filled(self, webhook: JsonObject) -> JsonObject:
        given = {key: value for key, value in webhook.items() if value is not None and value != []}
        filled = {**given, **{key: value for key, value in self._defaults.items() if key not in given}}
        if "rules" in filled:
            filled["rules"] = [{"scope": "*", **rule} for rule in filled["rules"]]
        service = (filled.get("clientConfig") or {}).get("service")
        if service is not None:
            filled["clientConfig"] = {**filled["clientConfig"], "service": {"port": SERVICE_PORT, **service}}
        return filled


def webhook_configurations() -> tuple[Resource, ...]:
    """The two resources."""
    return tuple(
        Resource(
            group=GROUP,
            version="v1",
            plural=plural,
            kind=kind,
            namespaced=False,
            strategy=ConfigurationStrategy(mutating=plural == MUTATING),
            columns=(NAME, WEBHOOKS, AGE),
            categories=("api-extensions",),
        )
        for plural, kind in (
            (MUTATING, "MutatingWebhookConfiguration"),
            (VALIDATING, "ValidatingWebhookConfiguration"),
        )
    )
