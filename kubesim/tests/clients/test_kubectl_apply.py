"""`kubectl apply --server-side` against the embedded server, as people type it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from clients.place import settings
from kubesim_support.kubectl import Kubectl, Printed, needs_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, needs_kubectl]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def apply(kubectl: Kubectl, manifest: Any, *options: str) -> Printed:
    """`kubectl apply -f -`, whatever comes of it."""
    return await kubectl.run("apply", "-f", "-", *options, stdin=orjson.dumps(manifest).decode())


async def found_settings(kubectl: Kubectl) -> Any:
    """The ConfigMap, managedFields and all."""
    return await kubectl.json("get", "configmap", "settings", "--show-managed-fields")


def managers(object_: Any) -> list[tuple[str, str]]:
    """Who owns something, and by which operation."""
    return [(entry["manager"], entry["operation"]) for entry in object_["metadata"].get("managedFields", [])]


@pytest.fixture
def kubectl(lonely_kubectl: Kubectl) -> Kubectl:
    return lonely_kubectl


async def test_conflicts_are_told_and_can_be_forced(kubectl: Kubectl) -> None:
    applied = await apply(kubectl, settings(a="1", b="1"), "--server-side")
    assert applied.out == "configmap/settings serverside-applied\n"
    refused = await apply(kubectl, settings(a="2"), "--server-side", "--field-manager=other")
    assert refused.code == 1
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.a' in refused.err
    assert "--force-conflicts" in refused.err
    forced = await apply(kubectl, settings(a="2"), "--server-side", "--field-manager=other", "--force-conflicts")
    assert forced.code == 0
    config_map = await found_settings(kubectl)
    assert config_map["data"] == {"a": "2", "b": "1"}
    assert managers(config_map) == [("kubectl", "Apply"), ("other", "Apply")]


async def test_managed_fields_are_shown_on_request(kubectl: Kubectl) -> None:
    await apply(kubectl, settings(a="1"), "--server-side")
    assert "managedFields" not in await kubectl("get", "configmap", "settings", "-o", "yaml")
    assert "f:a: {}" in await kubectl("get", "configmap", "settings", "-o", "yaml", "--show-managed-fields")


async def test_a_dry_run_stores_nothing(kubectl: Kubectl) -> None:
    printed = await apply(kubectl, settings(a="1"), "--server-side", "--dry-run=server")
    assert printed.out == "configmap/settings serverside-applied (server dry run)\n"
    assert (await kubectl.run("get", "configmap", "settings")).code == 1


async def test_an_unknown_field_is_refused(kubectl: Kubectl) -> None:
    printed = await apply(kubectl, {**settings(a="1"), "extra": 1}, "--server-side", "--validate=false")
    assert "failed to create typed patch object" in printed.err
    assert ".extra: field not declared in schema" in printed.err


async def test_a_client_side_apply_can_move_to_the_server_side(kubectl: Kubectl) -> None:
    await apply(kubectl, settings(a="1", b="1"))
    await kubectl("label", "configmap", "settings", "owner=another")
    moved = await apply(kubectl, settings(a="2"), "--server-side")
    assert (moved.code, moved.err) == (0, "")
    config_map = await found_settings(kubectl)
    # What was applied before and is no more goes, as client-side apply would have had it; what another wrote stays.
    assert config_map["data"] == {"a": "2"}
    assert config_map["metadata"]["labels"] == {"owner": "another"}
    assert orjson.loads(config_map["metadata"]["annotations"][LAST_APPLIED])["data"] == {"a": "2"}
    assert managers(config_map) == [
        ("kubectl-last-applied", "Apply"),
        ("kubectl", "Apply"),
        ("kubectl-label", "Update"),
    ]


async def test_an_edit_of_an_applied_object_owns_its_fields(kubectl: Kubectl) -> None:
    await apply(kubectl, settings(a="1"), "--server-side")
    await kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"a":"2"}}')
    refused = await apply(kubectl, settings(a="1"), "--server-side")
    assert 'conflict with "kubectl-patch" using v1: .data.a' in refused.err
