"""docs/plan.md shows what gracectl says beforehand, and what it shows of the three replicas is what then happens."""

from __future__ import annotations

import pytest

from examples.beforehand import PAGE, PICTURE, Prediction, blocks_of, drawn, predict
from examples.pages import put_in
from examples.three_replicas import PLAYS, perform
from gracectl.policy.answers import Window

TEXT = PAGE.read_text(encoding="utf-8")
REMEDY = "if that is as it should be, `make examples ARGS=--update` writes it anew"


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    return predict()


def test_the_page_has_what_is_printed_word_for_word(predicted: Prediction) -> None:
    assert put_in(TEXT, blocks_of(predicted)) == TEXT, REMEDY


def test_the_picture_is_the_one_that_is_drawn(predicted: Prediction) -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(predicted), REMEDY
    assert f"]({PICTURE.relative_to(PAGE.parent)})" in TEXT


def test_what_is_predicted_of_the_three_replicas_is_what_then_happens(predicted: Prediction) -> None:
    history = perform(PLAYS[0]).history
    at = predicted.replicas.whole.at
    for node in predicted.replicas.nodes:
        (pod,) = node.forecast.pods
        (leaver,) = [each for each in history.leavers if each.node == node.name]
        assert leaver.name == pod.entry.pod.name
        assert pod.removal is not None
        assert pod.removal.latest is not None
        assert pod.removal.earliest - at <= leaver.asked[0].at <= pod.removal.latest - at
        assert leaver.asked[0].how in [way.value for way in pod.methods]
        assert leaver.asked[0].grace == 600
        assert node.deadline is not None
        assert node.deadline.at - at == history.deadline
        assert isinstance(node.forecast.drained, Window)
        (life,) = [each for each in history.nodes if each.name == node.name]
        assert node.forecast.drained.earliest - at <= life.instance_ended
        assert life.instance_ended <= node.forecast.drained.latest - at
