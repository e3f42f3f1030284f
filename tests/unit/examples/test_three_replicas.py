"""docs/deadlines.md says what gracectl does: its timelines are those of the example, and its manifests are accepted."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from support.stage import CLAIMS, a_pod_manifest, staged
from support.stories import delete_at_start, stamp, written_on

from examples.pages import put_in
from examples.three_replicas import NODES, PAGE, PICTURE, PLAYS, Played, blocks_of, drawn, perform
from gracectl.config import load_settings
from gracectl.model import names
from gracectl.policy.settings import PolicySettings

TEXT = PAGE.read_text(encoding="utf-8")
REMEDY = "if that is as it should be, `make examples ARGS=--update` writes it anew"


@pytest.fixture(scope="module")
def plays() -> dict[str, Played]:
    return {play.name: perform(play) for play in PLAYS}


def test_the_page_has_what_the_example_prints_word_for_word(plays: dict[str, Played]) -> None:
    assert put_in(TEXT, blocks_of(list(plays.values()))) == TEXT, REMEDY


def test_the_picture_is_the_one_that_the_example_draws(plays: dict[str, Played]) -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(list(plays.values())), REMEDY


def test_the_picture_is_on_the_page_and_needs_nothing_else() -> None:
    assert f"]({PICTURE.relative_to(PAGE.parent)})" in TEXT
    root = ElementTree.parse(PICTURE).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [value for element in root.iter() for value in element.attrib.values() if "url" in value]


@pytest.mark.parametrize(("name", "asked", "had"), [
    ("quarter", [[(0.0, "evicted", 600)], [(300.0, "deleted", 600)], [(300.0, "deleted", 600)]], [600.0, 600.0, 600.0]),
    ("late", [[(0.0, "evicted", 600)], [(600.0, "evicted", 600), (900.0, "deleted", 1)], [(900.0, "deleted", 1)]],
     [600.0, 300.0, 0.0]),
    ("short", [[(0.0, "deleted", 300)]] * 3, [300.0, 300.0, 300.0]),
    ("none", [[(0.0, "evicted", 600)], [(600.0, "evicted", 600)], [(1200.0, "evicted", 600)]], [600.0, 600.0, 600.0]),
])  # fmt: skip
def test_each_pod_is_asked_once_at_its_instant_and_has_what_it_was_granted(
    plays: dict[str, Played], name: str, asked: list[list[tuple[float, str, int]]], had: list[float]
) -> None:
    leavers = plays[name].history.leavers
    assert [[(each.at, each.how, each.grace) for each in pod.asked] for pod in leavers] == asked
    assert [pod.had for pod in leavers] == had
    assert sorted(pod.node for pod in leavers) == list(NODES)


@pytest.mark.parametrize(("name", "deadline", "over", "lacking"), [
    ("quarter", 900.0, 900.0, ((300.0, 900.0),)), ("late", 900.0, 900.0, ((900.0, 1200.0),)),
    ("short", 300.0, 300.0, ((0.0, 600.0),)), ("none", None, 1800.0, ()),
])  # fmt: skip
def test_the_nodes_are_gone_by_the_deadline_and_the_budget_pays_for_no_more_than_that(
    plays: dict[str, Played], name: str, deadline: float | None, over: float, lacking: tuple[tuple[float, float], ...]
) -> None:
    history = plays[name].history
    assert history.deadline == deadline
    assert history.over == over
    assert history.lacking() == lacking
    assert all(node.instance_ended <= node.gone for node in history.nodes)


def snippet(beginning: str) -> str:
    """The YAML of the page that begins so."""
    snippets: list[str] = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    (wanted,) = [block for block in snippets if block.startswith(beginning)]
    return wanted


def test_the_groups_of_the_page_are_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(snippet("nodeGroups:"), encoding="utf-8")
    policy: PolicySettings = load_settings(tmp_path / "settings.yaml").termination.policy
    of = {pool: policy.group_of({"pool": pool}) for pool in ("batch", "databases", "web")}
    assert {pool: group and group.termination_grace_seconds for pool, group in of.items()} == {
        "batch": 4 * 3600.0, "databases": None, "web": 1800.0,
    }  # fmt: skip


async def test_the_claim_of_the_page_gives_its_node_a_deadline() -> None:
    async with staged("worker-7") as stage:
        await stage.call("POST", CLAIMS, yaml.safe_load(snippet("apiVersion: karpenter.sh/v1")))
        await stage.patch_claim("worker-7", {"status": {"nodeName": "worker-7"}}, "/status")
        await stage.create(a_pod_manifest("protected", "worker-7", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await delete_at_start(stage, "worker-7")
            await stage.until(lambda: written_on(stage.node("worker-7")) != "")
            assert written_on(stage.node("worker-7")) == stamp(stage, 4 * 3600.0)
