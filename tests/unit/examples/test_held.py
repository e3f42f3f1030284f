"""docs/tracing.md shows the trace that the story leaves."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from examples.held import PAGE, PICTURE, drawn, record, rows, what_held
from gracectl.telemetry.spans import Span

REMEDY = "if that is as it should be, `make examples ARGS=--update` draws it anew"
TEXTS = [element.text for element in ElementTree.parse(PICTURE).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture(scope="module")
def spans() -> list[Span]:
    return record()


def test_the_picture_is_the_one_that_is_drawn(spans: list[Span]) -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(spans), REMEDY


def test_it_names_every_span_in_the_order_of_viewers_and_what_held_the_node(spans: list[Span]) -> None:
    shown = [span.name for _, span in rows(spans)]
    assert [text for text in TEXTS if text in shown] == shown
    assert len(what_held(spans)) == 5


def test_it_is_on_the_page_and_needs_nothing_else() -> None:
    assert f"]({PICTURE.relative_to(PAGE.parent)})" in PAGE.read_text(encoding="utf-8")
    root = ElementTree.parse(PICTURE).getroot()
    assert not [value for element in root.iter() for value in element.attrib.values() if "url" in value]
