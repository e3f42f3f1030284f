"""What commands print: foreign text does nothing to a terminal, and colours are ours alone."""

from __future__ import annotations

import re

import pytest
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import VisibleConsole, print_on, text_of
from gracectl.cli.failures import print_error
from gracectl.cli.output import echo

HOSTILE = "web\x1b[2J\x9b31m\u202e"
SHOWN = r"web\x1b[2J\x9b31m\u202e"


def test_a_line_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"{HOSTILE}\nand more")
    print_error(HOSTILE)
    said = capsys.readouterr()
    assert said.out == f"{SHOWN}\nand more\n"
    assert said.err.endswith(f": {SHOWN}\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_is_visible_and_keeps_its_colours(is_terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("pod")
    table.add_row(Text(HOSTILE, style="bold red"))
    console = VisibleConsole(force_terminal=is_terminal, width=80, color_system="standard" if is_terminal else None)
    print_on(console, table)
    assert SHOWN in capsys.readouterr().out
    said = text_of(console, table)
    assert SHOWN in said
    colours = re.findall("\x1b.*?m", said)
    assert all(re.fullmatch("\x1b\\[[0-9;]*m", each) for each in colours)
    assert ("\x1b[1;31m" in colours) == is_terminal
    assert not re.search("[\x80-\x9f\u202e]", said)
