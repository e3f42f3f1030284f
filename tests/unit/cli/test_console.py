"""Where commands print: terminals with their width, files without any."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import ENDLESS, paper, put, text_of


def a_file(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What is printed from now on goes to a file of an old kind: it knows the characters of Latin-1 only."""
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="latin-1", write_through=True))
    return file


def test_a_file_has_lines_without_end_and_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    a_file(monkeypatch)
    monkeypatch.delenv("COLUMNS", raising=False)
    console = paper()
    assert (console.width, console.is_terminal, paper(200).width) == (ENDLESS, False, 200)
    assert text_of(console, Text("x" * 5000, "red")) == "x" * 5000


def test_who_says_how_many_columns_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    a_file(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    assert paper().width == 40


def test_what_a_stream_does_not_know_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(monkeypatch)
    put(paper(), "… ä")
    assert file.getvalue() == b"? \xe4\n"


def test_tables_leave_no_spaces_at_the_ends_of_lines() -> None:
    table = Table.grid()
    table.add_column(width=10)
    table.add_column(width=10)
    table.add_row("a", "b")
    assert text_of(paper(80), table) == "a         b"
