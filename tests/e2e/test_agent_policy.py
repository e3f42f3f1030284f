"""Each node agent on its own node, and of that the cordon only: the shipped role and policies, and tokens as kubelets
get them; on clusters that enforce admission policies, which the embedded one does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from e2e_support.accounts import access_with, token_of
from e2e_support.story import Story
from kubesim.controllers.client import MERGE, STRATEGIC, ApiClient, ask
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE
from support.chart import NODE_NAME, PATHS, POLICIES, agent_objects, policy_objects

from benchmarks.ground.hollow import connected

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

APPLY = "application/apply-patch+yaml"
NOTE: JsonObject = {"metadata": {"annotations": {"gracectl.io/shutdown-cordoned": ""}}}
NOT_THEIRS: tuple[JsonObject, ...] = (
    {"metadata": {"labels": {"node-restriction.kubernetes.io/tier": "secret"}}},
    {"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": "2020-01-01T00:00:00Z"}}},
    {"metadata": {"annotations": {"gracectl.io/interruption": "spot unknown ec2"}}},
    {"metadata": {"finalizers": ["example.com/mine"]}},
    {"spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}},
)
CAPACITY: JsonObject = {"status": {"capacity": {"example.com/gpu": "8"}}}
CONDITION: JsonObject = {"status": {"conditions": [{"type": "ShuttingDown", "status": "True"}]}}
ANY_WRITE: JsonObject = {"apiVersions": ["*"], "operations": ["*"]}
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


class Answer(msgspec.Struct, frozen=True):
    """Answer of the API server to a request."""

    status: int
    message: str


class Requester:
    """A client with a token, or that of the stories."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def end(self, pod: str, **query: str) -> Answer:
        """DELETE a pod of the story."""
        return await self._ask("DELETE", path_of(PODS, self._namespace, pod), query=query)

    async def note(self, node: str, patch: JsonObject = NOTE) -> Answer:
        """PATCH a node."""
        return await self._ask("PATCH", path_of(NODES, name=node), patch, content_type=MERGE)

    async def tell(self, node: str, patch: JsonObject = CONDITION) -> Answer:
        """PATCH the status of a node."""
        return await self._ask("PATCH", path_of(NODES, "", node, "status"), patch, content_type=STRATEGIC)

    async def _ask(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        *,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Answer:
        status, answer = await self._api.call(method, path, body, query=query, content_type=content_type)
        return Answer(status, answer.get("message", ""))


async def enforces_policies(story: Story) -> bool:
    """Whether the cluster compiles the expressions of admission policies: one that only stores them takes any text."""
    spec: JsonObject = {
        "matchConstraints": {"resourceRules": [{**ANY_WRITE, "apiGroups": [""], "resources": ["pods"]}]},
        "validations": [{"expression": "this is no expression"}],
    }
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"{story.run}-probe"},
        "spec": spec,
    }
    status, answer = await story.api.call("POST", POLICIES, policy, query={"dryRun": "All"})
    assert status in (201, 404, 422), answer
    return status == 422


@asynccontextmanager
async def deployed(story: Story) -> AsyncIterator[str]:
    """The shipped objects under names of the story's own, without the DaemonSet; yields that of the service account.

    Skips the test where nothing enforces admission policies.
    """
    if not await enforces_policies(story):
        pytest.skip("this cluster does not enforce validatingadmissionpolicies")
    name = f"{story.run}-agent"
    objects = [*agent_objects(story.namespace, name), *policy_objects(story.namespace, name)]
    whole = [each for each in objects if each["kind"] != "DaemonSet"]
    try:
        for each in whole:
            await ask(story.api, "POST", path_of(PATHS[each["kind"]], each["metadata"].get("namespace", "")), each)
        yield name
    finally:
        with anyio.CancelScope(shield=True):
            for each in (each for each in whole if "namespace" not in each["metadata"]):
                await story.api.call("DELETE", path_of(PATHS[each["kind"]], name=each["metadata"]["name"]))


@asynccontextmanager
async def with_token_of(story: Story, account: str, pod: str = "") -> AsyncIterator[Requester]:
    """Requests with a token of the account; with a pod it is bound to that, as the kubelet gets it for that pod."""
    token = await token_of(story, account, pod)
    if pod:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        _, seen = await ask(story.api, "POST", REVIEWS, review)
        if NODE_NAME not in seen["status"]["user"].get("extra", {}):
            pytest.skip("tokens of this cluster do not name the node of their pod")
    async with connected(access_with(story, token, pod or "no-pod").kubeconfig) as api:
        yield Requester(api, story.namespace)


async def until_policies_count(story: Story, agent: Requester, elsewhere: str) -> None:
    """Wait until the API server applies roles and policies."""
    with anyio.fail_after(PATIENCE):
        while "ValidatingAdmissionPolicy" not in (await agent.end(elsewhere, dryRun="All")).message:
            await story.clock.sleep(0.2)
        while (
            "ValidatingAdmissionPolicy"
            not in (await agent.note(story.sees("Pod", elsewhere)["spec"]["nodeName"])).message
        ):
            await story.clock.sleep(0.2)


async def test_an_agent_deletes_pods_of_its_own_node_and_patches_no_other(story: Story) -> None:
    a, b = await story.nodes("a", "b", managed=False)
    async with deployed(story) as account:
        await story.pod("agent", on=a, spec={"serviceAccountName": account})
        await story.pod("here", on=a)
        await story.pod("there", on=b)
        async with with_token_of(story, account, "agent") as agent:
            await until_policies_count(story, agent, "there")

            refused = await agent.end("there")
            assert refused.status == 403
            wanted = (
                f"the agent of node {a} may delete pods of that node only, "
                f"and pod {story.namespace}/there is on node {b}"
            )
            assert refused.message.endswith(wanted)
            for answer in (await agent.note(b), await agent.tell(b)):
                assert answer.status == 403
                assert answer.message.endswith(f"the agent of node {a} may change that node only, not node {b}")

            assert (await agent.note(a)).status == 200
            assert (await agent.tell(a)).status == 200
            for patch in NOT_THEIRS:
                answer = await agent.note(a, patch)
                assert (answer.status, "an agent may" in answer.message) == (403, True), answer
            answer = await agent.tell(a, CAPACITY)
            assert answer.message.endswith("nothing of a node's status but the condition ShuttingDown"), answer
            assert (await agent.end("here")).status == 200
        await story.sight.until("pod here is gone", lambda: not story.sight.get("Pod", "here", story.namespace))
        assert story.ready("there")


async def test_a_token_without_a_node_deletes_nothing_and_other_accounts_are_not_restricted(story: Story) -> None:
    (a,) = await story.nodes("a", managed=False)
    async with deployed(story) as account:
        await story.pod("here", on=a)
        async with with_token_of(story, account) as nowhere:
            await until_policies_count(story, nowhere, "here")
            for answer in (await nowhere.end("here"), await nowhere.note(a), await nowhere.tell(a)):
                assert answer.status == 403
                assert "this token names none: it must be that of a pod" in answer.message
        people = Requester(story.api, story.namespace)
        assert (await people.note(a)).status == 200
        assert (await people.tell(a)).status == 200
        assert (await people.end("here")).status == 200


async def test_the_cluster_accepts_the_shipped_objects_unchanged(story: Story) -> None:
    query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": story.run, "force": "true"}
    for each in [*agent_objects(), *policy_objects()]:
        metadata = each["metadata"]
        path = path_of(PATHS[each["kind"]], metadata.get("namespace", ""), metadata["name"])
        status, answer = await story.api.call("PATCH", path, each, query=query, content_type=APPLY)
        if status == 404 and each["kind"].startswith("ValidatingAdmissionPolicy"):
            continue
        assert status in (200, 201), answer
