"""`gracectl uncordon` over HTTP: what it uncordons, what it says of each node, and what cannot be undone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fleet import Fleet, fleet

from gracectl.model import names

pytestmark = pytest.mark.real_time

TAINT = {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}
RECORD = {names.KEEP_DRAINED: "2026-01-01T00:00:00Z", names.CORDONED: "taint,label,unschedulable"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("uncordon")) as found:
        yield found


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_a_kept_node_is_given_back(place: Fleet) -> None:
    place.add("kept", managed=True)
    assert place.run("drain", "kept").exit_code == 0
    result = place.run("uncordon", "kept")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "kept: uncordoned; the controller still has to remove the label "
        "node.kubernetes.io/exclude-from-external-load-balancers\n"
    )
    node = place.node("kept")
    assert node is not None
    assert not node["spec"].get("unschedulable")
    assert names.KEEP_DRAINED not in place.annotations("kept")
    place.until("the rest is taken off", lambda: names.CORDONED not in place.annotations("kept"))
    assert place.run("uncordon", "kept").stdout == "kept: was not cordoned\n"


def test_foreign_cordons_are_removed_without_any_controller(place: Fleet) -> None:
    for name in ("by-hand-1", "by-hand-2"):
        place.add(name, hands="on")
        place.patch(name, {"spec": {"unschedulable": True}})
    place.add("by-hand-3", hands="on")
    result = place.run("uncordon", "-l", "hands=on")
    assert (result.exit_code, result.stderr) == (0, "")
    assert lines(result.stdout) == ["by-hand-1: uncordoned", "by-hand-2: uncordoned", "by-hand-3: was not cordoned"]
    for name in ("by-hand-1", "by-hand-2"):
        assert not (place.node(name) or {})["spec"].get("unschedulable")


def test_of_an_unmanaged_node_taint_and_label_stay(place: Fleet) -> None:
    place.add("left")
    place.patch("left", {"metadata": {"annotations": RECORD}, "spec": {"unschedulable": True, "taints": [TAINT]}})
    settings = place.folder / "others.yaml"
    settings.write_text("nodeSelector: {matchLabels: {pool: b}}\n")
    result = place.run("uncordon", "left", "--config", str(settings))
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "left: uncordoned; the maintenance of this node has ended, but it is not managed: "
        "nodeSelector does not match it"
    )
    assert not (place.node("left") or {})["spec"].get("unschedulable")
    # Once more: it is given back already, and what is left on it is still to come off.
    again = place.run("uncordon", "left")
    assert again.stdout.startswith("left: uncordoned; the controller still has to remove the taint")


def test_what_is_being_deleted_cannot_be_taken_back_and_the_others_are(place: Fleet) -> None:
    place.held("going", mixed="yes")
    place.patch("going", {"spec": {"unschedulable": True}})
    place.delete("going")
    place.add("staying", mixed="yes")
    place.patch("staying", {"spec": {"unschedulable": True}})
    result = place.run("uncordon", "-l", "mixed=yes")
    assert result.exit_code == 3
    assert result.stdout == "staying: uncordoned\n"
    assert result.stderr == "gracectl: going: being deleted; a deletion cannot be undone\n"
    assert (place.node("going") or {})["spec"]["unschedulable"] is True
    place.release("going")


def test_a_selector_that_no_node_matches_is_no_failure(place: Fleet) -> None:
    result = place.run("uncordon", "-l", "pool=none")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No node matches the selector pool=none.\n")


def test_a_right_that_is_missing_for_some_of_them_is_told_with_their_names(place: Fleet) -> None:
    for name in ("mine", "theirs"):
        place.add(name, shared="yes")
        place.patch(name, {"spec": {"unschedulable": True}})
    listing = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    mine = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"], "resourceNames": ["mine"]}
    result = place.run("uncordon", "-l", "shared=yes", as_=place.user("sharer", listing, mine))
    assert (result.exit_code, result.stdout) == (3, "mine: uncordoned\n")
    assert result.stderr.startswith(
        "gracectl: theirs: patch nodes theirs: forbidden: add the verb patch on nodes to the role"
    )
