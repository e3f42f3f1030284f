"""POST pods/NAME/eviction: what a budget allows and what it costs (recordings eviction, eviction-of-another-uid).

In the real server's order: a pod that no budget counts (pending, finished, terminating) is free; two budgets are a 500;
an unready pod is free if the budget's policy says so; else the budget is decremented *before* the pod is deleted. So a
deletion refused by a precondition has spent the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import Bodies
from kubesim.server.calls import Call, Write
from kubesim.server.deletes import Deleter, check_preconditions
from kubesim.server.hooks import Admission
from kubesim.server.options import DeleteOptions, is_dry_run, options_from
from kubesim.server.routing import Route
from kubesim.server.selectors import selector_matches
from kubesim.server.stamps import Stamps
from kubesim.server.status import Kind, bad_request, budget_refusal, forbidden, internal, not_found, success
from kubesim.server.store import Store
from kubesim.types.transient import EVICTION, transient

BUDGETS: Final = Kind("policy", "poddisruptionbudget", "PodDisruptionBudget")
RECOUNT_SECONDS: Final = 10
MAX_DISRUPTED_PODS: Final = 2000
DISRUPTED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}
FREE_PHASES: Final = ("Pending", "Succeeded", "Failed")


class Evictions:
    """Evicts pods."""

    def __init__(self, store: Store, stamps: Stamps, deleter: Deleter, admission: Admission, bodies: Bodies) -> None:
        self._budgets = store.table("poddisruptionbudgets.policy")
        self._pods = store.table("pods")
        self._store = store
        self._stamps = stamps
        self._deleter = deleter
        self._admission = admission
        self._bodies = bodies

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """POST of an eviction; webhooks are not called for the deletion that follows from it. Raises Refusal."""
        body = self._bodies.object(call.request, "Eviction")
        if self._admission.concerns(call, "CREATE"):
            write = Write(call, "CREATE", is_dry_run(call.query, "CreateOptions"), dict(call.query))
            eviction = {**transient(EVICTION, body), "kind": "Eviction", "apiVersion": "policy/v1"}
            body = await self._admission.mutate(write, eviction, None)
            self._options(call.route, body, call.query)  # refuses what validating webhooks need not hear of
            await self._admission.validate(write, body, None)
        return 201, self.evict(call.route, body, call.query)

    def evict(self, route: Route, body: Json, query: Mapping[str, str]) -> JsonObject:
        """Evict one pod; returns a Status. Raises Refusal: 400, 404, 409 (precondition), 429 (budget), 500."""
        options = self._options(route, body, query)
        pod = self._pods.get(*route.key)
        if pod is None:
            raise not_found(route.resource.words, route.name)
        target = route._replace(subresource="")
        if pod["status"].get("phase") not in FREE_PHASES and "deletionTimestamp" not in pod["metadata"]:
            budgets = self._budgets_of(pod)
            if len(budgets) > 1:
                raise internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
                )
            if budgets and not (not is_ready(pod) and unready_may_go(budgets[0])):
                self._spend(budgets[0], route.name, dry_run=options.dry_run)
        self._deleter.remove(target, options if options.dry_run else self._condemn(target, pod, options))
        return success(201)

    def _condemn(self, route: Route, pod: JsonObject, options: DeleteOptions) -> DeleteOptions:
        """Say in the pod's conditions why it ends, as the real server does (since 1.26) in a write of its own; returns
        the options to delete it with. Raises Refusal (409)."""
        check_preconditions(route.resource, pod, options)
        status = pod["status"]
        conditions = status.get("conditions") or []
        if any(each["type"] == DISRUPTED["type"] and each.get("status") == "True" for each in conditions):
            return options
        others = [each for each in conditions if each["type"] != DISRUPTED["type"]]
        added = {**DISRUPTED, "lastProbeTime": None, "lastTransitionTime": self._stamps.now}
        marked = self._store.put(self._pods, {**pod, "status": {**status, "conditions": [*others, added]}}, pod)
        if not options.resource_version:
            return options
        return msgspec.structs.replace(options, resource_version=marked["metadata"]["resourceVersion"])

    @staticmethod
    def _options(route: Route, body: Json, query: Mapping[str, str]) -> DeleteOptions:
        eviction = transient(EVICTION, body)
        if eviction["metadata"].get("name") != route.name:
            raise bad_request("name in URL does not match name in Eviction object")
        raw: JsonObject = eviction.get("deleteOptions") or {}
        if is_dry_run(query, "CreateOptions"):
            raw["dryRun"] = ["All"]
        return options_from(raw)

    def _budgets_of(self, pod: JsonObject) -> list[JsonObject]:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        return [
            budget
            for budget in self._budgets.in_namespace(metadata["namespace"]).values()
            if selector_matches(budget["spec"].get("selector"), labels)
        ]

    def _spend(self, budget: JsonObject, pod: str, *, dry_run: bool) -> None:
        status, name = budget["status"], budget["metadata"]["name"]
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise budget_refusal(
                f"The disruption budget {name} is still being processed by the server.",
                retry_after=RECOUNT_SECONDS,
            )
        allowed = status.get("disruptionsAllowed", 0)
        if allowed < 0:
            raise forbidden(BUDGETS, name, "pdb disruptions allowed is negative")
        disrupted = status.get("disruptedPods") or {}
        if len(disrupted) > MAX_DISRUPTED_PODS:
            why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
            raise forbidden(BUDGETS, name, why)
        if allowed == 0:
            raise budget_refusal(
                f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has "
                f"{status.get('currentHealthy', 0)} currently"
            )
        if dry_run:
            return
        spent = {
            **status,
            "disruptionsAllowed": allowed - 1,
            "disruptedPods": {**disrupted, pod: self._stamps.now},
        }
        if allowed == 1:
            spent["conditions"] = self._nothing_allowed(budget)
        self._store.put(self._budgets, {**budget, "status": spent}, budget)

    def _nothing_allowed(self, budget: JsonObject) -> list[JsonObject]:
        condition = {
            "type": "DisruptionAllowed",
            "status": "False",
            "observedGeneration": budget["status"].get("observedGeneration", 0),
            "lastTransitionTime": self._stamps.now,
            "reason": "InsufficientPods",
            "message": "",
        }
        others = budget["status"].get("conditions") or []
        return [*(other for other in others if other["type"] != condition["type"]), condition]


def is_ready(pod: JsonObject) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions: list[JsonObject] = pod["status"].get("conditions") or []
    return any(condition["type"] == "Ready" and condition.get("status") == "True" for condition in conditions)


def unready_may_go(budget: JsonObject) -> bool:
    """Whether a pod that is not ready may be evicted at no cost (unhealthyPodEvictionPolicy)."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget["status"]
    desired: int = status.get("desiredHealthy", 0)
    return desired > 0 and status.get("currentHealthy", 0) >= desired
