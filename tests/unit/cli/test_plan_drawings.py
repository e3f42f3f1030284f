"""A forecast on paper: tables and bars that fit the terminal, a picture and a page that need nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console
from support.builders import a_pod, ending
from support.forecasts import WORLDS, a_day, crowd, empty, never, predicted, three_replicas, under_way

from gracectl.cli.console import UNLIMITED, text_of
from gracectl.cli.plan.export import plan_html, plan_svg
from gracectl.cli.plan.table import plan_table
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.cli.plan.timeline import ASCII, UNICODE, Signs, timeline
from gracectl.inspect.forecast import DrainForecast

SVG = "{http://www.w3.org/2000/svg}"
NOTE = "gracectl is not installed on this cluster; the forecast assumes it, with default settings (docs/install.md)"
A_DETAIL = Detail(settings="defaults", note=NOTE)
World = Callable[[], DrainForecast]
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)


def as_table(forecast: DrainForecast, width: int, **detail: Any) -> str:
    return text_of(Console(width=width), plan_table(plan_text(forecast, Detail(**detail))))


def as_timeline(forecast: DrainForecast, width: int, signs: Signs = UNICODE, **detail: Any) -> str:
    return text_of(Console(width=width), timeline(plan_text(forecast, Detail(**detail)), width, signs))


@every_world
@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("draw", [as_table, as_timeline])
@pytest.mark.parametrize("verbose", [False, True])
def test_lines_fit_the_terminal(world: World, width: int, draw: Callable[..., str], verbose: bool) -> None:
    for line in draw(world(), width, verbose=verbose, settings="defaults", note=NOTE).splitlines():
        assert cell_len(line) <= width, line
        assert line == line.rstrip()


@every_world
@pytest.mark.parametrize("draw", [as_table, as_timeline])
def test_nothing_that_matters_is_cut_off_at_80_columns(world: World, draw: Callable[..., str]) -> None:
    forecast = world()
    text = re.sub(r"\s+", "", draw(forecast, 80))
    assert "…" not in text
    for node in plan_text(forecast, Detail()).nodes:
        for words in (node.headline, *node.facts, *(warning.message for warning in node.warnings)):
            assert re.sub(r"\s+", "", words) in text


def test_where_there_is_no_terminal_every_pod_has_one_line() -> None:
    lines = as_table(three_replicas(), UNLIMITED).splitlines()
    assert [line for line in lines if "shop/orders-7d4b9c6f5-5qtvx" in line][1] == (
        "  0:00-5:00  shop/orders-7d4b9c6f5-5qtvx  evicted when budget shop/orders allows it (3 pods share this "
        "budget; order not decided yet), or deleted at 5:00 for the deadline (grace 600 s)"
    )


THREE = """\
node-1: drained 0:02-15:00 after its deletion
  deadline: 15:00 (1970-01-12T14:01:40Z), termination grace period 15m0s of
  NodeClaim node-1
  ! budget shop/orders may be violated for the deadline:
    shop/orders-7d4b9c6f5-5qtvx is deleted if it has not been evicted by then

  WHEN       POD                           HOW
  0:00-5:00  shop/orders-7d4b9c6f5-5qtvx   evicted when budget shop/orders
"""


def test_a_node_as_a_table() -> None:
    text = as_table(three_replicas(), 80)
    for line in (line.strip() for line in THREE.splitlines()):
        assert re.sub(r" +", " ", line) in re.sub(r" +", " ", text)


def test_the_summary_stands_before_the_nodes() -> None:
    lines = as_table(three_replicas(), 80).splitlines()
    head = lines.index("NODE    DRAINED     DEADLINE  PODS  WARNINGS")
    assert lines[head + 1] == "node-1  0:02-15:00  15:00        1  BudgetViolated"
    assert head < lines.index("node-1: drained 0:02-15:00 after its deletion")
    assert "cautions" not in as_table(crowd(), 80).partition("\n\n")[2].splitlines()[0]


def test_bars_say_what_the_table_says() -> None:
    lines = as_timeline(three_replicas(), 80).splitlines()
    bars = [line for line in lines if "░" in line]
    assert bars[0] == "  0:00-5:00  shop/orders-7d4b9c6f5-5qtvx  ░░░░░░░░░░░╳███████████████████████│"
    axis = lines[lines.index(bars[0]) + 2]
    assert axis.split() == ["0:00", "5:00", "10:00", "15:00"]
    (legend,) = [line for line in lines if line.startswith("  ░░░ may be removed")]
    assert legend == "  ░░░ may be removed   ███ terminating   ╳ deleted for the deadline   │ deadline"


def test_waves_have_their_titles_and_no_bars_without_pods_that_are_waited_for() -> None:
    assert re.findall(r"^  ((?:non-)?critical)$", as_timeline(a_day(), 80), re.MULTILINE) == [
        "non-critical",
        "critical",
    ]
    assert "░" not in as_timeline(empty(), 80, verbose=True)


def test_bars_of_plain_ascii() -> None:
    text = as_timeline(never(), 80, ASCII)
    assert text.isascii()
    rows = dict(re.findall(r"^  \S+ +(shop/\S+) +(\S+)$", text, re.MULTILINE))
    assert set(rows["shop/quick"]) == {"#"}
    assert set(rows["shop/notebook"]) == {"=", ">"}
    assert set(rows["shop/twice"]) == {"-", ">"}
    assert set(rows["shop/dns"]) == {".", ">"}


def test_a_logarithmic_axis_is_named() -> None:
    assert "(logarithmic axis)" in as_timeline(a_day(), 80)
    assert "(logarithmic axis)" not in as_timeline(three_replicas(), 80)


def test_where_there_is_little_room_the_bars_have_it() -> None:
    wide, narrow = as_timeline(a_day(), 100), as_timeline(a_day(), 60)
    assert "  1d 00:00:00-1d 00:00:30  shop/dns" in wide
    assert "\n  shop/dns" in narrow
    assert len(as_timeline(three_replicas(), UNLIMITED).splitlines()[-1]) < UNLIMITED
    assert max(map(len, (line for line in as_timeline(three_replicas(), UNLIMITED).splitlines() if "░" in line))) <= 160


def test_markup_in_what_people_have_written_is_text() -> None:
    assert "4 hours <b>" in re.sub(r"\s+", " ", as_table(never(), 80))


def test_with_colours_it_says_the_same() -> None:
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    coloured = text_of(console, plan_table(plan_text(under_way(), Detail())))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == as_table(under_way(), 80).split()


@every_world
def test_the_picture_needs_nothing_else_and_shows_every_node(world: World) -> None:
    text = plan_svg(world(), A_DETAIL)
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert not [element for element in root.iter() if element.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}use")]
    assert set(re.findall(r"https?://[^/\s]+", text)) == {"http://www.w3.org", "https://www.textualize.io"}
    words = "".join("".join(root.itertext()).split())
    for node in plan_text(world(), A_DETAIL).nodes:
        assert "".join(node.name.split()) in words


@every_world
def test_the_page_needs_nothing_else_and_says_all_that_the_table_says(world: World) -> None:
    page = plan_html(world(), A_DETAIL)
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert reader.addresses == []
    assert "@import" not in page
    words = "".join("".join(reader.words).split())
    assert "".join(as_table(world(), 160, settings=A_DETAIL.settings, note=NOTE).split()) in words


@pytest.mark.parametrize("write", [plan_svg, plan_html])
def test_foreign_text_in_a_file_stays_text(write: Callable[[DrainForecast, Detail], str]) -> None:
    hostile = predicted(ending("n1", a_pod("web")))
    text = write(hostile, Detail(settings="<script>alert(1)</script>\x1b[2J\u202e"))
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "alert(1)" in text.replace("&#160;", "")


class Reader(HTMLParser):
    """Tags, addresses, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)
