"""What goes over the wire for each verb."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gracectl.kube import requests
from gracectl.kube.requests import JsonPatch, MergePatch, Patch, Preconditions, Selection, StrategicPatch
from gracectl.kube.resources import BUDGETS, EVENTS, LEASES, NODE_CLAIMS, NODES, PODS, Resource
from gracectl.kube.transport import Request
from gracectl.model.decode import PodDecoder

ANY = Preconditions()


def body(request: Request) -> Any:
    """The decoded body."""
    return msgspec.json.decode(request.body or b"null")


@pytest.mark.parametrize(("resource", "arguments", "path"), [
    (PODS, (), "/api/v1/pods"),
    (PODS, ("shop",), "/api/v1/namespaces/shop/pods"),
    (PODS, ("shop", "web-1"), "/api/v1/namespaces/shop/pods/web-1"),
    (PODS, ("shop", "web-1", "eviction"), "/api/v1/namespaces/shop/pods/web-1/eviction"),
    (NODES, ("", "a.example"), "/api/v1/nodes/a.example"),
    (NODES, ("", "a", "status"), "/api/v1/nodes/a/status"),
    (BUDGETS, ("shop", "b"), "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/b"),
    (NODE_CLAIMS, ("", "c"), "/apis/karpenter.sh/v1/nodeclaims/c"),
    (LEASES, ("n", "a/../b?c"), "/apis/coordination.k8s.io/v1/namespaces/n/leases/a%2F..%2Fb%3Fc"),
])  # fmt: skip
def test_paths(resource: Resource[Any], arguments: tuple[str, ...], path: str) -> None:
    assert resource.path(*arguments) == path


def test_a_path_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="have no namespace"):
        NODES.path("shop", "a")
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path("", "web-1")


def test_a_list_asks_for_a_consistent_page() -> None:
    request = requests.list_request(PODS, limit=500, continue_token="abc", selection=Selection("app=web"))
    assert (request.method, request.path) == ("GET", "/api/v1/pods")
    assert dict(request.query) == {"limit": "500", "continue": "abc", "labelSelector": "app=web"}


def test_a_watch_asks_for_bookmarks_from_a_version() -> None:
    request = requests.watch_request(NODES, "7", timeout_seconds=400)
    assert dict(request.query) == {
        "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "7", "timeoutSeconds": "400",
    }  # fmt: skip


def test_a_create_says_what_it_creates() -> None:
    request = requests.create_request(NODE_CLAIMS, "", {"metadata": {"name": "c"}}, dry_run=True)
    assert body(request) == {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "c"}}
    assert dict(request.query) == {"dryRun": "All"}


def test_a_delete_carries_its_options_in_the_body_and_nowhere_else() -> None:
    request = requests.delete_request(PODS, ("shop", "web-1"), Preconditions("u1", "7"), 0)
    assert (request.method, request.query) == ("DELETE", ())
    assert body(request) == {
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u1", "resourceVersion": "7"},
        "gracePeriodSeconds": 0,
    }  # fmt: skip


def test_a_delete_without_options_leaves_everything_to_the_object() -> None:
    request = requests.delete_request(NODES, ("", "a"), ANY)
    assert body(request) == {"apiVersion": "v1", "kind": "DeleteOptions"}


def test_an_eviction_names_the_pod_and_its_uid() -> None:
    request = requests.evict_request(("shop", "web-1"), "u1")
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/shop/pods/web-1/eviction")
    assert body(request) == {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-1", "namespace": "shop"},
        "deleteOptions": {"preconditions": {"uid": "u1"}},
    }  # fmt: skip


@pytest.mark.parametrize(("patch", "content_type"), [
    (MergePatch({"spec": {"x": None}}), "application/merge-patch+json"),
    (StrategicPatch({"spec": {"x": None}}), "application/strategic-merge-patch+json"),
])  # fmt: skip
def test_a_merge_carries_its_preconditions_as_metadata(patch: Patch, content_type: str) -> None:
    request = requests.patch_request(NODES, ("", "a"), patch, preconditions=Preconditions("u1", "7"))
    assert (request.method, request.content_type) == ("PATCH", content_type)
    assert body(request) == {"spec": {"x": None}, "metadata": {"uid": "u1", "resourceVersion": "7"}}


def test_preconditions_join_the_metadata_that_a_patch_changes() -> None:
    patch = MergePatch({"metadata": {"labels": {"a": "b"}}})
    request = requests.patch_request(NODES, ("", "a"), patch, preconditions=Preconditions(resource_version="7"))
    assert body(request) == {"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}}


def test_a_json_patch_sets_its_preconditions_first_so_that_a_stale_one_is_a_conflict() -> None:
    patch = JsonPatch([{"op": "add", "path": "/spec/unschedulable", "value": True}])
    request = requests.patch_request(
        NODES, ("", "a"), patch, subresource="status", preconditions=Preconditions("u1", "7")
    )
    assert (request.path, request.content_type) == ("/api/v1/nodes/a/status", "application/json-patch+json")
    assert body(request) == [
        {"op": "add", "path": "/metadata/uid", "value": "u1"},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/spec/unschedulable", "value": True},
    ]


def test_a_patch_without_preconditions_is_sent_as_it_is() -> None:
    request = requests.patch_request(EVENTS, ("default", "e"), MergePatch({"count": 2}), preconditions=ANY)
    assert body(request) == {"count": 2}


def test_a_cache_may_bring_its_own_decoder() -> None:
    decoder = PodDecoder()
    shared = PODS.read_by(decoder)
    assert shared.decode is decoder
    assert shared.path() == PODS.path()
