"""The manifests of the node agent as they are shipped, and what API servers make of admission policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml
from kubesim.cel.program import compile_expression
from kubesim.cel.types import DYN
from kubesim.controllers.paths import KINDS
from kubesim.server.api import JsonObject

FILES = Path(__file__).parents[2] / "helm" / "manifests"
NAMESPACE = "kube-system"
NAME = "gracectl-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
PATHS = {**KINDS, "ValidatingAdmissionPolicy": POLICIES, "ValidatingAdmissionPolicyBinding": BINDINGS}


def agent_objects(namespace: str = NAMESPACE, name: str = NAME) -> list[JsonObject]:
    """All that lets agents run, in another namespace and under another name if one is given."""
    return _read("agent.yaml", namespace, name)


def policy_objects(namespace: str = NAMESPACE, name: str = NAME) -> list[JsonObject]:
    """The admission policies and their bindings, likewise."""
    return _read("agent-policy.yaml", namespace, name)


def _read(file: str, namespace: str, name: str) -> list[JsonObject]:
    text = (FILES / file).read_text().replace(NAMESPACE, namespace).replace(NAME, name)
    return list(yaml.safe_load_all(text))


def of_kind(objects: list[JsonObject], kind: str) -> JsonObject:
    """The only one of that kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A write as an admission policy sees it. `node`: what the token says; None: it names none."""

    user: str = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    node: str | None = None
    operation: str
    resource: str
    name: str
    old: JsonObject | None = msgspec.field(default_factory=dict)
    new: JsonObject | None = None
    namespace: str = ""
    kind: str = ""

    @property
    def variables(self) -> dict[str, Any]:
        """What expressions look at."""
        extra = {} if self.node is None else {"extra": {NODE_NAME: [self.node]}}
        request = {
            "userInfo": {"username": self.user, **extra},
            "name": self.name,
            "namespace": self.namespace,
            "kind": {"kind": self.kind},
        }
        return {"request": request, "object": self.new, "oldObject": self.old, "variables": {}}


def denial(policies: list[JsonObject], request: Request) -> str:
    """Why these policies deny a request; "" if they do not."""
    for policy in policies:
        if policy["kind"] == "ValidatingAdmissionPolicy" and _is_meant(policy["spec"], request):
            known = request.variables
            for variable in policy["spec"]["variables"]:
                known["variables"][variable["name"]] = _value(variable["expression"], known)
            for rule in policy["spec"]["validations"]:
                if not _value(rule["expression"], known):
                    return str(
                        _value(rule["messageExpression"], known) if "messageExpression" in rule else rule["message"]
                    )
    return ""


def _is_meant(spec: JsonObject, request: Request) -> bool:
    rules = spec["matchConstraints"]["resourceRules"]
    is_selected = any(
        request.operation in rule["operations"] and request.resource in rule["resources"] for rule in rules
    )
    conditions = spec.get("matchConditions", ())
    return is_selected and all(_value(each["expression"], request.variables) for each in conditions)


def _value(expression: str, known: dict[str, Any]) -> Any:
    return compile_expression(expression, dict.fromkeys(known, DYN)).run(known)
