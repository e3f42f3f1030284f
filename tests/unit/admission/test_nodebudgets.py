"""Validation of written budgets: which are invalid, which have no effect, and which are not reviewed."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from support.admission import a_node_object, a_review, ask, status_in

from gracectl.admission.nodebudgets import NodeBudgetValidator
from gracectl.admission.reviews import ALLOWED, InvalidReview
from gracectl.kube.cache import Cache
from gracectl.model.decode import decode_node
from gracectl.model.node import Node

POOL = {"matchLabels": {"pool": "a"}}


def a_handler(nodes: int | None = None) -> NodeBudgetValidator:
    """With so many nodes of the pool; None: nothing is known yet."""
    cache: Cache[Node] = Cache("nodes")
    if nodes is not None:
        made = (a_node_object(f"n{number}", labels={"pool": "a"}) for number in range(nodes))
        cache.replace(decode_node(orjson.dumps(node)) for node in made)
    return NodeBudgetValidator(cache)


def a_budget(spec: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "termination.karpenter.sh/v1alpha2", "kind": "NodeDisruptionBudget",
        "metadata": {"name": "pool-a", "uid": "u", **metadata}, "spec": spec,
    }  # fmt: skip


NEITHER = "spec: minAvailable and maxUnavailable are missing; set one of them"


@pytest.mark.parametrize(("spec", "faults"), [
    ({"minAvailable": 1, "maxUnavailable": 1},
     ["spec: minAvailable and maxUnavailable are both set; remove one of them"]),
    ({}, [NEITHER]), (None, [NEITHER]), ({"minAvailable": None}, [NEITHER]),
    ({"minAvailable": "many"}, ["spec.minAvailable: 'many' is not an integer or a percentage such as 25%"]),
    ({"maxUnavailable": "3"}, ["spec.maxUnavailable: '3' is not an integer or a percentage such as 25%"]),
    ({"minAvailable": -1}, ["spec.minAvailable: -1 is negative; give 0 or more"]),
    ({"maxUnavailable": "-5%"}, ["spec.maxUnavailable: '-5%' is negative; give 0 or more"]),
    ({"minAvailable": "101%"}, ["spec.minAvailable: '101%' is more than all nodes; set 100% or less"]),
    ({"minAvailable": True}, ["spec.minAvailable: Expected `int | str | null`, got `bool`"]),
    ({"minAvailable": 1.5}, ["spec.minAvailable: Expected `int | str | null`, got `float`"]),
    ({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
     ["spec.selector: operator In on label 'a' needs at least one value"]),
    ({"minAvailable": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
     ["spec.selector: 'Like' is no selector operator; choose one of In, NotIn, Exists, DoesNotExist"]),
    (
            {"selector": {"matchLabels": {"a/": "x"}}, "maxUnavailable": "no"},
            [
                "spec.selector: 'a/' is no label key: it must be 1-63 letters, digits, '-', '_', '.', beginning and "
                "ending with a letter or digit",
                "spec.maxUnavailable: 'no' is not an integer or a percentage such as 25%",
            ],
        ),
    ({"minAvailable": 1, "windows": [{"schedule": "@daily", "duration": "1h"}, {"schedule": "@", "duration": "1h"}]},
     ["spec.windows[1].schedule: '@' is no cron schedule: it needs 5 fields, not 1; give minute, hour, day of month, "
      "month and day of week, such as '0 22 * * 1-5'"]),
    ({"minAvailable": 1, "windows": [{"schedule": "@daily", "duration": "1h", "timeZone": "Mars/Base"}]},
     ["spec.windows[0].timeZone: 'Mars/Base' is no known time zone; give an IANA name such as Europe/Berlin, or UTC"]),
    ({"minAvailable": 1, "selector": 7}, ["spec.selector: Expected `object | null`, got `int`"]),
])  # fmt: skip
async def test_an_invalid_budget_is_refused_field_by_field(spec: Any, faults: list[str]) -> None:
    spec = {"selector": POOL, **spec} if isinstance(spec, dict) else spec
    for operation, old in (("CREATE", None), ("UPDATE", a_budget({"selector": POOL, "minAvailable": 1}))):
        answer = await ask(a_handler(), a_review(operation, "nodedisruptionbudgets", a_budget(spec), old))
        status = status_in(answer)
        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert status["message"] == f"NodeDisruptionBudget pool-a is invalid: {'; '.join(faults)}"
        causes = [f"{cause['field']}: {cause['message']}" for cause in status["details"]["causes"]]
        assert causes == faults
        assert (status["details"]["name"], status["details"]["group"]) == ("pool-a", "termination.karpenter.sh")


@pytest.mark.parametrize("spec", [
    {"minAvailable": "80%"}, {"minAvailable": 0}, {"maxUnavailable": 1}, {"maxUnavailable": "5%"},
    {"maxUnavailable": "100%"},
    {"maxUnavailable": 1, "windows": [{"schedule": "0 22 * * 1-5", "duration": "4h", "timeZone": "Europe/Berlin"}]},
    {"minAvailable": "1%", "selector": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}},
])  # fmt: skip
async def test_a_budget_that_can_be_counted_by_passes_in_silence(spec: dict[str, Any]) -> None:
    budget = a_budget({"selector": POOL, **spec})
    assert await ask(a_handler(10), a_review("CREATE", "nodedisruptionbudgets", budget)) == ALLOWED


EMPTY = "spec.selector: empty, selects no node; set matchLabels for the budget to have an effect"


@pytest.mark.parametrize(("spec", "nodes", "warning"), [
    ({"minAvailable": 1}, 1, EMPTY),
    ({"minAvailable": 1, "selector": None}, 1, EMPTY),
    ({"maxUnavailable": 0, "selector": {}}, 1, EMPTY),
    ({"selector": POOL, "minAvailable": "100%"}, 3,
     "spec: minAvailable 100% never allows the deletion of a Ready node"),
    ({"selector": POOL, "maxUnavailable": 0}, None, "spec: maxUnavailable 0 never allows the deletion of a Ready node"),
    ({"selector": POOL, "maxUnavailable": "0%"}, 3,
     "spec: maxUnavailable 0% never allows the deletion of a Ready node"),
    ({"selector": POOL, "minAvailable": 4}, 3,
     "spec: minAvailable 4 allows no deletion of a Ready node while it selects 3 nodes, as now"),
    ({"selector": POOL, "minAvailable": "60%"}, 1,
     "spec: minAvailable 60% allows no deletion of a Ready node while it selects 1 node, as now"),
])  # fmt: skip
async def test_a_questionable_budget_is_warned_about(spec: dict[str, Any], nodes: int | None, warning: str) -> None:
    answer = await ask(a_handler(nodes), a_review("CREATE", "nodedisruptionbudgets", a_budget(spec)))
    assert answer.denial is None
    assert answer.warnings == (warning,)


async def test_a_bound_above_the_nodes_is_not_judged_before_they_are_known_nor_without_any() -> None:
    budget = a_budget({"selector": POOL, "minAvailable": 4})
    for handler in (a_handler(None), a_handler(0)):
        assert await ask(handler, a_review("CREATE", "nodedisruptionbudgets", budget)) == ALLOWED


async def test_old_sins_are_refused_only_where_the_spec_is_touched() -> None:
    old = a_budget({"minAvailable": -1, "maxUnavailable": 3})
    same = a_budget({"maxUnavailable": 3, "minAvailable": -1}, labels={"a": "b"}, finalizers=[])
    same["status"] = {"disruptionsAllowed": 0}
    assert await ask(a_handler(), a_review("UPDATE", "nodedisruptionbudgets", same, old)) == ALLOWED
    worse = a_budget({"minAvailable": -2, "maxUnavailable": 3})
    answer = await ask(a_handler(), a_review("UPDATE", "nodedisruptionbudgets", worse, old))
    assert answer.denial is not None


@pytest.mark.parametrize("hostile", ["[" * 400 + "]" * 400, "1" * 40, '{"a": -1e308}'])
async def test_a_spec_that_no_server_sends_is_compared_all_the_same(hostile: str) -> None:
    budget = a_budget({"maxUnavailable": "many", "x": msgspec.Raw(hostile.encode())})
    assert await ask(a_handler(), a_review("UPDATE", "nodedisruptionbudgets", budget, budget)) == ALLOWED


async def test_a_budget_that_is_being_deleted_is_let_be() -> None:
    going = a_budget({"minAvailable": "nonsense"}, deletionTimestamp="2026-01-01T00:00:00Z")
    old = a_budget({"minAvailable": 1})
    assert await ask(a_handler(), a_review("UPDATE", "nodedisruptionbudgets", going, old)) == ALLOWED


async def test_what_is_no_budget_is_no_question() -> None:
    for new in ({"metadata": None}, {"metadata": {"name": 3}, "spec": {"minAvailable": 1}}):
        with pytest.raises(InvalidReview, match="is not a NodeDisruptionBudget"):
            await ask(a_handler(), a_review("CREATE", "nodedisruptionbudgets", new, name=""))
