"""A picture that stands still and changes: it fits the terminal, and is put where the one before began."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from gracectl.cli.console import Screen

XTERM = {"TERM": "xterm"}
UP = "\x1b[1A"


def a_terminal(height: int) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=40, height=height, legacy_windows=False, _environ=XTERM), file


def a_picture(lines: int) -> Group:
    """As tables are: filled with spaces to the width of the terminal."""
    return Group(*(Padding(Text(f"line {number}", "bold"), expand=True) for number in range(lines)))


@pytest.mark.parametrize(("height", "lines"), [(4, 30), (12, 30), (40, 30), (32, 30), (31, 30), (12, 1)])
def test_it_fits_and_what_does_not_is_counted(height: int, lines: int) -> None:
    console, _ = a_terminal(height)
    with console.capture() as captured:
        console.print(Screen(console, "look elsewhere").fitted(a_picture(lines)))
    shown = [Text.from_ansi(line).plain for line in captured.get().splitlines()]
    assert shown[-1] == ""
    assert all(line == line.rstrip() for line in shown)
    if lines <= height - 2:
        assert shown[:-1] == [f"line {number}" for number in range(lines)]
    else:
        assert len(shown) == height - 1
        assert shown[:-2] == [f"line {number}" for number in range(height - 3)]
        assert shown[-2] == f"… and {lines - height + 3} more lines: look elsewhere"[:40]


def test_each_picture_is_put_where_the_one_before_began() -> None:
    console, file = a_terminal(20)
    screen = Screen(console, "")
    screen.show(a_picture(3))  # it is not on
    assert file.getvalue() == ""
    with screen.showing():
        screen.show(a_picture(3))
        first = len(file.getvalue())
        screen.show(a_picture(5))
        second = len(file.getvalue())
        screen.show(a_picture(2))
        said = file.getvalue()
    assert said[first:second].count(UP) == 3
    assert said[second:].count(UP) == 5


@pytest.mark.parametrize("leaves_nothing", [False, True])
def test_the_last_one_stays_or_is_taken_away(leaves_nothing: bool) -> None:
    console, file = a_terminal(20)
    screen = Screen(console, "")
    with screen.showing():
        screen.show(a_picture(3), leaves_nothing=leaves_nothing)
        screen.echo("a line that stays")
    assert "a line that stays" in file.getvalue()
    assert (UP in file.getvalue().rpartition("line 2")[2]) is leaves_nothing
