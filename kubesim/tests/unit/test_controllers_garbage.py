"""What is left behind by owners that other people's controllers make: custom objects, several owners, any kind."""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.paths import CONFIG_MAPS, DEFINITIONS, DEPLOYMENTS, PODS, path_of
from kubesim.server.api import Json, JsonObject
from kubesim_support.clusters import NAMESPACE, get, names, patch, quiet, running, workload

pytestmark = pytest.mark.anyio
GARDENS, ESTATES = "/apis/example.com/v1/gardens", "/apis/example.com/v1/estates"


def definition(plural: str = "gardens", kind: str = "Garden", scope: str = "Namespaced", **v2: Json) -> JsonObject:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    if v2:
        versions.append({"name": "v2", "served": True, "storage": False, "schema": schema})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": versions,
        },
    }


async def post(cluster: EmbeddedCluster, path: str, body: JsonObject) -> JsonObject:
    status, answer = await cluster.api.call("POST", path, body)
    assert status == 201, answer
    created: JsonObject = answer
    return created


async def garden(cluster: EmbeddedCluster, name: str = "one", *owners: JsonObject) -> JsonObject:
    metadata = {"name": name, "ownerReferences": list(owners)}
    body = {"apiVersion": "example.com/v1", "kind": "Garden", "metadata": metadata}
    return await post(cluster, path_of(GARDENS, NAMESPACE), body)


async def config_map(cluster: EmbeddedCluster, name: str, *owners: JsonObject) -> JsonObject:
    metadata = {"name": name, "ownerReferences": list(owners)}
    return await post(
        cluster, path_of(CONFIG_MAPS, NAMESPACE), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    )


def owned_by(owner: JsonObject, *, blocks: bool = False) -> JsonObject:
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"]}
    return {**reference, "uid": metadata["uid"], "blockOwnerDeletion": blocks}


async def defined(cluster: EmbeddedCluster) -> None:
    """The namespace and the kind Garden."""
    await post(
        cluster, "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    await post(cluster, DEFINITIONS, definition())
    await settle(cluster)


async def settle(cluster: EmbeddedCluster, seconds: float = 10) -> None:
    await cluster.pace.clock.sleep(seconds)
    await quiet()


async def delete(cluster: EmbeddedCluster, path: str, propagation: str = "Background") -> None:
    status, answer = await cluster.api.call("DELETE", path, {"propagationPolicy": propagation})
    assert status == 200, answer


async def test_what_a_custom_object_owned_goes_with_it() -> None:
    async with running("a") as cluster:
        await defined(cluster)
        owner = await garden(cluster)
        deployment = workload("Deployment", "web", 2)
        deployment["metadata"]["ownerReferences"] = [owned_by(owner)]
        await cluster.create(deployment)
        await config_map(cluster, "owned", owned_by(owner))
        await garden(cluster, "child", owned_by(owner))
        await settle(cluster)
        assert len(cluster.pods()) == 2
        await delete(cluster, path_of(GARDENS, NAMESPACE, "one"))
        await settle(cluster, 60)
        for path in (DEPLOYMENTS, PODS, GARDENS, path_of(CONFIG_MAPS, NAMESPACE)):
            assert await names(cluster, path) in ([], ["kube-root-ca.crt"])


async def test_a_custom_object_waits_in_the_foreground_for_those_that_block_it() -> None:
    async with running() as cluster:
        await defined(cluster)
        owner = await garden(cluster)
        await garden(cluster, "blocking", owned_by(owner, blocks=True))
        await patch(cluster, path_of(GARDENS, NAMESPACE, "blocking"), {"metadata": {"finalizers": ["example.com/a"]}})
        await config_map(cluster, "other", owned_by(owner))
        await settle(cluster)
        await delete(cluster, path_of(GARDENS, NAMESPACE, "one"), "Foreground")
        await settle(cluster)
        assert await names(cluster, GARDENS) == ["blocking", "one"]
        assert "other" in await names(cluster, path_of(CONFIG_MAPS, NAMESPACE))
        await patch(cluster, path_of(GARDENS, NAMESPACE, "blocking"), {"metadata": {"finalizers": None}})
        await settle(cluster)
        assert await names(cluster, GARDENS) == []
        assert "other" not in await names(cluster, path_of(CONFIG_MAPS, NAMESPACE))


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_one_of_two_owners_keeps_an_object_and_the_other_is_struck_off(propagation: str) -> None:
    async with running() as cluster:
        await defined(cluster)
        stays, goes = await garden(cluster, "stays"), await garden(cluster, "goes")
        await config_map(cluster, "shared", owned_by(stays), owned_by(goes, blocks=True))
        await settle(cluster)
        await delete(cluster, path_of(GARDENS, NAMESPACE, "goes"), propagation)
        await settle(cluster)
        assert await names(cluster, GARDENS) == ["stays"]
        left = await get(cluster, path_of(CONFIG_MAPS, NAMESPACE, "shared"))
        assert left is not None
        assert [each["name"] for each in left["metadata"]["ownerReferences"]] == ["stays"]


async def test_dependents_of_an_unknown_kind_stay_until_it_is_defined() -> None:
    async with running() as cluster:
        await defined(cluster)
        reference = {"apiVersion": "example.com/v1", "kind": "Estate", "name": "one", "uid": "one"}
        await config_map(cluster, "owned", reference)
        await settle(cluster)
        assert "owned" in await names(cluster, path_of(CONFIG_MAPS, NAMESPACE))
        await post(cluster, DEFINITIONS, definition("estates", "Estate", "Cluster"))
        await settle(cluster)
        assert "owned" not in await names(cluster, path_of(CONFIG_MAPS, NAMESPACE))


async def test_what_an_uninstalled_kind_owned_goes_too() -> None:
    async with running() as cluster:
        await defined(cluster)
        await config_map(cluster, "owned", owned_by(await garden(cluster)))
        await settle(cluster)
        await delete(cluster, path_of(DEFINITIONS, name="gardens.example.com"))
        await settle(cluster)
        assert await names(cluster, path_of(CONFIG_MAPS, NAMESPACE)) == ["kube-root-ca.crt"]
        # And again, with the kind installed anew.
        await post(cluster, DEFINITIONS, definition())
        await settle(cluster)
        await config_map(cluster, "owned", owned_by(await garden(cluster)))
        await settle(cluster)
        await delete(cluster, path_of(GARDENS, NAMESPACE, "one"))
        await settle(cluster)
        assert await names(cluster, path_of(CONFIG_MAPS, NAMESPACE)) == ["kube-root-ca.crt"]
