"""The definition of NodeClaims that ships takes what Karpenter takes, and names the field of what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import Caller
from support.schemas import (
    ANY_VERSION,
    FULL_V1,
    FULL_V1BETA1,
    NEW_ONLY,
    OLD_ONLY,
    V1,
    V1BETA1,
    VERSIONS,
    WRONG,
    claim,
    requirement,
    wrong,
)

from gracectl.cli.crds import shipped_definitions


@pytest.fixture
def api() -> Caller:
    """A client of a server that has what ships."""
    server = ApiServer(LoopClock())
    server.predefine(*shipped_definitions())
    return Caller(server)


def path(version: str) -> str:
    return f"/apis/{version}/nodeclaims"


async def refusal(api: Caller, manifest: dict[str, Any]) -> dict[str, str]:
    """What is said of each field of a claim that is refused."""
    response = await api.call("POST", path(manifest["apiVersion"]), manifest)
    assert response.status == 422, response.body
    return {cause["field"]: cause["message"] for cause in response.body["details"]["causes"]}


@pytest.mark.parametrize("name", ANY_VERSION)
async def test_what_both_versions_take_is_stored_as_it_was_written(api: Caller, name: str) -> None:
    for version in VERSIONS:
        manifest = claim(version, name=version.rpartition("/")[2], **ANY_VERSION[name])
        assert (await api.create(path(version), manifest))["spec"] == manifest["spec"]


@pytest.mark.parametrize("name", OLD_ONLY)
async def test_what_only_the_older_version_takes(api: Caller, name: str) -> None:
    manifest = claim(V1BETA1, **OLD_ONLY[name])
    assert (await api.create(path(V1BETA1), manifest))["spec"] == manifest["spec"]


@pytest.mark.parametrize("manifest", [FULL_V1, FULL_V1BETA1], ids=VERSIONS)
async def test_a_full_claim_loses_nothing_in_either_version(api: Caller, manifest: dict[str, Any]) -> None:
    await api.create(path(manifest["apiVersion"]), manifest)
    for version in VERSIONS:
        seen = await api.get(f"{path(version)}/{manifest['metadata']['name']}")
        assert seen["spec"] == manifest["spec"]
        assert seen["apiVersion"] == version


@pytest.mark.parametrize("name", WRONG)
async def test_what_both_versions_refuse(api: Caller, name: str) -> None:
    for version in VERSIONS:
        manifest, field = wrong(name, version)
        assert field in await refusal(api, manifest)


@pytest.mark.parametrize("name", NEW_ONLY)
async def test_what_only_the_newer_version_refuses(api: Caller, name: str) -> None:
    manifest, field = wrong(name, V1)
    assert list(await refusal(api, manifest)) == [field]
    older = claim(V1BETA1, **NEW_ONLY[name].spec)
    assert (await api.create(path(V1BETA1), older))["spec"] == older["spec"]


async def test_a_claim_never_expires_unless_it_says_so(api: Caller) -> None:
    for version in VERSIONS:
        stored = await api.create(path(version), claim(version, name=version.rpartition("/")[2]))
        assert "expireAfter" not in stored["spec"]


async def test_refusals_say_what_would_be_right(api: Caller) -> None:
    said = await refusal(api, claim(nodeClassRef={"name": "default"}))
    assert said["spec.nodeClassRef.group"].endswith(
        "is missing; write the API group of the node class without a version, such as karpenter.k8s.aws "
        "(the apiVersion of v1beta1 does not stand for it)"
    )
    assert "such as EC2NodeClass" in said["spec.nodeClassRef.kind"]
    said = await refusal(api, claim(**requirement("karpenter.sh/initialized", "Exists")))
    assert "only karpenter.sh/capacity-type and karpenter.sh/nodepool" in said["spec.requirements[0].key"]
    said = await refusal(api, claim(**requirement(operator="Gt", values=["many"])))
    assert "a whole number that is not negative" in said["spec.requirements[0]"]


async def test_users_of_the_older_version_are_told_which_is_the_newer(api: Caller) -> None:
    response = await api.call("POST", path(V1BETA1), claim(V1BETA1))
    assert 'NodeClaim is served for older manifests; write karpenter.sh/v1"' in response.headers["warning"]
    assert "warning" not in (await api.call("GET", path(V1))).headers
