"""The README shows the live view as the program draws it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from examples.live import MAINTAINED, PICTURE, ROOT, TERMINATED, drawn, record
from gracectl.cli.status.follow import StatusFrame

REMEDY = "if that is as it should be, `make examples ARGS=--update` draws it anew"


@pytest.fixture(scope="module")
def frame() -> StatusFrame:
    return record()


def test_the_picture_is_the_one_that_is_drawn(frame: StatusFrame) -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(frame), REMEDY


def test_it_shows_terminations_and_maintenance(frame: StatusFrame) -> None:
    assert [node.name for node in frame.nodes] == [*TERMINATED, MAINTAINED]
    assert all(node.pods for node in frame.nodes[:-1])
    assert frame.nodes[-1].is_done


def test_it_needs_nothing_of_other_sites_and_is_in_the_readme() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "url(http" not in text
    assert '"http' not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert f"]({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")
