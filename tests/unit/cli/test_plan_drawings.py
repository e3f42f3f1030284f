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
from support.forecasts import WORLDS, a_day, crowd, never, predicted, three_replicas, under_way

from gracectl.cli.console import UNLIMITED, text_of
from gracectl.cli.plan.chart import chart_of
from gracectl.cli.plan.html import html_of
from gracectl.cli.plan.svg import STYLE, svg_of
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
    chart = chart_of(forecast, verbose=detail.get("verbose", False))
    return text_of(Console(width=width), timeline(plan_text(forecast, Detail(**detail)), chart, width, signs))


def as_picture(forecast: DrainForecast) -> str:
    return svg_of(chart_of(forecast), "What happens")


def as_page(forecast: DrainForecast) -> str:
    return html_of(plan_text(forecast, A_DETAIL), chart_of(forecast))


# -- in a terminal -----------------------------------------------------------------------------------------------------


@every_world
@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("draw", [as_table, as_timeline])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal_and_none_ends_with_spaces(
    world: World, width: int, draw: Callable[..., str], verbose: bool
) -> None:
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


# -- as a picture ------------------------------------------------------------------------------------------------------


def titles(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}title")]


@every_world
def test_the_picture_is_one_document_that_needs_nothing_else(world: World) -> None:
    text = as_picture(world())
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "plan-title plan-desc")
    assert not [element for element in root.iter() if element.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}use")]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x") or -1) <= width
        assert 0 <= float(element.get("y") or -1) <= height
    for element in root.iter(f"{SVG}rect"):
        assert float(element.get("x") or 0) + float(element.get("width") or 0) <= width


def test_every_pod_and_every_stretch_says_why() -> None:
    found = titles(ElementTree.fromstring(as_picture(a_day())))
    assert found[0] == "What happens"
    assert (
        'shop/notebook: 1d 00:00:00, protected by do-not-disrupt "24h" until 1970-01-13T13:46:40Z, then evicted'
        in found
    )
    assert 'protected: protected by do-not-disrupt "24h" until 1970-01-13T13:46:40Z' in found
    assert "terminating: removed by 0:30, terminated by 1:00" in found
    desc = ElementTree.fromstring(as_picture(a_day())).findtext(f"{SVG}desc") or ""
    assert desc.startswith("worker-1: drained 1d 00:00:00-1d 00:01:00 after its deletion. shop/quick: 0:00,")


def test_no_two_kinds_are_told_apart_by_colour_alone() -> None:
    root = ElementTree.fromstring(as_picture(never()))
    patterns = {element.get("id"): [child.tag for child in element] for element in root.iter(f"{SVG}pattern")}
    used = set(re.findall(r"url\(#([a-z-]+)\)", as_picture(never())))
    assert used == {"p-terminating", "p-protected", "p-blocked", "p-waiting"}
    assert used <= set(patterns)
    legend = [element.text for element in root.iter(f"{SVG}text")][-4:]
    assert legend == ["waits for its wave", "blocked by a budget", "protected", "terminating"]


def test_what_people_have_written_cannot_leave_its_place_in_the_picture() -> None:
    text = as_picture(never())
    assert "&lt;b&gt;" in text
    assert "<b>" not in text


def test_long_names_keep_their_ends() -> None:
    name = "a-deployment-with-a-very-long-name-indeed-6d5f7c8b9-x2k4p"
    root = ElementTree.fromstring(as_picture(predicted(ending("n1", a_pod(name)))))
    shown = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "shop/a-deployment-with-a-very…-indeed-6d5f7c8b9-x2k4p"[-19:] in "".join(shown)
    assert name not in "".join(shown)
    assert f"shop/{name}: 0:00, evicted" in titles(root)


# -- as a page ---------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Tags that are open, addresses, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@every_world
def test_the_page_is_one_file_and_says_all_that_the_table_says(world: World) -> None:
    forecast = world()
    reader = read(as_page(forecast))
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert reader.addresses == []
    assert "@import" not in as_page(forecast)
    text = "\n".join(reader.words)
    told = plan_text(forecast, A_DETAIL)
    for node in told.nodes:
        for words in (node.headline, *node.facts, *(warning.message for warning in node.warnings), node.ignored):
            assert words in text
        for line in (line for wave in node.waves for line in wave.lines):
            assert line.name in text
            assert line.text in text
    for words in (told.note, told.title, *told.remarks, *(line.text for line in told.budgets), told.other_budgets):
        assert words in text


def test_the_page_has_colours_for_dark_rooms_of_whatever_is_drawn() -> None:
    text = as_page(never())
    dark = text.partition("@media (prefers-color-scheme: dark) {")[2].partition("@media print")[0]
    for name in ("waiting", "blocked", "protected", "removable", "grid", "card", "deadline", "faint", "alarm"):
        assert f".{name}" in STYLE
        assert f"main .plan .{name}" in dark


def test_what_people_have_written_cannot_leave_its_place_on_the_page() -> None:
    assert "4 hours <b>" not in as_page(never())
    assert "4 hours <b>" in "".join(read(as_page(never())).words)
