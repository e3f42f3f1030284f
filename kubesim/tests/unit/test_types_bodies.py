"""Bodies as a real server reads them: what is unknown, wrong or said twice; and objects as it writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Response
from kubesim_support.caller import BUDGETS, LEASES, MERGE, NODES, PODS, STRATEGIC, Caller

pytestmark = pytest.mark.anyio

ANSWERS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "answers" / "bodies.json").read_text())["answers"]
CONFIGS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JSON_PATCH = "application/json-patch+json"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


def warnings_of(response: Response) -> str:
    return response.headers.get("warning", "").replace('\\"', '"')


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
async def test_answers_as_a_real_server(caller: Caller, answer: dict[str, Any]) -> None:
    path, _, query = answer["path"].partition("?")
    headers = {"content-type": "application/json"}
    found = await caller.call("POST", path, answer["body"].encode(), headers=headers, **dict(parse_qsl(query)))
    expected = [each for each in answer.get("warnings", ()) if not each.startswith("duplicate")]
    assert found.status == answer["status"]
    assert found.body.get("message") == answer.get("message")
    assert [each for each in expected if f'299 - "{each}"' not in warnings_of(found)] == []
    assert warnings_of(found).count("299 - ") == len(expected)


class TestUnknownFields:
    async def test_they_go_and_the_client_is_warned(self, caller: Caller) -> None:
        made = await caller.call("POST", CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "b"}, "dta": {}})
        assert (made.status, "dta" in made.body) == (201, False)
        assert warnings_of(made) == '299 - "unknown field "dta""'

    async def test_who_ignores_them_hears_nothing(self, caller: Caller) -> None:
        made = await caller.call("POST", CONFIGS, {"metadata": {"name": "c"}, "x": 1}, fieldValidation="Ignore")
        assert (made.status, warnings_of(made)) == (201, "")

    async def test_a_strict_put_is_refused_and_changes_nothing(self, caller: Caller) -> None:
        await caller.create(CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "b"}})
        body = {"metadata": {"name": "c"}, "dat": {"a": "c"}}
        refused = await caller.call("PUT", f"{CONFIGS}/c", body, fieldValidation="Strict")
        assert refused.status == 400
        assert refused.body["message"].endswith('strict decoding error: unknown field "dat"')
        assert (await caller.get(f"{CONFIGS}/c"))["data"] == {"a": "b"}

    @pytest.mark.parametrize(
        ("kind", "patch"),
        [(MERGE, {"foo": 1}), (STRATEGIC, {"foo": 1}), (JSON_PATCH, [{"op": "add", "path": "/foo", "value": 1}])],
    )
    async def test_a_patch_brings_none_in(self, caller: Caller, kind: str, patch: Any) -> None:
        before = await caller.create(CONFIGS, {"metadata": {"name": "c"}})
        patched = await caller.call("PATCH", f"{CONFIGS}/c", patch, headers={"content-type": kind})
        assert (patched.status, warnings_of(patched)) == (200, '299 - "unknown field "foo""')
        assert patched.body == before

    async def test_a_strict_patch_is_refused_with_what_it_would_have_made(self, caller: Caller) -> None:
        await caller.create(CONFIGS, {"metadata": {"name": "c"}})
        refused = await caller.call(
            "PATCH", f"{CONFIGS}/c", {"foo": 1}, headers={"content-type": MERGE}, fieldValidation="Strict"
        )
        assert refused.status == 422
        assert refused.body["message"].startswith(' "" is invalid: patch: Invalid value: "{\\"apiVersion\\":\\"v1\\",')
        assert refused.body["message"].endswith('strict decoding error: unknown field "foo"')

    async def test_a_strict_strategic_patch_is_refused_with_itself(self, caller: Caller) -> None:
        await caller.create(CONFIGS, {"metadata": {"name": "c"}})
        patch = {"foo": 1, "metadata": {"bar": 2}}
        refused = await caller.call(
            "PATCH", f"{CONFIGS}/c", patch, headers={"content-type": STRATEGIC}, fieldValidation="Strict"
        )
        assert refused.body["message"] == (
            ' "" is invalid: patch: Invalid value: "map[foo:1 metadata:map[bar:2]]": '
            'strict decoding error: unknown field "foo", unknown field "metadata.bar"'
        )

    async def test_what_is_free_in_form_keeps_everything(self, caller: Caller) -> None:
        data = {"anything": [1, {"at": None}]}
        revision = {"metadata": {"name": "r"}, "revision": 1, "data": data}
        made = await caller.call("POST", "/apis/apps/v1/namespaces/default/controllerrevisions", revision)
        assert (made.status, made.body["data"], warnings_of(made)) == (201, data, "")


class TestInstantsOfTheYear10000:
    """Seen on Kubernetes 1.37: stored, written with all digits, and not read again."""

    STORED = "10000-01-01T23:58:59Z"

    async def poisoned(self, caller: Caller) -> None:
        await caller.create(NODES, {"metadata": {"name": "n", "finalizers": ["a/b"]}})
        entry = {"type": "Ready", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59-23:59"}
        await caller.patch(f"{NODES}/n/status", {"status": {"conditions": [entry]}})
        shown = await caller.get(f"{NODES}/n")
        assert shown["status"]["conditions"][0]["lastTransitionTime"] == self.STORED

    @pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
    async def test_no_patch_is_taken_that_leaves_one_there(self, caller: Caller, kind: str) -> None:
        await self.poisoned(caller)
        patch = {"metadata": {"labels": {"a": "b"}}}
        refused = await caller.call("PATCH", f"{NODES}/n", patch, headers={"content-type": kind})
        assert refused.status == 422
        assert refused.body["message"].endswith('cannot parse "0-01-01T23:58:59Z" as "-"')

    async def test_a_strategic_patch_that_rewrites_it_is(self, caller: Caller) -> None:
        await self.poisoned(caller)
        entry = {"type": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        patch = {"spec": {"unschedulable": True}, "status": {"conditions": [entry]}}
        patched = await caller.patch(f"{NODES}/n", patch, STRATEGIC)
        assert patched["spec"]["unschedulable"] is True
        assert patched["status"]["conditions"][0]["lastTransitionTime"] == self.STORED
        await caller.patch(f"{NODES}/n/status", {"status": {"conditions": [entry]}}, STRATEGIC)
        await caller.patch(f"{NODES}/n", {"metadata": {"finalizers": []}})

    async def test_an_update_is_taken(self, caller: Caller) -> None:
        await self.poisoned(caller)
        whole = await caller.get(f"{NODES}/n")
        del whole["status"]
        assert (await caller.call("PUT", f"{NODES}/n", {**whole, "spec": {"unschedulable": True}})).status == 200


class TestWrongTypes:
    @pytest.mark.parametrize(
        ("patch", "fault"),
        [
            ({"data": {"a": 1}}, '"map[data:map[a:1]]": cannot convert int64 to string'),
            ({"data": []}, '"map[data:[]]": cannot restore map from slice'),
            ({"metadata": []}, '"map[metadata:[]]": cannot restore struct from: slice'),
            ({"metadata": {"finalizers": 4}}, '"map[metadata:map[finalizers:4]]": cannot restore slice from int64'),
        ],
    )
    async def test_a_strategic_patch_tells_in_other_words(self, caller: Caller, patch: Any, fault: str) -> None:
        await caller.create(CONFIGS, {"metadata": {"name": "c"}})
        refused = await caller.call("PATCH", f"{CONFIGS}/c", patch, headers={"content-type": STRATEGIC})
        assert (refused.status, refused.body["message"]) == (422, f' "" is invalid: patch: Invalid value: {fault}')

    async def test_a_merge_patch_may_not_take_the_metadata_away(self, caller: Caller) -> None:
        await caller.create(CONFIGS, {"metadata": {"name": "c"}})
        refused = await caller.call("PATCH", f"{CONFIGS}/c", {"metadata": []}, headers={"content-type": MERGE})
        assert refused.status == 422
        assert refused.body["message"].endswith(
            "json: cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta"
        )


class TestCanonical:
    async def test_nothing_empty_and_nothing_null_is_stored(self, caller: Caller) -> None:
        spec = {"nodeSelector": {}, "tolerations": [], "hostNetwork": False, "hostname": "", "nodeName": None}
        made = await caller.create(PODS, pod(**spec))
        assert not {"nodeSelector", "hostNetwork", "hostname", "nodeName"} & made["spec"].keys()

    async def test_zero_fields_are_filled_in(self, caller: Caller) -> None:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        made = await caller.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
        assert made["spec"]["template"]["metadata"] == {"creationTimestamp": None, "labels": {"a": "b"}}
        assert made["spec"]["strategy"]["type"] == "RollingUpdate"
        assert made["status"] == {}
        budget = await caller.create(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 0}})
        assert budget["spec"] == {"minAvailable": 0}

    async def test_quantities_and_times_take_one_form(self, caller: Caller) -> None:
        requests = {"cpu": 0.5, "memory": "2048Mi", "example.com/gpu": 1}
        container = {"name": "c", "image": "i", "resources": {"requests": requests}}
        made = await caller.create(PODS, pod(containers=[container]))
        expected = {"cpu": "500m", "memory": "2Gi", "example.com/gpu": "1"}
        assert made["spec"]["containers"][0]["resources"]["requests"] == expected
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T02:00:00.5+02:00"}
        patched = await caller.patch(f"{PODS}/p/status", {"status": {"conditions": [ready]}})
        assert patched["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"

    async def test_a_patch_shares_what_it_leaves_alone(self, caller: Caller) -> None:
        made = await caller.create(PODS, pod())
        patched = await caller.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
        assert patched["spec"] is made["spec"]
        assert patched["status"] is made["status"]

    async def test_a_patch_that_only_says_it_otherwise_changes_nothing(self, caller: Caller) -> None:
        made = await caller.create(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}})
        patched = await caller.patch(f"{NODES}/n/status", {"status": {"capacity": {"cpu": "2000m"}, "images": []}})
        assert patched == made

    async def test_a_lease_keeps_its_microseconds(self, caller: Caller) -> None:
        spec = {"renewTime": "2026-01-01T01:00:00.000001+01:00", "leaseDurationSeconds": 15}
        made = await caller.create(LEASES, {"metadata": {"name": "l"}, "spec": spec})
        assert made["spec"] == {"leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"}

    async def test_what_is_stored_belongs_to_the_server(self, caller: Caller) -> None:
        body = pod()
        await caller.create(PODS, body)
        body["spec"]["containers"][0]["image"] = "other"
        assert (await caller.get(f"{PODS}/p"))["spec"]["containers"][0]["image"] == "i"

    @pytest.mark.parametrize(("kind", "directive"), [(MERGE, {}), (STRATEGIC, {}), (STRATEGIC, {"$patch": "replace"})])
    async def test_so_is_what_a_patch_brought(self, caller: Caller, kind: str, directive: dict[str, str]) -> None:
        await caller.create(PODS, pod())
        condition = {"type": "Ready", "status": "True"}
        patch = {"status": {"phase": "Running", "conditions": [condition], **directive}}
        await caller.patch(f"{PODS}/p/status", patch, kind)
        condition["status"] = "Unknown"
        assert (await caller.get(f"{PODS}/p"))["status"]["conditions"][0]["status"] == "True"


async def test_a_custom_resource_belongs_to_the_server_too(caller: Caller) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "example.com", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"}}
    definition = {"metadata": {"name": "things.example.com"}, "spec": {**spec, "versions": [version]}}
    await caller.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    await caller.server.clock.sleep(1)
    wanted = {"a": [{"b": 1}]}
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": wanted}
    await caller.create("/apis/example.com/v1/things", thing)
    wanted["a"][0]["b"] = 2
    assert (await caller.get("/apis/example.com/v1/things/t"))["spec"] == {"a": [{"b": 1}]}
    more = {"spec": {"c": [{"d": 1}]}}
    await caller.patch("/apis/example.com/v1/things/t", more)
    more["spec"]["c"][0]["d"] = 2
    assert (await caller.get("/apis/example.com/v1/things/t"))["spec"]["c"] == [{"d": 1}]
