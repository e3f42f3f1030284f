"""NodeDrains: who asked is recorded, whatever the client writes, and invalid specs are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.server.jsonpatch import patched
from support.admission import a_review, ask, patch_of, status_in

from gracectl.admission.nodedrains import NodeDrainValidator, RequesterInjector
from gracectl.admission.reviews import ALLOWED, InvalidReview
from gracectl.model import names

REQUESTER = RequesterInjector()
VALIDATOR = NodeDrainValidator()
BY = names.REQUESTED_BY


def a_drain(spec: Any = None, **metadata: Any) -> dict[str, Any]:
    spec = {"action": "Drain", "nodeName": "n1"} if spec is None else spec
    return {
        "apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain",
        "metadata": {"name": "tonight", "uid": "u", **metadata}, "spec": spec,
    }  # fmt: skip


@pytest.mark.parametrize("annotations", [None, {}, {"a": "b"}, {BY: "another"}, {BY: "jane", "a": "b"}])
@pytest.mark.parametrize("named", [{}, {"name": None, "generateName": "nightly-"}])
async def test_a_new_drain_names_its_user(annotations: Any, named: dict[str, Any]) -> None:
    drain = a_drain(annotations=annotations, **named)
    made = patched(drain, patch_of(await ask(REQUESTER, a_review("CREATE", "nodedrains", drain))) or [])
    assert made["metadata"]["annotations"] == {**(annotations or {}), BY: "jane"}
    assert await ask(REQUESTER, a_review("CREATE", "nodedrains", made)) == ALLOWED


@pytest.mark.parametrize("annotations", [None, {}, {"a": "b"}, {BY: "jane"}, {BY: "joe"}])
@pytest.mark.parametrize("before", [None, "joe"])
async def test_its_user_never_changes(annotations: Any, before: str | None) -> None:
    old = a_drain(annotations={BY: before} if before else None)
    new = a_drain(annotations=annotations)
    made = patched(new, patch_of(await ask(REQUESTER, a_review("UPDATE", "nodedrains", new, old))) or [])
    assert (made["metadata"]["annotations"] or {}).get(BY) == before
    assert (made["metadata"]["annotations"] or {}).get("a") == (annotations or {}).get("a")


async def test_a_hostile_name_is_visible() -> None:
    review = a_review("CREATE", "nodedrains", a_drain(), userInfo={"username": "a\x1b[2J\nb"})
    [operation] = patch_of(await ask(REQUESTER, review))
    assert operation["value"] == {BY: r"a\x1b[2J\nb"}


@pytest.mark.parametrize(("spec", "faults"), [
    ({"windows": [{"schedule": "0 25 * * *", "duration": "1h"}]},
     ["spec.windows[0].schedule: '0 25 * * *' is no cron schedule: bad hour; give minute, hour, day of month, month "
      "and day of week, such as '0 22 * * 1-5'"]),
    ({"windows": [{"schedule": "@daily", "duration": "1h"}, {"schedule": "@daily", "duration": "1h", "timeZone": "X"}]},
     ["spec.windows[1].timeZone: 'X' is no known time zone; give an IANA name such as Europe/Berlin, or UTC"]),
    ({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
     ["spec.nodeSelector: operator In on label 'a' needs at least one value"]),
    ({"timeout": "soon"}, ["spec.timeout: "]),
    ({"paused": "yes"}, ["spec.paused: Expected `bool | null`, got `str`"]),
])  # fmt: skip
async def test_an_invalid_drain_is_refused_field_by_field(spec: Any, faults: list[str]) -> None:
    drain = a_drain({"action": "Drain", "nodeName": "n1", **spec})
    for operation, old in (("CREATE", None), ("UPDATE", a_drain())):
        status = status_in(await ask(VALIDATOR, a_review(operation, "nodedrains", drain, old)))
        assert (status["code"], status["reason"]) == (422, "Invalid")
        causes = [f"{cause['field']}: {cause['message']}" for cause in status["details"]["causes"]]
        assert len(causes) == len(faults)
        assert all(cause.startswith(fault) for cause, fault in zip(causes, faults, strict=True)), causes
    # A spec that is not changed is not judged again, and one that is being deleted not at all.
    assert await ask(VALIDATOR, a_review("UPDATE", "nodedrains", drain, drain)) == ALLOWED
    leaving = {**drain, "metadata": {**drain["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert await ask(VALIDATOR, a_review("UPDATE", "nodedrains", leaving, a_drain())) == ALLOWED


async def test_a_valid_drain_passes_in_silence() -> None:
    windows = [{"schedule": "0 22 * * 1-5", "duration": "4h", "timeZone": "Europe/Berlin"}]
    drain = a_drain({"action": "Terminate", "nodeName": "n1", "windows": windows, "timeout": "10m"})
    assert await ask(VALIDATOR, a_review("CREATE", "nodedrains", drain)) == ALLOWED


@pytest.mark.parametrize("drain", [None, [], {"metadata": {"annotations": 3}}])
async def test_what_is_no_drain_is_no_question(drain: object) -> None:
    for handler in (REQUESTER, VALIDATOR):
        if handler is VALIDATOR and isinstance(drain, dict):
            continue
        with pytest.raises(InvalidReview, match=r"request\.object"):
            await ask(handler, a_review("CREATE", "nodedrains", drain))
