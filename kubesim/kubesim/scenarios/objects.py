"""Putting objects of any kind into a cluster, and finding them again, by what the server says that it serves."""

from __future__ import annotations

from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.client import ask
from kubesim.controllers.paths import NAMESPACES, path_of
from kubesim.scenarios.parser import ScenarioError
from kubesim.server.api import JsonObject
from kubesim.server.resource import Resource

LOOK_AGAIN, PATIENCE = 0.05, 5.0
"""Seconds between two looks whether a custom resource is served, and how long it is looked for."""

SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


async def create(cluster: EmbeddedCluster, manifest: JsonObject) -> JsonObject:
    """Create an object and its namespace (`default` if it names none); return the stored object. Raises Refused,
    ScenarioError for a kind that is not served."""
    resource = await _served_soon(cluster, manifest["kind"], manifest.get("apiVersion", ""))
    namespace = ""
    if resource.namespaced:
        namespace = manifest["metadata"].get("namespace") or "default"
        await ensure_namespace(cluster, namespace)
    _, created = await ask(cluster.api, "POST", path_of(collection(resource), namespace), manifest)
    answer: JsonObject = created
    return answer


async def _served_soon(cluster: EmbeddedCluster, kind: str, api_version: str) -> Resource:
    """Like `served`, but wait a moment for a kind with a definition: it is not served immediately."""
    for _ in range(round(PATIENCE / LOOK_AGAIN)):
        definitions = cluster.server.store.table("customresourcedefinitions.apiextensions.k8s.io")
        is_served = any(resource.kind == kind for resource in cluster.server.registry)
        if is_served or not any(each["spec"]["names"]["kind"] == kind for each in definitions):
            break
        await cluster.pace.clock.sleep(LOOK_AGAIN)
        # What is due in the server happens with the next request.
        await cluster.api.call("GET", "/version")
    return served(cluster, kind, api_version)


async def ensure_namespace(cluster: EmbeddedCluster, name: str) -> None:
    """Create a namespace, unless it is there. Raises Refused."""
    if cluster.server.store.table("namespaces").get("", name) is None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await ask(cluster.api, "POST", NAMESPACES, body, allow=(409,))


def served(cluster: EmbeddedCluster, kind: str, api_version: str = "") -> Resource:
    """What the server serves of a kind; of several versions the first, unless one is named. Raises ScenarioError."""
    for resource in cluster.server.registry:
        if resource.kind == kind and api_version in ("", resource.api_version):
            return resource
    version = f" in {api_version}" if api_version else ""
    raise ScenarioError(f"the server has no kind {kind}{version}; correct it, or create its definition before")


def collection(resource: Resource) -> str:
    """The path of all objects of a resource."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/{resource.plural}"


def remade(object_: JsonObject, *, owner: JsonObject) -> JsonObject:
    """What one would have to send to get such an object again, owned by another."""
    metadata = {key: value for key, value in object_["metadata"].items() if key not in SERVERS_OWN}
    uid = owner["metadata"]["uid"]
    metadata["ownerReferences"] = [{**reference, "uid": uid} for reference in metadata.get("ownerReferences") or ()]
    return {**{key: value for key, value in object_.items() if key != "status"}, "metadata": metadata}
