"""Namespaces: a new one gets its service account and the root certificate, a deleted one is emptied.

As in Kubernetes, discovery names the kinds, so custom resources go too. Invariant: the finalizer `kubernetes` goes only
when every kind is empty.
"""

from __future__ import annotations

from kubesim.controllers.client import ApiClient, ask
from kubesim.controllers.controller import Controller, enqueue_own
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import Key, condition_of, is_terminating, key_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS, path_of
from kubesim.server.api import JsonObject
from kubesim.values import format_time

LOOK_AGAIN = 8.0
"""Simulated seconds until what is held by finalizers is looked at again (half of the real finalizerEstimateSeconds, and
one)."""

ROOT_CA = "kube-root-ca.crt"


class Namespaces(Controller[Key]):
    """Empties the namespaces that are to go. Keys: namespaces."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, NAMESPACES, PODS)
        self._namespaces = informers.of(NAMESPACES)
        self._pods = informers.of(PODS)
        self._pods.index("namespace", lambda pod: (key_of(pod)[0],))
        enqueue_own(self._namespaces, self.queue.add)
        self._pods.subscribe(self._pod_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None:
            name = key_of(old)[0]
            namespace = self._namespaces.get("", name)
            if namespace is not None and is_terminating(namespace) and not self._pods.count("namespace", name):
                self.queue.add(("", name))

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        namespace = self._namespaces.get(*key)
        if namespace is None or not is_terminating(namespace):
            return
        if not namespace["spec"].get("finalizers"):
            return
        left = await self._empty(key[1])
        await self._report(namespace, left)
        if not left:
            await self._finalize(namespace)
        elif not self._pods.count("namespace", key[1]):
            self.after(key, LOOK_AGAIN)

    async def _empty(self, name: str) -> dict[str, list[JsonObject]]:
        """Ask for the deletion of everything, pods first; what is still there, by resource."""
        collections = await namespaced_collections(self.api)
        left: dict[str, list[JsonObject]] = {}
        for resource, collection in sorted(collections.items(), key=lambda found: found[0] != "pods."):
            path = path_of(collection, name)
            _, found = await self.ask("GET", path, allow=(403, 404, 405))
            items = found.get("items") or []
            if any(not is_terminating(item) for item in items):
                await self.ask("DELETE", path, allow=(403, 404, 405))
                _, found = await self.ask("GET", path, allow=(403, 404, 405))
                items = found.get("items") or []
            if items:
                left[resource] = items
            if items and resource == "pods.":
                break  # Nothing that a pod may still need goes before it (OrderedNamespaceDeletion, since 1.33).
        return left

    async def _report(self, namespace: JsonObject, left: dict[str, list[JsonObject]]) -> None:
        conditions = _conditions(namespace, left, format_time(self.pace.clock.now()))
        if conditions == (namespace.get("status") or {}).get("conditions"):
            return
        changed = {**namespace, "status": {**(namespace.get("status") or {}), "conditions": conditions}}
        path = path_of(NAMESPACES, name=namespace["metadata"]["name"], subresource="status")
        await self.ask("PUT", path, changed, allow=(404, 409))

    async def _finalize(self, namespace: JsonObject) -> None:
        metadata = {key: value for key, value in namespace["metadata"].items() if key != "resourceVersion"}
        left = [each for each in namespace["spec"].get("finalizers") or () if each != "kubernetes"]
        body = {**namespace, "metadata": metadata, "spec": {"finalizers": left}}
        path = path_of(NAMESPACES, name=metadata["name"], subresource="finalize")
        await self.ask("PUT", path, body, allow=(404, 409))


class ServiceAccounts(Controller[Key]):
    """Gives every namespace the service account `default` and the ConfigMap kube-root-ca.crt. Keys: namespaces."""

    def __init__(self, informers: Informers, pace: Pace, *, root_ca: str = "") -> None:
        """`root_ca`: the certificate (PEM) that clients shall trust."""
        super().__init__(informers, pace, NAMESPACES, SERVICE_ACCOUNTS, CONFIG_MAPS)
        self._namespaces = informers.of(NAMESPACES)
        self._root_ca = root_ca
        enqueue_own(self._namespaces, self.queue.add)
        for path in (SERVICE_ACCOUNTS, CONFIG_MAPS):
            informers.of(path).subscribe(self._thing_changed)

    def _thing_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None and old["metadata"]["name"] in ("default", ROOT_CA):
            self.queue.add(("", key_of(old)[0]))

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        namespace = self._namespaces.get(*key)
        if namespace is None or is_terminating(namespace):
            return
        account: JsonObject = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        bundle: JsonObject = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": ROOT_CA,
                "annotations": {
                    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the API."
                },
            },
            "data": {"ca.crt": self._root_ca},
        }
        for path, wanted in ((SERVICE_ACCOUNTS, account), (CONFIG_MAPS, bundle)):
            if self.informers.of(path).get(key[1], wanted["metadata"]["name"]) is None:
                # 403: the namespace has begun to go.
                await self.ask("POST", path_of(path, key[1]), wanted, allow=(403, 404, 409))


async def namespaced_collections(api: ApiClient) -> dict[str, str]:
    """The collections of all namespaced kinds that can be listed and deleted, by `<plural>.<group>`, each once: in the
    version that the server prefers. Raises Refused, Disconnected.
    """
    found: dict[str, str] = {}
    _, groups = await ask(api, "GET", "/apis")
    prefixes = ["/api/v1"]
    for group in groups["groups"]:
        versions = [group["preferredVersion"], *group["versions"]]
        prefixes += dict.fromkeys(f"/apis/{version['groupVersion']}" for version in versions)
    for prefix in prefixes:
        # 404: the last kind of a group has just gone.
        status, resources = await ask(api, "GET", prefix, allow=(404,))
        group_name = prefix.split("/")[2] if prefix != "/api/v1" else ""
        for resource in resources["resources"] if status == 200 else ():
            name = resource["name"]
            can_be_emptied = resource["namespaced"] and {"list", "deletecollection"} <= set(resource["verbs"])
            # Events are one store under two groups.
            if can_be_emptied and "/" not in name and (name, group_name) != ("events", "events.k8s.io"):
                found.setdefault(f"{name}.{group_name}", f"{prefix}/{name}")
    return found


def _conditions(namespace: JsonObject, left: dict[str, list[JsonObject]], now: str) -> list[JsonObject]:
    finalizers: dict[str, int] = {}
    for items in left.values():
        for item in items:
            for finalizer in item["metadata"].get("finalizers") or ():
                finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
    remaining = ", ".join(f"{resource} has {len(items)} resource instances" for resource, items in sorted(left.items()))
    holding = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    entries = (
        ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered", False),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
            False,
        ),
        (
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
            False,
        ),
        (
            "NamespaceContentRemaining",
            "SomeResourcesRemain" if left else "ContentRemoved",
            f"Some resources are remaining: {remaining}" if left else "All content successfully removed",
            bool(left),
        ),
        (
            "NamespaceFinalizersRemaining",
            "SomeFinalizersRemain" if holding else "ContentHasNoFinalizers",
            f"Some content in the namespace has finalizers remaining: {holding}"
            if holding
            else "All content-preserving finalizers finished",
            bool(holding),
        ),
    )
    conditions = []
    for type_, reason, message, value in entries:
        status = str(value)
        before = condition_of(namespace, type_)
        since = before["lastTransitionTime"] if before is not None and before["status"] == status else now
        conditions.append(
            {"type": type_, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}
        )
    return conditions
