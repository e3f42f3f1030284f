"""What a scenario file may say, what it may not, and what it is told then."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubesim.scenarios.parser import ScenarioError, read_file, read_text
from kubesim.scenarios.plan import plan_of, scaled
from kubesim.scenarios.scenario import Scenario

HEAD = "name: a\ndescription: b\n"


def read(text: str) -> Scenario:
    return read_text(HEAD + text, "file")


def complaint(text: str) -> str:
    with pytest.raises(ScenarioError) as error:
        plan_of(read(text))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: [{name: x, coutn: 3}]", "file: nodes[0].coutn: there is no such field here; did you mean count?"),
        ("zzz: 1", "file: zzz: there is no such field here; known are name, description, seed, speed, start"),
        ("nodes: [{count: 3}]", "file: nodes[0]: name is missing; add `name:`"),
        ("nodes: [{name: x, count: many}]", "file: nodes[0].count: expected `int`, got `str`"),
        ("nodes: [{name: x, count: -1}]", "file: nodes[0].count: expected `int` >= 0"),
        ("nodes: [{name: x, zones: []}]", "file: nodes[0].zones: expected `array` of length >= 1"),
        (
            "nodes: [{name: x, taints: [{key: a, effect: Never}]}]",
            "file: nodes[0].taints[0].effect: 'Never' is none of the words it takes; choose one of No",
        ),
        ("speed: 0", "file: speed: expected `float` > 0.0"),
        ("speed: .inf", "file: speed: inf is no number to count with"),
        ("start: asleep", "file: start: 'asleep' is none of the words it takes; choose one of grown, prebuilt"),
        ("kubelet: {heartbeatSeconds: soon}", "file: kubelet.heartbeatSeconds: 'soon' is no duration"),
        (
            "kubelet: {heartbeat_seconds: 3}",
            "kubelet.heartbeat_seconds: there is no such field here; did you mean heart",
        ),
        ("faults: {a: {path: x}}", "file: faults.a: says not what happens; add one of latency, slowTail, refuse"),
        ("faults: {a: {reset: {}, refuse: {status: 500}}}", "file: faults.a.refuse: only one of latency, "),
        (
            "faults: {a: {refuse: {stats: 500}}}",
            "file: faults.a.refuse.stats: there is no such field here; did you mean",
        ),
        (
            "faults: {a: {path: '(', reset: {}}}",
            "faults.a.path: missing ), unterminated subpattern at position 0; write",
        ),
        ("faults: {a: {probability: 20, reset: {}}}", "faults.a.probability: 20 is no probability; choose from 0 to 1"),
        ("timeline: [{at: 0, removeFaults: [b]}]", "timeline[0].removeFaults: there is no fault b; there are none"),
        (
            "controllers: {without: [scheduller]}",
            "controllers.without[0]: there is no part scheduller; choose among attachments",
        ),
        ("kubelet: {behaviours: [{selector: 'a=(', behaviour: {}}]}", "kubelet.behaviours[0].selector: "),
        ("budgets: [{name: x, maxUnavailable: 1}]", "budgets[0]: says not which pods; give it one of app and selector"),
        ("pods: [{name: x, budget: {minAvailable: 1, maxUnavailable: 1}}]", "pods[0].budget: minAvailable and maxUnav"),
        ("objects: [{kind: Pod, metadata: {name: x}}]", "objects[0].apiVersion: is missing"),
        ("objects: [{apiVersion: v1, kind: Pod}]", "objects[0].metadata.name: is missing; give the object a name"),
        ("nodes: [{name: x}, {name: x}]", "there are two of Node x; give one of them another name"),
        ("pods: [{name: x}, {name: x}]", "there are two of Pod x in default"),
        ("seed: 1\nseed: 2", "is not YAML: found 'seed' twice"),
        ("a: [", "is not YAML: while parsing"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(text: str, expected: str) -> None:
    assert expected in complaint(text)


@pytest.mark.parametrize("text", ["", "[]", "just words"])
def test_what_is_no_mapping(text: str) -> None:
    with pytest.raises(ScenarioError, match="file: is no mapping; it begins with `name:` and `description:`"):
        read_text(text, "file")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read: No such file or directory"):
        read_file(tmp_path / "none")
    path = tmp_path / "latin"
    path.write_bytes(b"name: \xe4")
    with pytest.raises(ScenarioError, match="is not UTF-8 text"):
        read_file(path)


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.1, (1, 2, 1)), (0.5, (2, 10, 2)), (1.0, (3, 20, 4)), (2.0, (6, 40, 8))]
)
def test_a_scenario_is_scaled_by_its_nodes_its_copies_and_else_its_replicas(
    factor: float, expected: tuple[int, int, int]
) -> None:
    text = "nodes: [{name: x, count: 3}]\ndeployments: [{name: y, count: 20, replicas: 7}, {name: z, replicas: 4}]"
    scenario = scaled(read(text), factor)
    assert (scenario.nodes[0].count, scenario.deployments[0].count, scenario.deployments[1].replicas) == expected
    assert scenario.deployments[0].replicas == 7


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_none(factor: float) -> None:
    with pytest.raises(ScenarioError, match="times as large"):
        scaled(read(""), factor)
