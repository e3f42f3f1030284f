"""Reviews of API servers, and their handlers: for tests of admission."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import msgspec

from gracectl.admission.reviews import AdmissionResponse, Handler, decode_review, encode_review
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal, UnknownNode

GROUPS: Mapping[str, tuple[str, str]] = {
    "nodes": ("", "v1"),
    "nodedisruptionbudgets": ("termination.karpenter.sh", "v1alpha2"),
    "nodeclaims": ("karpenter.sh", "v1"),
}


def a_review(
    operation: str, resource: str, new: Any = None, old: Any = None, /, *, uid: str = "u1", **more: Any
) -> dict[str, Any]:
    """A review of version v1, of the object of that resource as it would be and as it is."""
    group, version = GROUPS[resource]
    request = {
        "uid": uid,
        "kind": {"group": group, "version": version, "kind": "K"},
        "resource": {"group": group, "version": version, "resource": resource},
        "name": ((new or old or {}).get("metadata") or {}).get("name", ""),
        "operation": operation,
        "userInfo": {"username": "jane"},
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": {},
        **more,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


async def ask(handler: Handler, review: dict[str, Any]) -> AdmissionResponse:
    """The answer to a review."""
    return await handler(decode_review(msgspec.json.encode(review)))


def patch_of(answer: AdmissionResponse) -> Any:
    """The JSON patch as an API server finds it in the answer; None without one."""
    response = msgspec.json.decode(encode_review("u1", answer))["response"]
    return msgspec.json.decode(b64decode(response["patch"])) if "patch" in response else None


def status_in(answer: AdmissionResponse) -> Any:
    """The Status of a denial as an API server finds it."""
    return msgspec.json.decode(encode_review("u1", answer))["response"].get("status")


class StandInGate:
    """Answers as configured, and records its requests: (node, dry run)."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.refusal = refusal
        self.error: Exception | None = None
        self.has = True
        self.is_asked_too_often = False
        self.asked: list[tuple[str, bool]] = []

    async def known(self, node: Node) -> Node | None:
        """See Gate."""
        if self.is_asked_too_often:
            raise UnknownNode
        return node if self.has else None

    async def admit(self, node: Node, *, dry_run: bool = False) -> Refusal | None:
        """See Gate."""
        self.asked.append((node.name, dry_run))
        if self.error is not None:
            raise self.error
        return self.refusal


def a_node_object(name: str = "n1", *, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    """A node as the server has it."""
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata},
        "spec": {},
        "status": {"conditions": conditions if ready else None},
    }
